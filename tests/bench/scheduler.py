"""``make bench-scheduler``: what one selection costs, by number of hosts and kind of request.

The real scheduler code over a real cell database (SQLite) with synthetic hosts of eight GPUs each. First with
Placement's answers made up (a look says yes, a claim succeeds), so that the scheduler's own share shows; then with the
real Placement in the same process, on SQLite and on MariaDB, its share measured apart. Prints selections a second,
p50, p95, p99, CPU a selection, memory, and the growth from a thousand hosts to ten thousand.

    python -m tests.bench.scheduler [recorded] [sqlite] [mariadb]
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kilonova import conf as kilonova_conf
from kilonova import errors, objects
from kilonova.context import RequestContext
from kilonova.db import engine, migration
from kilonova.db.models.cell import ComputeNode, Service
from kilonova.db.queries import cells as cell_queries
from kilonova.scheduler.manager import SchedulerManager
from tests.unit.scheduler.builders import GPU, device, node, pools, spec, uuid

GPUS = [f'0000:{bus:02x}:00.0' for bus in range(0x20, 0x28)]
SIZES = (100, 1000, 10_000)
SELECTIONS = {'recorded': 500, 'sqlite': 50, 'mariadb': 50}
GROUP = 50
# For the cost of decisions: selections in a block, pairs of blocks. Many short ones, as machines change their pace.
BLOCK, PAIRS = 40, 60
OLD = dt.datetime(2026, 1, 1)
SMALL = {'vcpus': 1, 'memory_mb': 1024, 'root_gb': 1}


@dataclass
class Stopwatch:
    """CPU and wall seconds that Placement took."""

    cpu: float = 0.0
    wall: float = 0.0
    requests: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall
        self.requests += 1


class Recorded:
    """A Placement that agrees at once. Asked for candidates it ends the run: our own view should have known."""

    def __init__(self) -> None:
        self.watch = Stopwatch()

    def qualifies(self, *_: Any) -> bool:
        return True

    def claim(self, *_: Any, **__: Any) -> None:
        """Granted."""

    def delete_allocations(self, *_: Any) -> bool:
        return True

    def allocation_candidates(self, query: Any) -> dict[str, Any]:
        raise errors.NoValidHost(reason=f'the direct way had no answer to {query}')


@dataclass
class Figures:
    """Of one kind of request on one number of hosts; seconds."""

    times: list[float]
    cpu: float
    placement: Stopwatch = field(default_factory=Stopwatch)

    def quantile(self, share: float) -> float:
        return sorted(self.times)[min(int(len(self.times) * share), len(self.times) - 1)]

    @property
    def own_cpu(self) -> float:
        """CPU-seconds a selection without Placement's."""
        return (self.cpu - self.placement.cpu) / len(self.times)


class Rig:
    """Databases with so many hosts, and a scheduler over them."""

    def __init__(self, directory: Path, hosts: int, placement: Any, keep: int | None = None) -> None:
        """``keep``: [scheduler]decisions_keep, None: the default."""
        urls = {name: f'sqlite:///{directory}/{name}-{hosts}-{keep}.db' for name in ('api', 'cell0', 'cell1')}
        for name, url in urls.items():
            database = engine.Database(url, name)
            migration.sync(database, 'api' if name == 'api' else 'cell')
            database.dispose()
        self.databases = engine.Databases(urls['api'], urls['cell1'])
        cell_queries.map_cell0(self.databases, urls['cell0'])
        cell_queries.create_cell(
            self.databases, transport_url='fake://cell1/', database_connection=urls['cell1'], name='cell1'
        )
        cells = cell_queries.CellDatabases(self.databases)
        self._fill(cells.enabled()[0], hosts)
        conf = kilonova_conf.new()
        conf([], project='kilonova', default_config_files=[], default_config_dirs=[])
        conf.set_override('pci_in_placement', True, 'filter_scheduler')
        conf.set_override('service_down_time', 3600)
        if keep is not None:
            conf.set_override('decisions_keep', keep, 'scheduler')
        self.manager = SchedulerManager(conf, self.databases, cells, placement)
        self.manager.start()
        self.ctxt = RequestContext(user_id='bench', project_id='bench', overwrite=False)
        self.number = 0

    @staticmethod
    def _fill(cell: Any, hosts: int) -> None:
        now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
        nodes, services = [], []
        for number in range(hosts):
            name = f'host{number}'
            row = node(name, pci_stats=pools(*GPUS, host=name), created_at=OLD)
            nodes.append({key: value for key, value in row.items() if key not in ('id', 'service')})
            services.append(
                {
                    'uuid': uuid(f'service of {name}'),
                    'host': name,
                    'binary': 'nova-compute',
                    'topic': 'compute',
                    'last_seen_up': now,
                    'created_at': OLD,
                }
            )
        with cell.write() as connection:
            connection.execute(ComputeNode.__table__.insert(), nodes)
            connection.execute(Service.__table__.insert(), services)

    def request(self, kind: str) -> tuple[objects.RequestSpec, str]:
        """A request of one of KINDS and its server."""
        self.number += 1
        server = uuid(f'{kind} {self.number}')
        made = spec(gpus=KINDS[kind], instance_uuid=server, flavor_values=SMALL)
        if kind == 'group of 50':
            if self.number % GROUP == 1 or not hasattr(self, 'group'):
                self.group = objects.InstanceGroup(policy='anti-affinity', members=[], hosts=[])
            made.instance_group = self.group
        return made, server

    def select(self, request: tuple[objects.RequestSpec, str]) -> None:
        self.manager.select_destinations(self.ctxt, request[0], [request[1]])

    def forget(self, servers: list[str], placement: Any) -> None:
        """The hosts are empty again."""
        table = self.manager._snapshot.table
        for server in servers:
            placement.delete_allocations(server)
            table.reservations.give_back(server)

    def close(self) -> None:
        self.manager.stop()


KINDS: dict[str, tuple[int, ...]] = {'flat': (), '1 GPU': (1,), '8 GPUs': (8,), 'group of 50': ()}


def measure(rig: Rig, kind: str, count: int, placement: Any, watch: Stopwatch) -> Figures:
    """Time so many selections after a warm one, and empty the hosts again."""
    warm = rig.request(kind)
    rig.select(warm)
    requests = [rig.request(kind) for _ in range(count)]
    before = watch.cpu, watch.wall, watch.requests
    times = []
    cpu = time.process_time()
    for request in requests:
        began = time.perf_counter()
        rig.select(request)
        times.append(time.perf_counter() - began)
    figures = Figures(
        times,
        time.process_time() - cpu,
        Stopwatch(watch.cpu - before[0], watch.wall - before[1], watch.requests - before[2]),
    )
    rig.forget([server for _, server in (warm, *requests)], placement)
    return figures


def report(name: str, hosts: int, kind: str, figures: Figures) -> None:
    count = len(figures.times)
    quantiles = '  '.join(f'p{percent} {figures.quantile(percent / 100) * 1e3:7.2f}' for percent in (50, 95, 99))
    shares = (
        ''
        if name == 'recorded'
        else (
            f'  Placement {figures.placement.wall / count * 1e3:7.2f} ms in '
            f'{figures.placement.requests / count:.1f} requests'
        )
    )
    print(
        f'{name:9}{hosts:7}  {kind:12}{count / sum(figures.times):8.0f}/s  {quantiles} ms  own CPU '
        f'{figures.own_cpu * 1e3:6.2f} ms{shares}',
        flush=True,
    )


def resident_mib() -> float:
    """Memory of this process, MiB."""
    text = Path('/proc/self/status').read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith('VmRSS')) / 1024


# --- with the real Placement ------------------------------------------------------------------------------------------
def fill_placement(hosts: int) -> None:
    """The providers that the hosts would have reported, written into Placement's own tables."""
    import os_traits
    import sqlalchemy as sa
    from placement.db.sqlalchemy import models

    from tests.fixtures import placement as fixture

    shared = fixture.shared()
    shared.reset()
    # One host by the service itself: it makes the classes and traits.
    shared.host('first', pci={'first_gpu': GPU})
    with fixture.app().engine.begin() as connection:
        classes = dict(connection.execute(sa.select(models.ResourceClass.name, models.ResourceClass.id)).all())
        traits = dict(connection.execute(sa.select(models.Trait.name, models.Trait.id)).all())
        start = connection.execute(sa.select(sa.func.max(models.ResourceProvider.id))).scalar_one() + 1
        providers, inventories, tagged = [], [], []

        def add(name: str, identity: str, root: int, parent: int | None, given: dict[str, int]) -> int:
            number = start + len(providers)
            providers.append(
                {
                    'id': number,
                    'uuid': identity,
                    'name': name,
                    'generation': 1,
                    'root_provider_id': root or number,
                    'parent_provider_id': parent,
                }
            )
            inventories.extend(
                {
                    'resource_provider_id': number,
                    'resource_class_id': classes[resource],
                    'total': total,
                    'reserved': 0,
                    'min_unit': 1,
                    'max_unit': total,
                    'step_size': 1,
                    'allocation_ratio': 4.0 if resource == 'VCPU' else 1.0,
                }
                for resource, total in given.items()
            )
            tagged.append({'trait_id': traits[os_traits.OWNER_NOVA], 'resource_provider_id': number})
            return number

        for number in range(hosts):
            name = f'host{number}'
            root = add(name, uuid(name), 0, None, {'VCPU': 64, 'MEMORY_MB': 262144, 'DISK_GB': 1000})
            for address in GPUS:
                add(f'{name}_{address}', device(name, address), root, root, {GPU: 1})
        # Roots first: children point at them.
        connection.execute(
            models.ResourceProvider.__table__.insert(),
            sorted(providers, key=lambda row: row['parent_provider_id'] is not None),
        )
        connection.execute(models.Inventory.__table__.insert(), inventories)
        connection.execute(models.ResourceProviderTrait.__table__.insert(), tagged)


def real_placement(watch: Stopwatch) -> Any:
    """Its client, timed."""
    from tests.fixtures import placement as fixture

    shared = fixture.shared()
    running: list[Any] = []

    def before(method: str, path: str) -> None:
        running.append(watch.running())
        running[-1].__enter__()

    def after(method: str, path: str) -> None:
        running.pop().__exit__(None, None, None)

    shared.before, shared.after = before, after
    return shared.client


def candidates(watch: Stopwatch, rig: Rig) -> float:
    """Wall seconds of one question for candidates, which is what is not asked."""
    request, server = rig.request('1 GPU')
    began = time.perf_counter()
    rig.manager.select_destinations(rig.ctxt, request, [server], claim=False)
    return time.perf_counter() - began


# --- decisions --------------------------------------------------------------------------------------------------------
def decisions(directory: Path, hosts: int, placement: Any, watch: Stopwatch) -> None:
    """What keeping the story of each decision adds, its writing in the background included: two schedulers that take
    turns, one of which keeps nothing; the median of what two neighbouring blocks differ by, and the quarters."""
    rigs = {'kept': Rig(directory, hosts, placement, 10_000), 'not kept': Rig(directory, hosts, placement, 0)}
    for kind in ('flat', '1 GPU'):
        added, plain = [], []
        for pair in range(PAIRS):
            spent = {}
            for name in sorted(rigs, reverse=bool(pair % 2)):
                figures = measure(rigs[name], kind, BLOCK, placement, watch)
                before = time.process_time()
                rigs[name].manager._decisions.flush()
                spent[name] = figures.own_cpu + (time.process_time() - before) / BLOCK
            added.append(spent['kept'] - spent['not kept'])
            plain.append(spent['not kept'])
        low, middle, high = (1e3 * value for value in statistics.quantiles(added, n=4))
        print(
            f'keeping decisions, {hosts} hosts, {kind}: {middle:+.2f} ms own CPU a selection (quarters {low:+.2f} to '
            f'{high:+.2f}) on {statistics.median(plain) * 1e3:.2f} ms',
            flush=True,
        )
    for rig in rigs.values():
        rig.close()


# --- runs -------------------------------------------------------------------------------------------------------------
def run(name: str) -> None:
    """One table; prints as it goes."""
    found: dict[tuple[int, str], Figures] = {}
    with tempfile.TemporaryDirectory() as directory:
        for hosts in SIZES:
            before = resident_mib()
            if name == 'recorded':
                placement: Any = Recorded()
                watch = placement.watch
            else:
                fill_placement(hosts)
                watch = Stopwatch()
                placement = real_placement(watch)
            rig = Rig(Path(directory), hosts, placement)
            began = time.perf_counter()
            rig.select(rig.request('flat'))
            loaded = time.perf_counter() - began
            for kind in KINDS:
                # Claims of 8 GPUs use a host up each.
                count = min(SELECTIONS[name], hosts // 2) if kind == '8 GPUs' else SELECTIONS[name]
                found[hosts, kind] = measure(rig, kind, count, placement, watch)
                report(name, hosts, kind, found[hosts, kind])
            print(
                f'{name:9}{hosts:7}  first look {loaded:.2f} s, memory {resident_mib():.0f} MiB (before: {before:.0f})'
            )
            if name != 'recorded':
                print(f'{name:9}{hosts:7}  asking Placement for candidates instead: {candidates(watch, rig):.2f} s')
            rig.close()
        if name == 'recorded':
            decisions(Path(directory), 1000, placement, watch)
    if name == 'recorded':
        for kind in KINDS:
            growth = found[10_000, kind].own_cpu / found[1000, kind].own_cpu
            print(f'growth from 1000 to 10 000 hosts, {kind}: {growth:.1f}x')
        print(f'8 of 8 GPUs cost {found[10_000, "8 GPUs"].own_cpu / found[10_000, "1 GPU"].own_cpu:.2f}x of 1 of 8')


def machine() -> str:
    """What this ran on."""
    model = next(
        (
            line.partition(':')[2].strip()
            for line in Path('/proc/cpuinfo').read_text().splitlines()
            if line.startswith('model name')
        ),
        platform.machine(),
    )
    return f'{os.cpu_count()} cores of {model}, Python {platform.python_version()}'


def main(names: list[str]) -> int:
    print(machine())
    # Each in a process of its own: Placement's database is chosen once a process, and memory shall not add up.
    for name in names or list(SELECTIONS):
        code = subprocess.run([sys.executable, '-W', 'ignore', '-c', _CHILD.format(name=name)], check=False).returncode
        if code:
            return code
    return 0


_CHILD = 'from tests.bench import scheduler; scheduler.child({name!r})'


def child(name: str) -> None:
    """One run in this process."""
    if name != 'mariadb':
        run(name)
        return
    from tests.integration.database_servers import mariadb

    with mariadb() as server:
        server.create('placement')
        os.environ['KILONOVA_PLACEMENT_DATABASE'] = server.url('placement')
        run(name)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
