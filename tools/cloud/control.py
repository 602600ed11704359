"""Starting, stopping and watching the cloud: what ``make up``, ``down``, ``restart`` and ``logs`` do.

up(Layout.at(), hosts=DEFAULT_HOSTS, extra=None)
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.cloud import cinder, cyborg, databases, http, identity, machine, neutron, ports, process, render, services
from tools.cloud.image import ensure_guest, ensure_image
from tools.cloud.layout import (
    DEFAULT_HOSTS,
    ROOT,
    CloudError,
    Layout,
    find_hosts,
    load_secrets,
    write_private,
)
from tools.cloud.services import RABBITMQ_SERVER, Cloud, Service
from tools.guest import image as guests

READY_WITHIN = 120.0
# The machine of the proxies of consoles, and the one on the network outside of the cloud, with its address there.
CONSOLES, OUTSIDE = 'console-proxies', 'outside'
OUTER_ADDRESS = '203.0.113.1/24'
# Kinds of guests: those of libvirt's test driver, and those of QEMU on machines of their own.
GUESTS = ('test', 'qemu')
GUEST_DIRECTORY = ROOT / 'build' / 'guest'


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


@contextmanager
def exclusive(layout: Layout) -> Iterator[None]:
    """Let one command at a time work on a cloud; a second one waits."""
    # The lock is on the directory above, as var/ itself may be removed at any time.
    layout.var.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(layout.var.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say('another command works on this cloud; waiting for it')
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def settings_path(layout: Layout) -> Path:
    """Return the path of the file that keeps what ``up`` was asked for."""
    return layout.var / 'settings.json'


def kept(layout: Layout) -> dict[str, Any]:
    """Return what the last ``up`` was asked for, an empty dict if there was none."""
    path = settings_path(layout)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def assemble(
    layout: Layout, hosts: Path, extra: Path | None, kind: str, *, accelerators: bool, network: bool, volume: bool
) -> Cloud:
    """Return the cloud that the arguments describe, with ports and passwords chosen."""
    if extra is not None and not extra.is_file():
        raise CloudError(f'there is no configuration file {extra}')
    described = find_hosts(hosts)
    layout.make_directories()
    # First, or a worker that outlived its killed main process would make us give its port up.
    end_orphans(layout)
    ours = {name for name in ports.names_for(described) if process.running(layout, name.removeprefix('health-'))}
    # One process holds both.
    ours |= {other for name, other in (('rabbitmq', 'rabbitmq-dist'), ('api', 'metadata')) if name in ours}
    settled = ports.settle(layout.var / 'ports.json', layout.var, described, ours=ours)
    return with_machines(
        Cloud(
            layout, settled, load_secrets(layout), described, extra, cyborg=accelerators, network=network, volume=volume
        ),
        kind,
    )


def with_machines(cloud: Cloud, kind: str) -> Cloud:
    """Return the cloud with a machine for each host if guests are real."""
    if kind == 'test':
        return cloud
    if taken := {CONSOLES, OUTSIDE} & set(cloud.hosts):
        raise CloudError(f'no host can be called {taken.pop()!r}: a machine of the cloud itself is called so')
    layout, path = cloud.layout, cloud.layout.machines / 'addresses.json'
    kept = json.loads(path.read_text()) if path.exists() else {}
    found = machine.addresses(kept, [*cloud.hosts, CONSOLES, *((OUTSIDE,) if cloud.network else ())])
    if found != kept:
        write_private(path, json.dumps(kept | found, indent=1) + '\n')
    served = tuple(
        cloud.ports[name]
        for name in (
            'rabbitmq',
            'keystone',
            'placement',
            'glance',
            *(('neutron', 'ovn-sb', 'metadata') if cloud.network else ()),
            *(('cinder',) if cloud.volume else ()),
        )
    )
    hidden = tuple(str(path) for path in (layout.var / 'hosts', layout.var / 'data', layout.machines))
    made = {
        host: machine.Machine(
            str(layout.machines / host),
            host,
            found[host],
            hidden,
            (str(layout.host(host)),),
            served,
            (cloud.ports[f'health-compute-{host}'],),
            cloud.network,
            cloud.network,
            routes=cloud.network and host == next(iter(cloud.hosts)),
            shares=(str(cinder.share_path(layout)),) if cloud.volume else (),
        )
        for host in cloud.hosts
    }
    consoles = machine.Machine(
        str(layout.machines / CONSOLES),
        CONSOLES,
        found[CONSOLES],
        services=served,
        offers=tuple(cloud.ports[name] for name in services.PROXIES),
    )
    outside = (
        machine.Machine(
            str(layout.machines / OUTSIDE),
            OUTSIDE,
            found[OUTSIDE],
            outside=True,
            outer_address=OUTER_ADDRESS,
            services=tuple(
                cloud.ports[name]
                for name in (
                    'keystone',
                    'placement',
                    'glance',
                    'api',
                    'neutron',
                    *(('cinder',) if cloud.volume else ()),
                    *services.PROXIES,
                )
            ),
        )
        if cloud.network
        else None
    )
    works = guests.kvm_works(guests.build(GUEST_DIRECTORY), GUEST_DIRECTORY)
    return replace(
        cloud, machines=made, console_machine=consoles, outside_machine=outside, virt_type='kvm' if works else 'qemu'
    )


def kind_of(layout: Layout, asked: str | None) -> str:
    """Return the kind of guests that the cloud has, or the one that is asked for if there is no cloud yet.

    Raises CloudError if another kind is asked for: hosts cannot change it.
    """
    there = kept(layout)
    has = there.get('guests', 'test') if there else ''
    if has and asked and has != asked:
        raise CloudError(
            f'this cloud has guests of kind {has!r}, and its servers with them; remove '
            f'{layout.shown(layout.var)}/ for another kind, or name another directory: VAR=…'
        )
    return has or asked or 'test'


def remembered(layout: Layout) -> Cloud:
    """Return the cloud as the last ``up`` made it, on the same ports."""
    kept_ports, settings = ports.load(layout.var / 'ports.json'), kept(layout)
    if not settings or not kept_ports:
        raise CloudError('there is no cloud here; start one with: make up')
    hosts = find_hosts(Path(settings['hosts']))
    if not set(ports.names_for(hosts)) <= set(kept_ports):
        raise CloudError('the cloud is described anew; bring it up to date with: make up')
    extra = Path(settings['extra']) if settings['extra'] else None
    made = Cloud(
        layout,
        kept_ports,
        load_secrets(layout),
        hosts,
        extra,
        cyborg=settings.get('cyborg', False),
        network=settings.get('network', False),
        volume=settings.get('volume', False),
    )
    return with_machines(made, settings.get('guests', 'test'))


def up(
    layout: Layout,
    *,
    hosts: Path = DEFAULT_HOSTS,
    extra: Path | None = None,
    only_services: bool = False,
    kind: str | None = None,
    accelerators: bool = False,
    network: bool = False,
    volume: bool = False,
) -> Cloud:
    """Bring everything up that is not; nothing is restarted whose configuration is as it was.

    ``only_services`` leaves the four daemons out. ``kind``: of GUESTS; None: those that the cloud has.
    ``accelerators``: with Cyborg, ``network``: with Neutron, ``volume``: with Cinder, which a cloud keeps from then on.
    """
    began = time.monotonic()
    with exclusive(layout):
        kind = kind_of(layout, kind)
        cloud = assemble(
            layout,
            hosts.resolve(),
            extra.resolve() if extra else None,
            kind,
            accelerators=accelerators or kept(layout).get('cyborg', False),
            network=network or kept(layout).get('network', False),
            volume=volume or kept(layout).get('volume', False),
        )
        check_requirements(cloud, only_services=only_services)
        say(f'Kilonova on one machine, under {layout.shown(layout.var)}/')
        services.write_configuration(cloud)
        write_private(
            settings_path(layout),
            json.dumps(
                {
                    'hosts': str(hosts.resolve()),
                    'extra': str(extra.resolve()) if extra else None,
                    'guests': kind,
                    'cyborg': cloud.cyborg,
                    'network': cloud.network,
                    'volume': cloud.volume,
                }
            )
            + '\n',
        )
        if cloud.machines:
            machine.prepare(
                layout.machines,
                [
                    *cloud.machines.values(),
                    *(other for other in (cloud.console_machine, cloud.outside_machine) if other),
                ],
            )
        if cloud.stored:
            cinder.share_path(layout).mkdir(parents=True, exist_ok=True)
        end_undescribed(cloud)
        if databases.prepare_services(cloud):
            say('  made the databases of the services')
        start_all(cloud, services.infrastructure(cloud))
        fill_services(cloud)
        if not only_services:
            start_all(cloud, services.machines(cloud))
            start_daemons(cloud)
            start_accelerators(cloud)
    tell(cloud, time.monotonic() - began, only_services=only_services)
    return cloud


def check_requirements(cloud: Cloud, *, only_services: bool) -> None:
    """Fail at once, with the reason, if something is not installed."""
    layout = cloud.layout
    needed = [str(RABBITMQ_SERVER), layout.services_bin('gunicorn'), layout.services_bin('keystone-manage')]
    if cloud.cyborg:
        needed += [
            layout.cyborg_bin(name) for name in ('gunicorn', 'cyborg-dbsync', 'cyborg-conductor', 'cyborg-agent')
        ]
    if cloud.network:
        needed += [layout.neutron_bin('gunicorn'), layout.neutron_bin('neutron-status')]
    if cloud.volume:
        needed += [layout.cinder_bin('cinder-manage')]
    if not only_services:
        needed += [layout.bin(f'kilonova-{name}') for name in ('manage', 'api', 'conductor', 'scheduler', 'compute')]
    missing = [path for path in needed if not databases.executable(path)]
    programs = ('epmd', 'qemu-img', 'qemu-io', *(('libvirtd',) if cloud.machines else ()))
    missing += [name for name in programs if not shutil.which(name)]
    missing += neutron.missing_programs(data_path=cloud.data_path) if cloud.network else []
    if missing:
        wanted = [
            name
            for name, there in (('cyborg', cloud.cyborg), ('network', cloud.network), ('volume', cloud.volume))
            if there
        ] or ['']
        targets = ' '.join(f'bootstrap-{name}'.removesuffix('-') for name in wanted)
        raise CloudError(f'not installed: {", ".join(missing)}; make {targets} installs it')


def end_orphans(layout: Layout) -> None:
    """End the processes that carry this cloud's marks and belong to no main process that is known.

    They are workers of a process that was killed, and processes that ran on when ``var/`` was removed.
    """
    orphans = {name for name in process.marked(layout.var).values() if not process.running(layout, name)}
    for name in process.stop(layout, orphans) if orphans else []:
        say(f'  ended {name}, which ran on from before')


def end_undescribed(cloud: Cloud) -> None:
    """End the computes whose description went away."""
    gone = set(process.recorded(cloud.layout)) - {service.name for service in services.table(cloud)}
    for name in process.stop(cloud.layout, gone) if gone else []:
        say(f'  ended {name}, which is not described any more')


def start_all(cloud: Cloud, wanted: Iterable[Service]) -> list[Service]:
    """Start the services that don't run, or run with an old configuration, and wait until all serve.

    Returns the started services.
    """
    started: list[Service] = []
    for service in wanted:
        if start_one(cloud, service):
            started.append(service)
            if service.first:
                # Without epmd, the broker would start one that outlives it; a machine's programs start in it.
                wait_ready(cloud, service)
    for service in started:
        wait_ready(cloud, service)
    return started


def start_one(cloud: Cloud, service: Service) -> bool:
    """Start a service unless it runs with this configuration; return whether it was started."""
    layout, digest = cloud.layout, service.digest
    record = process.running(layout, service.name)
    if record and record.digest == digest:
        return False
    again = 'restarting' if record else 'starting'
    end(layout, service)
    where = f'on 127.0.0.1:{service.port}' if service.port else ''
    say(f'  {again} {service.name:<14} {where}'.rstrip())
    process.start(layout, service.name, service.argv, env=service.env, digest=digest)
    return True


def end(layout: Layout, service: Service) -> None:
    """End a service, before it those that run in it."""
    if service.holds:
        process.stop(layout, service.holds)
    process.stop(layout, [service.name])


def wait_ready(cloud: Cloud, service: Service, within: float = READY_WITHIN) -> None:
    """Wait until a service with a readiness question serves."""
    if service.ready is not None:
        wait(cloud, [service], lambda: [] if service.ready and service.ready() else [service.name], within)


def wait(cloud: Cloud, watched: Iterable[Service], missing: Callable[[], list[str]], within: float) -> None:
    """Wait until ``missing()`` is empty; give up when a watched process ends or the time is over."""
    layout, watched = cloud.layout, list(watched)
    began = time.monotonic()
    deadline, shown = began + within, began
    while names := missing():
        for service in watched:
            if process.running(layout, service.name) is None:
                raise CloudError(f'{service.name} ended:\n{tail(layout.log(service.name))}')
        now = time.monotonic()
        if now > deadline:
            logs = '\n'.join(tail(layout.log(name)) for name in names[:2])
            raise CloudError(f'{", ".join(names)} not ready after {within:.0f} s\n{logs}')
        if now - shown > 5:
            shown = now
            say(f'  waiting for {", ".join(names)} ({now - began:.0f} s)')
        time.sleep(0.1)


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a log, with its name above."""
    text = path.read_text(errors='replace').splitlines()[-lines:] if path.exists() else ['(empty)']
    return '\n'.join([f'--- {path}', *text])


def fill_services(cloud: Cloud) -> None:
    """Make accounts, catalog and the demo image, unless the same were made before."""
    layout = cloud.layout
    mark = layout.data('keystone') / 'filled'
    served = {name: cloud.ports[name] for name in ports.NAMES}
    guest = guests.build(GUEST_DIRECTORY) if cloud.machines else None
    wanted = json.dumps(
        [
            served,
            identity.SERVICES,
            identity.ACCOUNTS,
            str(guest.directory) if guest else None,
            cloud.cyborg,
            cloud.network,
            cloud.volume,
        ]
    )
    if mark.exists() and mark.read_text() == wanted:
        return
    keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])
    identity.reconcile(
        keystone, cloud.ports, cloud.secrets, accelerators=cloud.cyborg, networks=cloud.network, volumes=cloud.volume
    )
    say('  made projects, users and the catalog in Keystone')
    if ensure_image(render.url(cloud.ports, 'glance'), keystone.token, layout):
        say('  uploaded the image demo to Glance')
    if guest is not None and ensure_guest(render.url(cloud.ports, 'glance'), keystone.token, guest):
        say('  uploaded the images guest and guest-direct (with guest-kernel and guest-ramdisk) to Glance')
    if cloud.network and neutron.seed(
        render.url(cloud.ports, 'neutron'), keystone.token, keystone.named('projects')['demo']['id']
    ):
        say(f'  made the network {neutron.NETWORK}')
    kinds = cinder.types(stored=cloud.stored)
    if cloud.volume and cinder.seed(render.url(cloud.ports, 'cinder'), keystone.token, kinds):
        say(f'  made the volume types {", ".join(kinds)}')
    mark.write_text(wanted)


def start_daemons(cloud: Cloud) -> None:
    """Prepare the databases, start the four daemons, then map new hosts."""
    wanted = services.daemons(cloud)
    if outdated := [service.name for service in wanted if stale(cloud, service)]:
        databases.prepare_kilonova(cloud)
        say('  brought the databases of Kilonova up to date')
        # Together, as each takes seconds to end; the conductor answers the others meanwhile.
        for name in process.stop(cloud.layout, set(outdated) - {'conductor'}):
            say(f'  ended {name}, whose configuration is new')
    start_all(cloud, wanted)
    await_reports(cloud, wanted)
    map_hosts(cloud)


def start_accelerators(cloud: Cloud) -> None:
    """Start Cyborg, and wait until it has the accelerators of all hosts.

    Its API, conductor and agents have done their part then. The agents start one after the other: if two report at
    once, their writes meet in SQLite, Cyborg gives one up, and that agent reports again only a minute later.
    """
    keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])
    url, kind = render.url(cloud.ports, 'cyborg'), 'qemu' if cloud.machines else 'test'
    started: list[Service] = []

    def unheard() -> list[str]:
        known = cyborg.hosts_known(url, keystone.token, cloud.hosts, kind)
        return sorted(
            {service.name for service in started} & {f'cyborg-agent-{host}' for host in set(cloud.hosts) - known}
        )

    for service in services.accelerators(cloud):
        start_all(cloud, [service])
        started.append(service)
        wait(cloud, started, unheard, READY_WITHIN)


def stale(cloud: Cloud, service: Service) -> bool:
    """Return whether a service does not run, or runs with an old configuration."""
    record = process.running(cloud.layout, service.name)
    return record is None or record.digest != service.digest


class Compute:
    """The compute API as the administrator."""

    def __init__(self, cloud: Cloud) -> None:
        self.url = render.url(cloud.ports, 'api')
        self._keystone = identity.Keystone(render.url(cloud.ports, 'keystone'), cloud.secrets['admin'])

    def services(self) -> list[dict[str, Any]]:
        """Return the rows of os-services at the first version that shows which are forced down."""
        # The first version that says which are forced down.
        return self._get('/os-services', '2.11')['services']

    def hypervisors(self) -> set[str]:
        """Return the names of all hypervisors."""
        return {row['hypervisor_hostname'] for row in self._get('/os-hypervisors')['hypervisors']}

    def _get(self, path: str, version: str = '2.1') -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = http.call(
            'GET', self.url + path, token=self._keystone.token, headers={'OpenStack-API-Version': f'compute {version}'}
        ).data
        return found


def silent(cloud: Cloud, wanted: Iterable[Service], rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the services that have not reported up since they were started.

    A compute also has to answer that it serves: the last report of the process before may be written after this one has
    started. A service that is forced down reports, and is shown as down until an administrator ends that.
    """
    names = []
    up_now = [row for row in rows if row['state'] == 'up' or row.get('forced_down')]
    for service in wanted:
        if service.reports is None:
            continue
        record = process.running(cloud.layout, service.name)
        binary, host = service.reports
        if (
            record is None
            or (host is not None and not serves(cloud, service.name))
            or not any(
                row['binary'] == binary and host in (None, row['host']) and reported(row) > record.began
                for row in up_now
            )
        ):
            names.append(service.name)
    return names


def serves(cloud: Cloud, name: str) -> bool:
    """Whether a daemon with a /health of its own says that it has started."""
    try:
        reply = http.send('GET', f'http://127.0.0.1:{cloud.ports[f"health-{name}"]}/health', timeout=5.0)
    except OSError:
        return False
    return bool(reply.data['state'] == 'serving')


def reported(row: dict[str, str]) -> float:
    """Return the time of a service's last report, in seconds since 1970, from the API's naive UTC time."""
    stamp = row.get('updated_at')
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp() if stamp else 0.0


def await_reports(cloud: Cloud, wanted: Iterable[Service], within: float = READY_WITHIN) -> None:
    """Wait until conductor, scheduler and computes have reported up."""
    compute, wanted = Compute(cloud), list(wanted)
    wait(cloud, wanted, lambda: silent(cloud, wanted, compute.services()), within)


def map_hosts(cloud: Cloud, within: float = 60.0) -> None:
    """Map computes that no cell has yet (the mark names those that have one), and wait until the API lists all."""
    compute, deadline = Compute(cloud), time.monotonic() + within
    mark = cloud.layout.data('kilonova') / 'mapped'
    mapped = set(mark.read_text().split('\n')) if mark.exists() else set()
    if not mapped.issuperset(cloud.hosts):
        # They have reported, so their nodes are there; the API lists those of mapped hosts only.
        databases.manage(cloud, 'cell_v2', 'discover_hosts')
        mark.write_text('\n'.join(sorted(mapped.union(cloud.hosts))))
    while missing := set(cloud.hosts) - compute.hypervisors():
        if time.monotonic() > deadline:
            raise CloudError(f'no hypervisor of {", ".join(sorted(missing))} after {within:.0f} s')
        time.sleep(0.2)


def tell(cloud: Cloud, seconds: float, *, only_services: bool) -> None:
    """Print what runs where, how to go on, and how to stop."""
    layout = cloud.layout
    rows = services.infrastructure(cloud) if only_services else services.table(cloud)
    say(f'up after {seconds:.1f} s:')
    for service in rows:
        record = process.running(layout, service.name)
        where = f'127.0.0.1:{service.port}' if service.port else '-'
        say(f'  {service.name:<14} {where:<16} pid {record.pid if record else "-"}')
    say(f'logs {layout.shown(layout.var)}/log/, configuration {layout.shown(layout.etc)}/')
    say('go on:')
    say(f'  export OS_CLIENT_CONFIG_FILE={layout.clouds} OS_CLOUD=kilonova-demo   # or kilonova-admin')
    say(f'  {layout.shown(layout.venv)}/bin/openstack server list')
    say('stop:')
    say('  make down')


def down(layout: Layout) -> None:
    """End what ``up`` started, the daemons first and the name server last. The data stays."""
    with exclusive(layout):
        names = set(process.recorded(layout)) | set(process.marked(layout.var).values())
        waves: list[set[str]] = [
            {
                name
                for name in names
                if name.startswith(('compute-', 'cyborg-agent-')) or name in ('api', 'scheduler', *services.PROXIES)
            },
            # Before the broker: without it Cyborg's conductor tries for seconds to reach it.
            {'conductor', 'cyborg', 'cyborg-conductor'} & names,
            {name for name in names if name.startswith(('libvirtd-', 'metadata-', 'switch-'))},
            {name for name in names if name.startswith('machine-')},
            {'placement', 'glance', 'keystone', 'neutron', 'ovn-hosts', 'ovn-northd', 'cinder'} & names,
            {'rabbitmq'} & names,
        ]
        waves.append(names.difference(*waves))
        ended: list[str] = []
        for wave in waves:
            ended += process.stop(layout, wave) if wave else []
    say(f'ended {", ".join(ended)}' if ended else 'nothing ran')


def pick(cloud: Cloud, name: str) -> Service:
    """Return a service of the table by name; ``kilonova-api`` is ``api``."""
    known = {service.name: service for service in services.table(cloud)}
    found = known.get(name) or known.get(name.removeprefix('kilonova-'))
    if found is None:
        raise CloudError(f'no service {name!r}; there are: {", ".join(known)}')
    return found


def stop_one(layout: Layout, name: str) -> None:
    """End one service and leave it ended."""
    with exclusive(layout):
        service = pick(remembered(layout), name)
        end(layout, service)
    say(f'ended {service.name}')


def start_again(layout: Layout, name: str, *, end_first: bool) -> None:
    """Start one service (after ending it when ``end_first``), wait until it serves."""
    with exclusive(layout):
        cloud = remembered(layout)
        services.write_configuration(cloud)
        service = pick(cloud, name)
        if end_first:
            end(layout, service)
        if not start_one(cloud, service):
            say(f'{service.name} runs already')
            return
        await_start(cloud, service)
        for inner in service.holds:
            start_one(cloud, pick(cloud, inner))
            await_start(cloud, pick(cloud, inner))
    say(f'{service.name} is up')


def manage(layout: Layout, arguments: Sequence[str]) -> int:
    """Run kilonova-manage on the cloud, with all files that its daemons read; its exit code."""
    cloud = remembered(layout)
    argv = [layout.bin('kilonova-manage'), *cloud.config_arguments, *arguments]
    return subprocess.run(argv, env=process.child_environment(layout, 'manage', {}), check=False).returncode


def await_start(cloud: Cloud, service: Service) -> None:
    """Wait until a single service serves.

    A service that only reports is looked up by the API. If the API does not run, the process is watched for a moment.
    """
    wait_ready(cloud, service)
    if service.reports and process.running(cloud.layout, 'api'):
        await_reports(cloud, [service])
    else:
        until = time.monotonic() + (2.0 if service.reports else 0.0)
        wait(cloud, [service], lambda: [service.name] if time.monotonic() < until else [], READY_WITHIN)


def follow_logs(layout: Layout, name: str | None) -> None:
    """Become ``tail -F`` of one log or of all."""
    if name:
        paths = [layout.log(pick(remembered(layout), name).name)]
    else:
        paths = sorted((layout.var / 'log').glob('*.log'))
    if not paths:
        raise CloudError('there are no logs yet; start a cloud with: make up')
    os.chdir(ROOT)
    os.execvp('tail', ['tail', '-n', '20', '-F', *(layout.shown(path) for path in paths)])
