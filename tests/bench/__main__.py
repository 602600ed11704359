"""``python -m tests.bench``: what boots and lists cost on a one-machine cloud of its own.

Prints CPU-seconds by process, wall times and resident memory: of a hundred boots, of a hundred more on the same hosts
(their ratio tells whether anything grows with what is there), of reads (list, detail, show, flavors) by users who
have ten, a hundred and a thousand servers; of boots with a device of each kind, with a port, and with a volume; and of
idle clouds: two hosts without servers, two with a hundred each, and twenty.

    python -m tests.bench devices           # of boots with a device of each kind only; --help names the parts
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from oslo_utils import uuidutils

from kilonova import conf as kilonova_conf
from kilonova.cmd.daemon import parts
from kilonova.db import engine
from kilonova.db.queries import instance_mappings, instances, request_specs
from kilonova.db.queries.operations import operations
from tests.bench import meter
from tests.fixtures.hosts import pci_device, write_host
from tests.fixtures.mdev import NVIDIA35, made_mdev, mdev_card
from tests.fixtures.servers import put_server
from tests.integration.site import Site
from tools.cloud import control, http, render

HOSTS = ('big1', 'big2')
GPUS_A_HOST = 16
SERVERS = 100
# Every so many servers of a hundred ask for a GPU.
WITH_GPU = 10
# vGPUs of each host, all on one card; servers that are booted of each kind of device, and how flavors ask for it.
VGPUS_A_HOST, CARD = 16, '0000:84:00.0'
OF_A_KIND, TURNS = 24, 2
# Seconds from one of these boots to the next: the slowest service keeps up. Boots in a burst cost less each, so kinds
# are compared at one pace.
PACE = 0.5
# Cyborg's cards of each host, and the device profile of one.
FPGAS_A_HOST, FPGA, PROFILE = 16, ('10ee', '5020'), 'bench'
KINDS = {
    'none': {},
    'GPU': {'pci_passthrough:alias': 'QuadroM4000-video:1'},
    'vGPU': {'resources:VGPU': '1'},
    'accelerator': {'accel:device_profile': PROFILE},
}
AT_ONCE = 8
LISTED = (10, 100, 1000)
READS = 15
NOBODY = 'bench-nobody'
IDLE_SECONDS, KINDS_IDLE_SECONDS = 60.0, 20.0
IDLE_HOSTS = 20
OFTEN, RARE = ([f'{kind}{number}' for number in range(IDLE_HOSTS // 2)] for kind in ('often', 'seldom'))
# A cloud has settled when Placement, where hosts tell what they have, needs less than so much in so many seconds.
SETTLED_CPU, SETTLED_SECONDS = 0.02, 5.0
# Seconds between two reports of a host: as the one-machine cloud is configured, and those of every second host of the
# large idle cloud, so that what a report costs a host stands apart from what an idle host costs anyway.
REPORT_INTERVAL, SELDOM = 2.0, 8.0
BOOTED_WITHIN, REPORTED_WITHIN = 120.0, 180.0


@dataclass(frozen=True)
class Spent:
    """One measurement: wall seconds and CPU-seconds by service."""

    wall: float
    cpu: dict[str, float]


class BenchSite(Site):
    """A cloud of two hosts that take all the servers, and its databases read beside it."""

    def __init__(
        self,
        directory: Path,
        names: Sequence[str] = HOSTS,
        seldom: Sequence[str] = (),
        accelerators: bool = False,
        network: bool = False,
        volume: bool = False,
    ) -> None:
        super().__init__(directory, accelerators=accelerators, network=network, volume=volume)
        self.hosts = directory / 'hosts'
        self.hosts.mkdir()
        for host in names:
            write_host(
                self.hosts,
                host,
                [f'0000:{bus:02x}:00.0' for bus in range(0x20, 0x20 + GPUS_A_HOST)],
                [
                    mdev_card(CARD, {NVIDIA35: 0}),
                    *(
                        made_mdev(str(uuid.uuid5(uuid.NAMESPACE_DNS, f'{host}{number}')), CARD)
                        for number in range(VGPUS_A_HOST)
                    ),
                    *(
                        pci_device(f'0000:{bus:02x}:00.0', *FPGA, pci_class='0x120000')
                        for bus in range(0xA0, 0xA0 + FPGAS_A_HOST if accelerators else 0xA0)
                    ),
                ],
                memory_gib=1024,
            )
            (self.hosts / f'{host}.conf').write_text(
                (f'[DEFAULT]\nreport_interval = {SELDOM:g}\n' if host in seldom else '')
                + '[pci]\ndevice_spec = { "vendor_id": "10de", "product_id": "13f1" }\n'
                f'[devices]\nenabled_mdev_types = {NVIDIA35}\n'
            )
        self.databases: engine.Databases

    def up(self) -> None:
        """All services, and the databases opened."""
        self.cloud = control.up(
            self.layout,
            hosts=self.hosts,
            extra=self.extra,
            accelerators=self._accelerators,
            network=self._network,
            volume=self._volume,
        )
        data = self.layout.data('kilonova')
        self.databases = engine.Databases(render.sqlite(data / 'api.sqlite'), render.sqlite(data / 'cell1.sqlite'))

    def wait(self, servers: int) -> None:
        """Until that many servers are there and nothing works on any; asks the databases, which costs no daemon."""
        deadline = time.monotonic() + BOOTED_WITHIN
        table = instances.instances
        while True:
            with self.databases.main().read() as conn:
                states = dict(
                    conn.execute(
                        sa.select(table.c.vm_state, sa.func.count())
                        .where(table.c.deleted == 0)
                        .group_by(table.c.vm_state)
                    ).all()
                )
                busy = conn.execute(sa.select(sa.func.count()).select_from(operations)).scalar_one()
            if states == {'active': servers} and not busy:
                return
            if 'error' in states or time.monotonic() > deadline:
                raise SystemExit(f'of {servers} servers: {states}, {busy} operations\n' + self.tell(self.servers()))
            time.sleep(0.05)

    def meter(self, act: Any) -> Spent:
        """What ``act()`` cost."""
        before, began = meter.cpu_seconds(self.layout.var), time.monotonic()
        act()
        wall = time.monotonic() - began
        return Spent(wall, meter.used(before, meter.cpu_seconds(self.layout.var)))


def _await_cards(site: BenchSite) -> None:
    """Cyborg's agents report once a while."""
    deadline = time.monotonic() + REPORTED_WITHIN
    while True:
        rows = http.call('GET', site.url('placement') + '/resource_providers', token=site.token('admin')).data
        if sum('_fpga_' in row['name'] for row in rows['resource_providers']) >= FPGAS_A_HOST * len(HOSTS):
            return
        if time.monotonic() > deadline:
            raise SystemExit('Cyborg has not reported its cards')
        time.sleep(1)


def _cyborgs_own(site: BenchSite, idle: dict[str, float]) -> dict[str, float]:
    """CPU ms of other services for one accelerator that is bound without a boot: Cyborg's calls over RabbitMQ, and its
    log-in to Keystone for the event that it sends, with a new token each time."""
    conf = kilonova_conf.new()
    conf(['--config-file', str(site.layout.conf)], project='kilonova', default_config_dirs=[])
    client = parts.accelerators(conf)
    rows = http.call('GET', site.url('placement') + '/resource_providers', token=site.token('admin')).data
    cards = [row for row in rows['resource_providers'] if '_fpga_' in row['name']]
    # They never get a host: the compute API answers Cyborg's event as for a server that is about to be built.
    site.flavor('bench-nowhere', specs={'pci_passthrough:alias': f'QuadroM4000-video:{GPUS_A_HOST + 1}'})
    servers = [site.create(f'nowhere-{number}', 'bench-nowhere') for number in range(OF_A_KIND)]
    while {row['status'] for row in site.servers().values()} != {'ERROR'}:
        time.sleep(0.5)
    made: list[str] = []

    def bind(number: int) -> None:
        (request,) = client.create(PROFILE)
        made.append(request.uuid)
        client.bind(
            {request.uuid: cards[number]['uuid']},
            instance_uuid=servers[number],
            hostname=cards[number]['name'].partition('_')[0],
            project_id=servers[number],
        )

    cost = site.meter(lambda: _paced(bind))
    client.delete(made)
    site.clean()
    return {
        service: (1000 * cost.cpu[service] - idle.get(service, 0.0) * cost.wall) / OF_A_KIND
        for service in ('rabbitmq', 'keystone')
    }


def _paced(act: Callable[[int], object]) -> None:
    for number in range(OF_A_KIND):
        began = time.monotonic()
        act(number)
        time.sleep(max(0.0, began + PACE - time.monotonic()))


def measure_kinds(site: BenchSite) -> None:
    """Boots of servers with a device of each kind, in turns: what one costs. Cyborg's own share stands apart."""
    site.up()
    _await_cards(site)
    trait = f'trait:CUSTOM_FPGA_{"_".join(FPGA).upper()}'
    http.call(
        'POST',
        site.url('cyborg') + '/device_profiles',
        [{'name': PROFILE, 'groups': [{'resources:FPGA': '1', trait: 'required'}]}],
        token=site.token('admin'),
    )
    for kind, extra_specs in KINDS.items():
        site.flavor(f'bench-{kind}', specs=extra_specs)
    # What services cost anyway goes on while a slow one is waited for, and is no part of a boot.
    idle = measure_idle(site, KINDS_IDLE_SECONDS)
    apart = _cyborgs_own(site, idle)
    spent = _by_kind(site, idle, {kind: (f'bench-{kind}', {}) for kind in KINDS})
    table(
        f'CPU ms per boot with a device, {TURNS} times {OF_A_KIND} of each kind, less what services cost when idle',
        spent,
    )
    own = {
        kind: sum(ms for service, ms in costs.items() if service not in meter.SUMS and not service.startswith('cyborg'))
        for kind, costs in spent.items()
    }
    print(
        "Of it Cyborg's own share, as it is without a boot: "
        + ', '.join(f'{service} {ms:.1f}' for service, ms in apart.items())
    )
    own['accelerator'] -= sum(apart.values())
    for kind in ('vGPU', 'accelerator'):
        print(f'a boot with one {kind} costs {own[kind] / own["GPU"]:.2f} times one with a GPU, without Cyborg itself')


def _by_kind(
    site: BenchSite, idle: dict[str, float], kinds: dict[str, tuple[str, dict[str, Any]]]
) -> dict[str, dict[str, float]]:
    """{kind: CPU ms of each service for one boot}, in turns, less what it costs when idle. ``kinds``: the flavor of
    each, and what its creates say besides."""
    spent: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    for turn in range(TURNS + 1):
        for kind, costs in spent.items():

            def act(kind: str = kind, name: str = f'{kind}-{turn}') -> None:
                flavor, asked = kinds[kind]
                _paced(lambda number: site.create(f'{name}-{number}', flavor, **asked))
                site.wait(OF_A_KIND)

            cost = site.meter(act)
            site.clean()
            # The first turn warms up.
            for service, seconds in cost.cpu.items() if turn else ():
                more = 1000 * seconds - idle.get(service, 0.0) * cost.wall
                costs[service] = costs.get(service, 0.0) + more / (TURNS * OF_A_KIND)
    return spent


def measure_ports_and_volumes(site: BenchSite) -> None:
    """Boots of servers with a port, with a volume to boot from that is made for them, with both and with neither, in
    turns: what one costs, Kilonova's share and that of Neutron and Cinder, and how often it asks them."""
    site.up()
    (network,) = [
        row['id']
        for row in http.call('GET', site.url('neutron') + '/v2.0/networks', token=site.token('demo')).data['networks']
    ]
    # The class that says how much a project may have, unless it is said of the project.
    http.call(
        'PUT',
        site.url('cinder') + '/os-quota-class-sets/default',
        {'quota_class_set': {'volumes': -1, 'gigabytes': -1}},
        token=site.token('admin'),
    )
    flavor = site.flavor('bench-services')
    idle = measure_idle(site, KINDS_IDLE_SECONDS)
    port: dict[str, Any] = {'networks': [{'uuid': network}]}
    volume: dict[str, Any] = {
        'imageRef': '',
        'block_device_mapping_v2': [
            {
                'source_type': 'image',
                'destination_type': 'volume',
                'uuid': site.image,
                'volume_size': 1,
                'boot_index': 0,
                'delete_on_termination': True,
            }
        ],
    }
    spent = _by_kind(
        site,
        idle,
        {'none': (flavor, {}), 'port': (flavor, port), 'volume': (flavor, volume), 'both': (flavor, port | volume)},
    )
    table(
        f'CPU ms per boot with a port or a volume, {TURNS} times {OF_A_KIND} of each kind, less what services cost '
        'when idle',
        spent,
    )
    own, theirs = (
        {
            kind: sum(
                ms
                for service, ms in costs.items()
                if service not in meter.SUMS and service.startswith(('neutron', 'ovn', 'cinder')) == is_theirs
            )
            for kind, costs in spent.items()
        }
        for is_theirs in (False, True)
    )
    for kind in ('port', 'volume', 'both'):
        print(
            f'a boot with {kind}: {own[kind] / own["none"]:.2f} times one without, without Neutron and Cinder '
            f'themselves, which need {theirs[kind]:.0f} ms'
        )
    sizes = {service: site.log_size(service) for service in ('neutron', 'cinder')}
    site.boot(OF_A_KIND, flavor, **port, **volume)
    for service, path in (('neutron', ' /v2.0/'), ('cinder', ' /v3/')):
        asked = [line for line in site.log_after(service, sizes[service]).splitlines() if path in line]
        print(f'{len(asked) / OF_A_KIND:.1f} requests to {service.capitalize()} a boot with both')


def boot(site: BenchSite, already: int, count: int) -> None:
    """Create servers, several requests at a time, and wait until all are ACTIVE."""
    site.at_once(
        lambda number: site.create(f'bench-{already + number}', 'bench-gpu' if number % WITH_GPU == 0 else 'bench'),
        range(count),
        AT_ONCE,
    )
    site.wait(already + count)


def fill(site: BenchSite, count: int) -> None:
    """Copy a server's rows until the databases hold ``count`` servers more."""
    with site.databases.main().read() as conn:
        uuid = conn.execute(sa.select(instances.instances.c.uuid).limit(1)).scalar_one()
        row = instances.get(conn, uuid)
        kept = instances.get_system_metadata(conn, uuid)
    assert row is not None
    values, extra = instances.split(row)
    del values['id']
    with site.databases.api().read() as conn:
        spec = request_specs.get(conn, uuid)
        mapping = instance_mappings.instance_mappings
        mapped = dict(conn.execute(sa.select(mapping).where(mapping.c.instance_uuid == uuid)).mappings().one())
    assert spec is not None
    uuids = [uuidutils.generate_uuid() for _ in range(count)]
    with site.databases.main().write() as conn:
        for number, new in enumerate(uuids):
            put_server(conn, {**values, 'uuid': new, 'display_name': f'row-{number}'}, extra, kept, {})
    with site.databases.api().write() as conn:
        request_specs.create(conn, [(new, spec['spec']) for new in uuids])
        instance_mappings.create(
            conn,
            [
                {'instance_uuid': new, **{name: mapped[name] for name in ('project_id', 'user_id', 'cell_id')}}
                for new in uuids
            ],
        )


def own(site: BenchSite, count: int) -> str:
    """Let the newest ``count`` servers be the user's, the others somebody else's; the id of the newest."""
    table = instances.instances
    with site.databases.main().write() as conn:
        rows = conn.execute(
            sa.select(table.c.uuid, table.c.project_id).where(table.c.deleted == 0).order_by(table.c.id.desc())
        ).all()
        owner = next(row.project_id for row in rows if row.project_id != NOBODY)
        mine = [row.uuid for row in rows[:count]]
        conn.execute(sa.update(table).where(table.c.deleted == 0).values(project_id=NOBODY))
        conn.execute(sa.update(table).where(table.c.uuid.in_(mine)).values(project_id=owner))
    return mine[0]


def read(site: BenchSite, path: str) -> list[float]:
    """Wall seconds of each of several reads, with the first one left out."""
    times = []
    for _ in range(READS + 1):
        began = time.monotonic()
        site.call('GET', path)
        times.append(time.monotonic() - began)
    return times[1:]


def measure_reads(site: BenchSite) -> dict[str, dict[int, tuple[float, float]]]:
    """{what: {servers: (CPU-seconds of the API, p50 of the wall seconds), each of one request}}."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for count in LISTED:
        server = own(site, count)
        assert len(site.call('GET', '/servers')['servers']) == count
        for name, path in (
            ('list', '/servers'),
            ('detail', '/servers/detail'),
            ('show', f'/servers/{server}'),
            ('flavors', '/flavors/detail'),
        ):
            times: list[float] = []
            spent = site.meter(lambda path=path, times=times: times.extend(read(site, path)))
            found.setdefault(name, {})[count] = spent.cpu['api'] / (READS + 1), statistics.median(times)
    return found


def table_of_reads(found: dict[str, dict[int, tuple[float, float]]]) -> None:
    """Print one line a read, a pair of columns a number of servers."""
    print(
        f'\n{READS} reads in turn by a user with so many of {max(LISTED)} servers: CPU s of the api, wall p50 s\n'
        f'{"":<16}' + ''.join(f'{count:>18}' for count in LISTED)
    )
    for name, by_count in found.items():
        print(f'{name:<16}' + ''.join(f'{cpu:>10.4f}{wall:>8.4f}' for cpu, wall in by_count.values()))


def table(title: str, columns: dict[str, dict[str, float]], ratio: bool = False) -> None:
    """Print one line a service, largest first."""
    names = list(columns)
    print(f'\n{title}\n{"":<16}' + ''.join(f'{name:>14}' for name in names) + (f'{"ratio":>10}' if ratio else ''))
    last = columns[names[-1]]
    for service in sorted(last, key=lambda name: (name == 'all', -last[name])):
        values = [columns[name].get(service, 0.0) for name in names]
        if max(values) < 0.05:
            continue
        line = f'{service:<16}' + ''.join(f'{value:>14.1f}' for value in values)
        print(line + (f'{values[-1] / values[0]:>10.2f}' if ratio and values[0] else ''))


def run(site: BenchSite) -> tuple[dict[str, float], dict[str, float]]:
    """Boots and reads; what the idle cloud cost before the boots, and after them."""
    site.up()
    site.flavor('bench')
    site.flavor('bench-gpu', gpus=1)
    boot(site, 0, 2 * len(HOSTS))
    site.clean()
    started = meter.resident_mib(site.layout.var)

    idle = measure_idle(site)
    first = site.meter(lambda: boot(site, 0, SERVERS))
    second = site.meter(lambda: boot(site, SERVERS, SERVERS))
    full = measure_idle(site)
    fill(site, max(LISTED) - 2 * SERVERS)
    reads = measure_reads(site)

    print(
        f'\n{SERVERS} boots on {len(HOSTS)} hosts, every {WITH_GPU}th with a GPU, {AT_ONCE} requests at a time; '
        f'then {SERVERS} more'
    )
    print(
        f'wall s: first {first.wall:.1f}, second {second.wall:.1f}, ratio {second.wall / first.wall:.2f}; '
        f'per boot {first.wall / SERVERS:.3f} and {second.wall / SERVERS:.3f}'
    )
    each = 1000 / SERVERS
    table(
        'CPU ms per boot',
        {
            name: {service: seconds * each for service, seconds in spent.cpu.items()}
            for name, spent in (('first 100', first), ('second 100', second))
        },
        ratio=True,
    )
    table_of_reads(reads)
    table('resident MiB', {'after start': started, 'at the end': meter.resident_mib(site.layout.var)})
    return idle, full


def measure_idle(site: BenchSite, seconds: float = IDLE_SECONDS) -> dict[str, float]:
    """CPU-milliseconds a second of each service while nobody asks for anything."""
    spent = site.meter(lambda: time.sleep(seconds))
    return {service: 1000 * seconds / spent.wall for service, seconds in spent.cpu.items()}


def table_of_idle(few: dict[str, float], full: dict[str, float], many: dict[str, float]) -> None:
    """Print the clouds of two hosts, without servers and with them, and of many; and what one report costs: a conductor
    by what the hosts in addition cost it, a host by what those that report each REPORT_INTERVAL cost more than those
    that report each SELDOM."""
    hosts = len(HOSTS), IDLE_HOSTS
    together = [
        {name: spent for name, spent in one.items() if not name.startswith('compute-')} for one in (few, full, many)
    ]
    table(
        f'idle: CPU ms per second; hosts report each {REPORT_INTERVAL:g} s, every second one of the {hosts[1]} each '
        f'{SELDOM:g} s',
        dict(zip((f'{hosts[0]} hosts', f'{SERVERS} a host', f'{hosts[1]} hosts'), together, strict=True)),
    )
    often, seldom = (statistics.mean(many[f'compute-{name}'] for name in names) for names in (OFTEN, RARE))
    rates = len(HOSTS) / REPORT_INTERVAL, len(OFTEN) / REPORT_INTERVAL + len(RARE) / SELDOM
    conductor = (many['conductor'] - few['conductor']) / (rates[1] - rates[0])
    host = (often - seldom) / (1 / REPORT_INTERVAL - 1 / SELDOM)
    print(
        f'a report costs: conductor {conductor:.2f} ms, host {host:.2f} ms; an idle host without its reports '
        f'{often - host / REPORT_INTERVAL:.2f} ms a second'
    )


@contextlib.contextmanager
def cloud(
    names: Sequence[str] = HOSTS,
    seldom: Sequence[str] = (),
    accelerators: bool = False,
    network: bool = False,
    volume: bool = False,
) -> Iterator[BenchSite]:
    """A cloud of these hosts, not started yet; nothing of it is left."""
    directory = Path(tempfile.mkdtemp(prefix='kilonova-bench-'))
    site = BenchSite(directory, names, seldom, accelerators, network, volume)
    try:
        yield site
    finally:
        site.end()
        shutil.rmtree(directory, ignore_errors=True)


def servers() -> None:
    """Boots and reads of servers without anything beside, and idle clouds."""
    with cloud() as site:
        few, full = run(site)
    with cloud(OFTEN + RARE, seldom=RARE) as site:
        site.up()
        while site.meter(lambda: time.sleep(SETTLED_SECONDS)).cpu['placement'] > SETTLED_CPU:
            print('the hosts still tell what they have')
        table_of_idle(few, full, measure_idle(site))


def devices() -> None:
    """Boots with a device of each kind."""
    with cloud(accelerators=True) as site:
        measure_kinds(site)


def ports() -> None:
    """Boots with a port, with a volume, and with both."""
    with cloud(network=True, volume=True) as site:
        measure_ports_and_volumes(site)


PARTS: dict[str, Callable[[], None]] = {part.__name__: part for part in (servers, devices, ports)}


def _part(name: str) -> str:
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"'{name}' is no part of it; accepted: {', '.join(PARTS)}")
    return name


def main(arguments: Sequence[str]) -> int:
    """What is measured, by the names of PARTS; all without any."""
    parser = argparse.ArgumentParser(
        prog='python -m tests.bench',
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
        epilog='parts:\n' + '\n'.join(f'  {name:9} {part.__doc__}' for name, part in PARTS.items()),
    )
    parser.add_argument('parts', nargs='*', type=_part, help='what is measured; all without any')
    chosen, began = parser.parse_args(arguments).parts, time.monotonic()
    for name in chosen or PARTS:
        PARTS[name]()
    print(f'\nmeasured in {time.monotonic() - began:.0f} s')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
