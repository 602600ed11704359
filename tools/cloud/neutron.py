"""Neutron, the network service, in the one-machine cloud (``make up NETWORK=1``).

This file writes its configuration, makes the databases of OVN that it writes networks into, and makes the network that
servers find.

    text = neutron.conf(layout, ports, secrets)
    neutron.seed(url, token, project)

Its API, the two databases, northd, which translates from one to the other, and the pretended hosts (``ovn_hosts``) are
services of the table in ``services``. With them nothing carries packets: ports get addresses, and become ACTIVE. Real
guests have real hosts (``switch``) and the agents by which they ask for their metadata (``metadata_agent``).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.cloud import http, render, switch
from tools.cloud.layout import CloudError, Layout

OVSDB_SERVER, OVSDB_TOOL = Path('/usr/sbin/ovsdb-server'), Path('/usr/bin/ovsdb-tool')
NORTHD, SBCTL = Path('/usr/bin/ovn-northd'), Path('/usr/bin/ovn-sbctl')
SCHEMAS = Path('/usr/share/ovn')
# Northbound: what Neutron wants; southbound: what hosts do about it.
DATABASES = ('nb', 'sb')
# The network that the demo project has and others share.
NETWORK, CIDR = 'private', '10.20.0.0/16'
PHYSICAL_NETWORK = 'physnet1'
# What a new project's default group allows: everything out, and in from the group itself. (Neutron's migrations write
# these, and they are not written for SQLite.)
DEFAULT_RULES = tuple(
    {
        'direction': direction,
        'ethertype': ethertype,
        'used_in_default_sg': True,
        'used_in_non_default_sg': direction == 'egress',
        'remote_group_id': None if direction == 'egress' else 'PARENT',
    }
    for direction in ('egress', 'ingress')
    for ethertype in ('IPv4', 'IPv6')
)
# Its tables: a program, as neutron-db-manage knows only the migrations. WAL: readers don't wait for the threads that
# note what OVN did.
MAKE_TABLES = """
import sys
import sqlalchemy
from neutron.db.migration.models import head
engine = sqlalchemy.create_engine(sys.argv[1])
with engine.connect() as connection:
    connection.exec_driver_sql('PRAGMA journal_mode = WAL')
head.get_metadata().create_all(engine)
"""


def conf(layout: Layout, ports: Mapping[str, int], secrets: Mapping[str, str], *, data_path: bool = False) -> str:
    """Return the text of neutron.conf with its plug-in's part. ``data_path``: hosts carry packets."""
    account = render.account(ports, secrets, 'neutron')
    return render.ini(
        {
            'DEFAULT': {
                'log_file': str(layout.log('neutron')),
                'state_path': str(layout.data('neutron')),
                'api_paste_config': str(layout.neutron_venv / 'etc' / 'neutron' / 'api-paste.ini'),
                'core_plugin': 'ml2',
                # Ports keep their names in DNS only where it is another one than the default.
                'dns_domain': 'kilonova.test.',
                'service_plugins': 'ovn-router,trunk,tag,auto_allocate,qos,placement',
                # No agents that it would speak to.
                'transport_url': 'fake:/',
                # Emulated guests leave little of the CPU to hosts, which count as gone when they are late.
                **({'agent_down_time': 600} if data_path else {}),
            },
            'database': render.services_database(layout, 'neutron'),
            'keystone_authtoken': render.token_check(ports, secrets, 'neutron')
            | {'service_token_roles_required': 'true'},
            # Events about ports go to the compute API in the catalog.
            'nova': account,
            # What ports guarantee, of hosts whose chassis says how much there is.
            'placement': account,
            'oslo_concurrency': {'lock_path': str(layout.var / 'lock')},
            'oslo_messaging_notifications': {'driver': 'noop'},
            'ml2': {
                'type_drivers': 'geneve,flat,vlan,local',
                'project_network_types': 'geneve',
                'mechanism_drivers': 'ovn,sriovnicswitch',
                'extension_drivers': 'port_security,dns,qos',
            },
            # Of SR-IOV ports, where an agent of theirs is known.
            'ml2_type_vlan': {'network_vlan_ranges': f'{PHYSICAL_NETWORK}:100:199'},
            'ml2_type_geneve': {'vni_ranges': '1:65535', 'max_header_size': 38},
            'ovn': {
                'ovn_nb_connection': remote(layout, 'nb'),
                'ovn_sb_connection': remote(layout, 'sb'),
                # Each network has a port for it, and an address.
                'ovn_metadata_enabled': str(data_path).lower(),
            },
        }
    )


def agent(ports: Mapping[str, int], secrets: Mapping[str, str], host: str) -> str:
    """Return the text of metadata-HOST.conf for the metadata agent of a machine.

    The agent keeps its files on the machine, and they end with it.
    """
    kept = '/run/neutron'
    return render.ini(
        {
            'DEFAULT': {
                'host': host,
                'state_path': kept,
                'nova_metadata_host': '127.0.0.1',
                'nova_metadata_port': ports['metadata'],
                'metadata_proxy_shared_secret': secrets['metadata'],
                'metadata_workers': 1,
            },
            'agent': {'root_helper': ''},
            'ovs': {'ovsdb_connection': f'unix:{switch.SOCKET}'},
            'ovn': {'ovn_sb_connection': f'tcp:127.0.0.1:{ports["ovn-sb"]}'},
            'oslo_concurrency': {'lock_path': kept},
        }
    )


def agent_path(layout: Layout, host: str) -> Path:
    """Return the path of the configuration of a host's metadata agent."""
    return layout.etc / 'neutron' / f'metadata-{host}.conf'


def gunicorn(ports: Mapping[str, int]) -> str:
    """Return gunicorn.conf.py of Neutron's API, which logs its requests as the other services do by themselves."""
    return _HOOKS + render.gunicorn(ports, 'neutron') + "accesslog = '-'\n"


# A worker leaves files named by the pid of its parent: those from before must not be taken for its own. Neutron's OVN
# driver takes SIGTERM away from gunicorn, and its threads would outlive the worker. These write, too: who comes second
# tries again, which Neutron does after what it knows as a deadlock.
_HOOKS = """import os
import pathlib
import tempfile


def on_starting(server):
    for left in pathlib.Path(tempfile.gettempdir()).glob('neutron_*'):
        left.unlink()


def post_fork(server, worker):
    import sqlalchemy
    from oslo_db import exception
    from oslo_db.sqlalchemy import exc_filters

    @exc_filters.filters('sqlite', sqlalchemy.exc.OperationalError, r'.*database is locked')
    def locked(error, match, engine_name, is_disconnect):
        raise exception.DBDeadlock(error)


def post_worker_init(worker):
    worker.init_signals()


def worker_exit(server, worker):
    os._exit(0)


"""


def conf_path(layout: Layout) -> Path:
    """Return the path of neutron.conf."""
    return layout.etc / 'neutron' / 'neutron.conf'


def socket_path(layout: Layout, database: str) -> Path:
    """Return the path of the socket of one of DATABASES."""
    return layout.data('neutron') / f'{database}.sock'


def remote(layout: Layout, database: str) -> str:
    """Return the name by which OVN's programs reach a database's server."""
    return f'unix:{socket_path(layout, database)}'


def database_argv(layout: Layout, ports: Mapping[str, int], database: str) -> tuple[str, ...]:
    """Return the command that serves one of DATABASES. The southbound one has a port, too, for hosts."""
    directory = layout.data('neutron')
    more = (f'--remote=ptcp:{ports["ovn-sb"]}:127.0.0.1',) if database == 'sb' else ()
    return (
        str(OVSDB_SERVER),
        '--no-chdir',
        f'--unixctl={directory / database}.ctl',
        *_QUIET,
        f'--remote=p{remote(layout, database)}',
        *more,
        f'{directory / database}.db',
    )


def northd_argv(layout: Layout) -> tuple[str, ...]:
    """Return the command of northd, which translates from the northbound to the southbound database."""
    return (
        str(NORTHD),
        '--no-chdir',
        f'--unixctl={layout.data("neutron") / "northd.ctl"}',
        *_QUIET,
        f'--ovnnb-db={remote(layout, "nb")}',
        f'--ovnsb-db={remote(layout, "sb")}',
    )


# Warnings go to the terminal, that is to the service's log; nothing to the machine's.
_QUIET = ('-vconsole:warn', '-vsyslog:off')


def database_files(layout: Layout) -> dict[Path, Path]:
    """Return a dict from the file of each database to the schema that it is made from."""
    return {layout.data('neutron') / f'{name}.db': SCHEMAS / f'ovn-{name}.ovsschema' for name in DATABASES}


def translated(layout: Layout) -> bool:
    """Whether northd has begun with its work."""
    return bool(_southbound(layout, 'SB_Global', 'nb_cfg'))


def hosts_known(layout: Layout, hosts: Iterable[str]) -> bool:
    """Whether all of these hosts have a chassis."""
    return set(_southbound(layout, 'Chassis_Private', 'name')).issuperset(hosts)


def agents_known(layout: Layout, hosts: Iterable[str]) -> bool:
    """Whether the metadata agents of all of these hosts have said that they are there."""
    return all(
        'neutron:ovn-metadata-id' in ' '.join(_southbound(layout, 'Chassis_Private', 'external_ids', host))
        for host in hosts
    )


def _southbound(layout: Layout, table: str, column: str, *rows: str) -> list[str]:
    """Return a column of these rows, or of all, in the southbound database; an empty list if it does not answer."""
    done = subprocess.run(
        [
            str(SBCTL),
            '--timeout=5',
            f'--db={remote(layout, "sb")}',
            '--bare',
            f'--columns={column}',
            'list',
            table,
            *rows,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def seed(url: str, token: str, project: str) -> bool:
    """Make the rules of default groups and the network that servers find; return whether anything was missing."""
    url = f'{url}/v2.0'
    rules = http.call('GET', f'{url}/default-security-group-rules', token=token).data['default_security_group_rules']
    there = {(rule['direction'], rule['ethertype']) for rule in rules}
    missing = [rule for rule in DEFAULT_RULES if (rule['direction'], rule['ethertype']) not in there]
    for rule in missing:
        http.call('POST', f'{url}/default-security-group-rules', {'default_security_group_rule': rule}, token=token)
    networks = http.call('GET', f'{url}/networks?name={NETWORK}', token=token).data['networks']
    network = (
        networks[0]
        if networks
        else http.call(
            'POST',
            f'{url}/networks',
            {'network': {'name': NETWORK, 'project_id': project, 'shared': True}},
            token=token,
        ).data['network']
    )
    if not network['subnets']:
        http.call(
            'POST',
            f'{url}/subnets',
            {
                'subnet': {
                    'name': NETWORK,
                    'network_id': network['id'],
                    'project_id': project,
                    'ip_version': 4,
                    'cidr': CIDR,
                }
            },
            token=token,
        )
    return not network['subnets'] or bool(missing)


def missing_programs(*, data_path: bool = False) -> list[str]:
    """Return the programs of OVN that are not installed."""
    needed = (OVSDB_SERVER, OVSDB_TOOL, NORTHD, SBCTL, *map(Path, switch.NEEDED if data_path else ()))
    return [str(path) for path in needed if not path.exists()]


def make_database(path: Path, schema: Path) -> None:
    """Make an empty database file. Raises CloudError if that fails."""
    done = subprocess.run(
        [str(OVSDB_TOOL), 'create', str(path), str(schema)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CloudError(f'ovsdb-tool create {path}: {done.stderr.strip()}')
