"""Prepare the databases before the services start.

Each step leaves a mark when it is done; a step without a mark is done again from the start, so each is repeatable.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cloud import cinder, cyborg, neutron, render
from tools.cloud.layout import CloudError, Layout, write_private
from tools.cloud.process import child_environment
from tools.cloud.services import Cloud

# The commands of kilonova-manage that make its databases and keys, in this order.
PREPARE = ('api_db sync', 'cell_v2 simple_cell_setup', 'db sync', 'secrets create_key')
# Several of them in one process: each start takes a second, and these do little.
_SEVERAL = """
import json, sys
from kilonova.cmd.manage import main as manage
configuration, *commands = sys.argv[1:]
for command in commands:
    code = manage.main([*json.loads(configuration), *command.split()])
    if code:
        sys.exit(code)
"""


def run(
    layout: Layout, argv: Sequence[str], *, env: Mapping[str, str] | None = None, log: str, shown: str | None = None
) -> str:
    """Run a command to its end; its output goes to the log of that service.

    Raises CloudError with the last lines if the command fails. The error names the command as ``shown`` if that is
    given.
    """
    done = subprocess.run(
        list(argv),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=child_environment(layout, log, env or {}),
    )
    with layout.log(log).open('a') as file:
        file.write(done.stdout + done.stderr)
    if done.returncode:
        tail = '\n'.join((done.stdout + done.stderr).strip().splitlines()[-15:])
        named = shown or f'{os.path.basename(argv[0])} {" ".join(argv[1:])}'
        raise CloudError(f'{named} ended with {done.returncode}:\n{tail}')
    return done.stdout


def prepare_services(cloud: Cloud) -> bool:
    """Make schemas, keys and the first administrator of Keystone, Glance, Cyborg, Neutron and Cinder.

    Returns whether anything was missing. Placement makes its tables when it starts.
    """
    wanted = (
        _prepare_keystone,
        _prepare_glance,
        *((_prepare_cyborg,) if cloud.cyborg else ()),
        *((_prepare_neutron,) if cloud.network else ()),
        *((_prepare_cinder,) if cloud.volume else ()),
    )
    steps = [step for step in wanted if step(cloud, ask=True)]
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(step, cloud, ask=False) for step in steps]:
            future.result()
    return bool(steps)


def _prepare_keystone(cloud: Cloud, *, ask: bool) -> bool:
    layout, url = cloud.layout, render.url(cloud.ports, 'keystone')
    mark = layout.data('keystone') / 'ready'
    if ask:
        return not mark.exists() or mark.read_text() != url
    manage = [layout.services_bin('keystone-manage'), '--config-file', str(layout.etc / 'keystone' / 'keystone.conf')]
    if not mark.exists():
        for repository in ('fernet-keys', 'credential-keys'):
            make_keys(layout.data('keystone') / repository)
        run(layout, [*manage, 'db_sync'], log='keystone')
    # The password goes by the environment: a command line is there for everybody to read.
    run(
        layout,
        [
            *manage,
            'bootstrap',
            '--bootstrap-region-id',
            'RegionOne',
            '--bootstrap-public-url',
            url,
            '--bootstrap-internal-url',
            url,
            '--bootstrap-admin-url',
            url,
        ],
        env={'OS_BOOTSTRAP_PASSWORD': cloud.secrets['admin']},
        log='keystone',
    )
    mark.write_text(url)
    return True


def make_keys(repository: Path) -> None:
    """Make a key repository as ``keystone-manage fernet_setup`` and ``credential_setup`` do.

    Their processes would take three seconds each. A file has 32 random bytes in base64; the highest number is the
    primary key, 0 the staged one (Keystone's administrator guide, "Fernet - Frequently Asked Questions").
    """
    repository.mkdir(mode=0o700, exist_ok=True)
    for name in ('0', '1'):
        if not (repository / name).exists():
            write_private(repository / name, base64.urlsafe_b64encode(os.urandom(32)).decode())


def _prepare_glance(cloud: Cloud, *, ask: bool) -> bool:
    layout = cloud.layout
    mark = layout.data('glance') / 'ready'
    if ask:
        return not mark.exists()
    for directory in ('images', 'staging', 'tasks'):
        (layout.data('glance') / directory).mkdir(parents=True, exist_ok=True)
    run(
        layout,
        [
            layout.services_bin('glance-manage'),
            '--config-file',
            str(layout.etc / 'glance' / 'glance-api.conf'),
            'db',
            'sync',
        ],
        log='glance',
    )
    mark.touch()
    return True


def _prepare_cyborg(cloud: Cloud, *, ask: bool) -> bool:
    layout = cloud.layout
    mark = layout.data('cyborg') / 'ready'
    if ask:
        return not mark.exists()
    # Not ``upgrade``: its revisions are not written for SQLite. An earlier try may have left some tables.
    (layout.data('cyborg') / 'cyborg.sqlite').unlink(missing_ok=True)
    run(
        layout,
        [layout.cyborg_bin('cyborg-dbsync'), '--config-file', str(cyborg.conf_path(layout)), 'create_schema'],
        log='cyborg',
    )
    mark.touch()
    return True


def _prepare_neutron(cloud: Cloud, *, ask: bool) -> bool:
    layout = cloud.layout
    directory = layout.data('neutron')
    mark = directory / 'ready'
    if ask:
        return not mark.exists()
    for path, schema in neutron.database_files(layout).items():
        # What OVN has is what Neutron wrote there.
        path.unlink(missing_ok=True)
        neutron.make_database(path, schema)
    database = directory / 'neutron.sqlite'
    # With its journal, if an earlier try left some.
    for left in directory.glob(f'{database.name}*'):
        left.unlink()
    run(
        layout,
        [layout.neutron_bin('python'), '-W', 'ignore', '-c', neutron.MAKE_TABLES, render.sqlite(database)],
        log='neutron',
        shown="making Neutron's tables",
    )
    mark.touch()
    return True


def _prepare_cinder(cloud: Cloud, *, ask: bool) -> bool:
    layout = cloud.layout
    mark = layout.data('cinder') / 'ready'
    if ask:
        return not mark.exists()
    run(
        layout,
        [layout.cinder_bin('cinder-manage'), '--config-file', str(cinder.conf_path(layout)), 'db', 'sync'],
        log='cinder',
    )
    mark.touch()
    return True


def manage(cloud: Cloud, *arguments: str) -> str:
    """Run kilonova-manage on the cloud's configuration; gives back what it printed."""
    return run(cloud.layout, [cloud.layout.bin('kilonova-manage'), *cloud.config_arguments, *arguments], log='manage')


def prepare_kilonova(cloud: Cloud) -> None:
    """Make the api database, the cells cell0 and cell1, their schemas, and the keys. A second call changes nothing."""
    run(
        cloud.layout,
        [cloud.layout.bin('python'), '-c', _SEVERAL, json.dumps(cloud.config_arguments), *PREPARE],
        log='manage',
        shown=f'kilonova-manage {", ".join(PREPARE)}',
    )


def executable(path: str) -> bool:
    """Return whether a path is a file that may be executed."""
    return os.access(path, os.X_OK) and Path(path).is_file()
