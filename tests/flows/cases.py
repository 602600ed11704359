"""The flows under test, and what a disturbance of one needs: how to get there, what it comes to, that nothing is left.

    @pytest.mark.parametrize('name', CASES)
    def test_a_disturbance(ground, name):
        case = CASES[name]
        server = case.act(ground, case.before(ground))
        check(ground, case, server, case.good)

Afterwards nothing is left over: no Placement allocation, PCI device, domain, file, migration or operation, and the
server is in an end state that its user can read. What makes no sense for a flow is left out of it: a pending release
has no server to delete any more, nobody casts what only waits for its time, and a mirror asks no host, so its requests
to Placement are lost.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova import objects
from kilonova.clients.placement import PlacementClient
from kilonova.conductor import flows
from kilonova.conductor.host_liveness import HostLiveness
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models
from kilonova.db.queries import compute_nodes, instances, operations
from kilonova.errors import Unanswered
from kilonova.rpc.transport import DirectTransport
from tests.fixtures.cloud import IMAGE_ID, OTHER_IMAGE_ID, Cloud, Crash

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}


def delete(cloud: Cloud, server: str | None) -> str:
    """For good: where deletes are deferred only this does it."""
    assert cloud.request('POST', f'/servers/{server}/action', {'forceDelete': None}).status_int == 202
    return server or ''


@dataclass(frozen=True)
class Case:
    """A flow under test: how to get there, what to ask, what it comes to when all goes well and when it fails for
    good."""

    kind: str
    before: Callable[[Cloud], str | None]
    act: Callable[[Cloud, str | None], str]
    good: str
    bad: str
    # The flow of another case from another state: where that one is disturbed at each place, this one is at each third.
    variant: bool = False
    # What ``good`` and ``bad`` are compared with, and how the subject is deleted beside its flow.
    status: Callable[[Cloud, str], str] = Cloud.status
    remove: Callable[[Cloud, str | None], str] = delete
    # Where a host lost its guests: a guest's memory is gone, and its server off; or the host died when the old disks
    # had gone.
    lost: str | None = None
    # False: its steps ask Placement alone.
    asks_hosts: bool = True
    # False: its undos ask no host.
    undone_on_hosts: bool = True

    @property
    def stride(self) -> int:
        return 3 if self.variant else 1

    @property
    def ends(self) -> list[str]:
        """All that it may come to where hosts lose their guests."""
        return [end for end in (self.good, self.bad, self.lost) if end is not None]


def booted(cloud: Cloud) -> str:
    return cloud.boot(cloud.small)


def placed(cloud: Cloud) -> str:
    """Without a GPU, which would hold it to its host; with a place on the NUMA cells."""
    return cloud.boot(cloud.placed)


def with_agent(cloud: Cloud) -> str:
    cloud.images.offered[IMAGE_ID]['hw_qemu_guest_agent'] = 'yes'
    return booted(cloud)


def resized(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.action(server, 'resize', {'flavorRef': cloud.large})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    return server


def stopped(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.action(server, 'os-stop')
    return server


def after(name: str, status: str) -> Callable[[Cloud], str]:
    """A server that an action without a body brought to a status."""

    def before(cloud: Cloud) -> str:
        server = booted(cloud)
        cloud.action(server, name)
        assert cloud.status(server) == status, cloud.story(server)
        return server

    return before


def ask(name: str, body: Any = None) -> Callable[[Cloud, str | None], str]:
    def act(cloud: Cloud, server: str | None) -> str:
        sent = {'flavorRef': cloud.large} if name == 'resize' else body
        response = cloud.request('POST', f'/servers/{server}/action', {name: sent})
        assert response.status_int < 300, response.text
        return server or ''

    return act


def create(cloud: Cloud, server: str | None) -> str:
    return cloud.create(cloud.small)['server']['id']


def soft_deleted(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert cloud.status(server) == 'SOFT_DELETED', cloud.story(server)
    return server


def soft_delete(cloud: Cloud, server: str | None) -> str:
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    return server or ''


def in_flow() -> bool:
    """Whether this thread does the work of flows; heartbeats, sweeps and leases have threads of their own."""
    return threading.current_thread().name.startswith('flow-')


def home(cloud: Cloud, row: dict) -> engine.Database:
    """The database that a waiting row is in."""
    return cloud.databases.api() if row['kind'] == 'mirror' else cloud.cell


def wait(cloud: Cloud, row: dict, delay: float) -> int:
    """Let a row that is in no hands wait so many seconds from now; how many there were, 0 or 1."""
    table = operations.operations
    with home(cloud, row).write() as conn:
        return conn.execute(
            table.update()
            .where(table.c.uuid == row['uuid'], table.c.owner.is_(None))
            .values(not_before=engine.now(conn) + delay)
        ).rowcount


def keep_waiting(cloud: Cloud, kind: str) -> None:
    """Nothing is under way but one row, which waits until ``fall_due``."""
    for _ in range(20):
        cloud.settle(kinds_left=(kind,))
        (row,) = cloud.rows()
        if wait(cloud, row, 3600):
            return
    raise AssertionError(f'{row} is always in work')


def fall_due(cloud: Cloud, subject: str | None) -> str:
    """The time of the row that waits has come: all conductors see it at once."""
    (row,) = cloud.rows()
    assert wait(cloud, row, -1)
    for conductor in cloud.conductors:
        conductor.runner.wake(home(cloud, row), [row['uuid']], urgent=True)
    return subject or ''


def force_down(cloud: Cloud, host: str, down: bool) -> None:
    """An operator says that a host is down, or that it isn't any more."""
    (service,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'forced_down': down})


def lose_host(cloud: Cloud, host: str) -> None:
    """A host is gone, and known to be."""
    cloud.crash_compute(host)
    force_down(cloud, host, True)


def silent_hosts(patch: pytest.MonkeyPatch) -> set[str]:
    """An empty set: hosts in it count as down, though nobody forced them."""
    hosts: set[str] = set()
    is_down = HostLiveness.is_down
    patch.setattr(HostLiveness, 'was_down', lambda self, db, host: True)
    patch.setattr(HostLiveness, 'is_down', lambda self, db, host: host in hosts or is_down(self, db, host))
    return hosts


def hear_again(cloud: Cloud, server: str, silent: set[str], forced: bool) -> None:
    """The host of a server is silent no more, and what waited for it is done; ``forced``: it was forced down meanwhile,
    and the server started anew."""
    cloud.on_message = None
    if forced:
        host = cloud.host_of(server)
        force_down(cloud, host, True)
        cloud.settle()
        force_down(cloud, host, False)
        silent.clear()
        cloud.action(server, 'reboot', {'type': 'HARD'})
    silent.clear()
    cloud.settle()


def bring_back(cloud: Cloud, host: str) -> None:
    """A lost host is there again, empty, and what waited for it is done."""
    cloud.start_compute(host)
    force_down(cloud, host, False)
    cloud.settle()
    look_again(cloud)


# What still waits for a lost host: the server of a revert can only be where it was.
WAITING = ('release', 'revert')


@dataclass
class Death:
    """``dies_at``: what hosts told the conductor so far, and the host that is gone."""

    seen: list[str] = field(default_factory=list)
    gone: str | None = None


def dies_at(cloud: Cloud, number: int, moment: str = 'before') -> Death:
    """From now on the host that works on a step dies for good ``before`` (or ``after``) the ``number``-th thing that
    it tells the conductor of it, counted from 0."""
    death, hosts = Death(), {}

    def on_message(kind: str, topic: str, host: str, method: str, args: Any, deliver: Callable[[], Any]) -> Any:
        # Of this thread alone: heartbeats of the same host come from another one.
        worker = threading.get_ident()
        if topic == 'compute' and kind != 'cast':
            hosts[worker] = host
            try:
                return deliver()
            except Crash:
                death.gone = host
                lose_host(cloud, host)
                raise Unanswered(who=host, reason='crashed') from None
            finally:
                hosts.pop(worker, None)
        if topic == 'conductor' and worker in hosts and death.gone is None:
            death.seen.append(method)
            if len(death.seen) - 1 == number:
                if moment == 'after':
                    deliver()
                raise Crash
        return deliver()

    cloud.on_message = on_message
    return death


def look_again(cloud: Cloud) -> None:
    """What hosts' timers do a few seconds later: guests whose flows started none."""
    for compute in cloud.computes.values():
        compute.guests.look_again()


@contextlib.contextmanager
def disturbed_in_flows(cloud: Cloud) -> Iterator[None]:
    """Have ``cloud.on_message`` disturb nothing but what flows send: on a slow machine a sweep takes a pending release
    meanwhile, which would succeed at once."""
    disturbing = cloud.on_message

    def on_message(*message: Any) -> Any:
        return disturbing(*message) if disturbing is not None and in_flow() else message[-1]()

    cloud.on_message = on_message
    try:
        yield
    finally:
        cloud.on_message = disturbing


def evacuated(cloud: Cloud, server: str | None) -> str:
    """It is off on another host; where it wasn't evacuated its own host starts it again. The dead one comes back when
    nothing but releases waits for it."""
    source = cloud.host_of(server or '')

    def come_back() -> None:
        if any(row['kind'] != 'release' for row in cloud.rows()):
            return
        with disturbed_in_flows(cloud):
            if source not in cloud.computes:
                cloud.start_compute(source)
            # A database whose answers are lost is asked again.
            with contextlib.suppress(AssertionError):
                force_down(cloud, source, False)
                cloud.meanwhile = None

    if source in cloud.computes:
        # It came back when the server could not be evacuated.
        lose_host(cloud, source)
    response = cloud.request('POST', f'/servers/{server}/action', {'evacuate': {}})
    assert response.status_int == 200, response.text
    cloud.meanwhile = come_back
    return server or ''


def on_a_dead_host(cloud: Cloud) -> str:
    server = booted(cloud)
    lose_host(cloud, cloud.host_of(server))
    return server


def deleted_without_host(cloud: Cloud) -> str:
    """The server is gone, what its host holds is still to be given back, and the host is there again."""
    server = booted(cloud)
    host = cloud.host_of(server)
    lose_host(cloud, host)
    delete(cloud, server)
    keep_waiting(cloud, 'release')
    assert released(cloud, server) == 'HELD'
    cloud.start_compute(host)
    force_down(cloud, host, False)
    return server


def released(cloud: Cloud, server: str) -> str:
    """HELD: the server is gone, its host's devices and files aren't."""
    files = [host for host in cloud.gpus if (cloud.directory / host / 'instances' / server).exists()]
    return 'HELD' if cloud.owned(server) or files else cloud.status(server)


def unmirrored(cloud: Cloud) -> str:
    """A host was added to an aggregate, and Placement didn't take it: the aggregate's uuid."""
    made = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a', 'availability_zone': None}})['aggregate']

    def refuse(method: str, path: str) -> None:
        if path.endswith('/aggregates'):
            raise cloud.placement.broken()

    cloud.placement.before = refuse
    cloud.ok('POST', f'/os-aggregates/{made["id"]}/action', {'add_host': {'host': 'gpu2'}})
    cloud.placement.before = None
    keep_waiting(cloud, 'mirror')
    assert mirrored(cloud, made['uuid']) == 'DIFFERENT'
    return made['uuid']


def mirrored(cloud: Cloud, uuid: str) -> str:
    """How an aggregate and what Placement has of it stand to each other."""
    hosts = {
        host for row in cloud.ok('GET', '/os-aggregates')['aggregates'] if row['uuid'] == uuid for host in row['hosts']
    }
    if hosts != {row['name'] for row in cloud.placement.client.list_providers(member_of=uuid)}:
        return 'DIFFERENT'
    return 'MIRRORED' if hosts else 'GONE'


def disband(cloud: Cloud, uuid: str | None) -> str:
    """The aggregate loses its hosts and is deleted."""
    (row,) = [row for row in cloud.ok('GET', '/os-aggregates')['aggregates'] if row['uuid'] == uuid]
    for host in row['hosts']:
        cloud.ok('POST', f'/os-aggregates/{row["id"]}/action', {'remove_host': {'host': host}})
    cloud.ok('DELETE', f'/os-aggregates/{row["id"]}')
    return uuid or ''


def keep_shelved(cloud: Cloud, seconds: int) -> None:
    """[DEFAULT]shelved_offload_time of all conductors; 0: as it is by default."""
    for conductor in cloud.conductors:
        conductor.env.conf.set_override('shelved_offload_time', seconds)


def shelved(cloud: Cloud) -> str:
    server = booted(cloud)
    keep_shelved(cloud, -1)
    try:
        cloud.action(server, 'shelve')
    finally:
        keep_shelved(cloud, 0)
    assert cloud.status(server) == 'SHELVED', cloud.story(server)
    return server


def offloaded(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.action(server, 'shelve')
    assert cloud.status(server) == 'SHELVED_OFFLOADED', cloud.story(server)
    assert not cloud.owned(server) and server not in cloud.placement.allocations()
    return server


CASES = {
    'boot': Case('boot', lambda cloud: None, create, 'ACTIVE', 'ERROR'),
    'resize': Case('resize', booted, ask('resize'), 'VERIFY_RESIZE', 'ACTIVE'),
    'resize-stopped': Case('resize', stopped, ask('resize'), 'VERIFY_RESIZE', 'SHUTOFF', variant=True),
    'migrate': Case('resize', booted, ask('migrate'), 'VERIFY_RESIZE', 'ACTIVE', variant=True),
    'confirm': Case('confirm', resized, ask('confirmResize'), 'ACTIVE', 'ACTIVE'),
    'revert': Case('revert', resized, ask('revertResize'), 'ACTIVE', 'ACTIVE'),
    'live-migrate': Case(
        'live_migrate', placed, ask('os-migrateLive', {'host': None, 'block_migration': 'auto'}), 'ACTIVE', 'ACTIVE'
    ),
    'delete': Case('delete', booted, delete, 'GONE', 'GONE'),
    'delete-resized': Case('delete', resized, delete, 'GONE', 'GONE', variant=True),
    'soft-delete': Case('soft_delete', booted, soft_delete, 'SOFT_DELETED', 'SOFT_DELETED'),
    'soft-delete-resized': Case('soft_delete', resized, soft_delete, 'SOFT_DELETED', 'SOFT_DELETED', variant=True),
    'restore': Case('restore', soft_deleted, ask('restore'), 'ACTIVE', 'SOFT_DELETED'),
    'snapshot': Case('snapshot', booted, ask('createImage', {'name': 'snap'}), 'ACTIVE', 'ACTIVE'),
    'backup': Case(
        'backup', booted, ask('createBackup', {'name': 'b', 'backup_type': 'daily', 'rotation': 1}), 'ACTIVE', 'ACTIVE'
    ),
    'shelve': Case('shelve', booted, ask('shelve'), 'SHELVED_OFFLOADED', 'ACTIVE'),
    'shelve-stopped': Case('shelve', stopped, ask('shelve'), 'SHELVED_OFFLOADED', 'SHUTOFF', variant=True),
    'shelve-offload': Case('shelve_offload', shelved, ask('shelveOffload'), 'SHELVED_OFFLOADED', 'SHELVED'),
    'unshelve': Case('unshelve', offloaded, ask('unshelve'), 'ACTIVE', 'SHELVED_OFFLOADED'),
    'unshelve-start': Case('unshelve_start', shelved, ask('unshelve'), 'ACTIVE', 'SHELVED'),
    'stop': Case('stop', booted, ask('os-stop'), 'SHUTOFF', 'ACTIVE'),
    'start': Case('start', stopped, ask('os-start'), 'ACTIVE', 'SHUTOFF'),
    'reboot': Case('reboot', booted, ask('reboot', {'type': 'HARD'}), 'ACTIVE', 'ACTIVE'),
    'reboot-soft': Case('reboot', booted, ask('reboot', {'type': 'SOFT'}), 'ACTIVE', 'ACTIVE', variant=True),
    'pause': Case('pause', booted, ask('pause'), 'PAUSED', 'ACTIVE', lost='SHUTOFF'),
    'unpause': Case('unpause', after('pause', 'PAUSED'), ask('unpause'), 'ACTIVE', 'PAUSED', lost='SHUTOFF'),
    'suspend': Case('suspend', booted, ask('suspend'), 'SUSPENDED', 'ACTIVE', lost='SHUTOFF'),
    'resume': Case('resume', after('suspend', 'SUSPENDED'), ask('resume'), 'ACTIVE', 'SUSPENDED', lost='SHUTOFF'),
    'crash-dump': Case('trigger_crash_dump', booted, ask('trigger_crash_dump'), 'ACTIVE', 'ACTIVE'),
    'rebuild': Case(
        'rebuild',
        booted,
        ask('rebuild', {'imageRef': OTHER_IMAGE_ID}),
        'ACTIVE',
        'ACTIVE',
        undone_on_hosts=False,
        lost='ERROR',
    ),
    'rebuild-stopped': Case(
        'rebuild',
        stopped,
        ask('rebuild', {'imageRef': IMAGE_ID}),
        'SHUTOFF',
        'SHUTOFF',
        variant=True,
        undone_on_hosts=False,
        lost='ERROR',
    ),
    'rescue': Case('rescue', booted, ask('rescue'), 'RESCUE', 'ACTIVE'),
    'rescue-stopped': Case('rescue', stopped, ask('rescue'), 'RESCUE', 'SHUTOFF', variant=True),
    'unrescue': Case('unrescue', after('rescue', 'RESCUE'), ask('unrescue'), 'ACTIVE', 'RESCUE'),
    'change-password': Case(
        'set_admin_password', with_agent, ask('changePassword', {'adminPass': 'new one'}), 'ACTIVE', 'ACTIVE'
    ),
    'evacuate': Case('evacuate', on_a_dead_host, evacuated, 'SHUTOFF', 'ACTIVE'),
    'release': Case('release', deleted_without_host, fall_due, 'GONE', 'GONE', status=released),
    'mirror': Case(
        'mirror', unmirrored, fall_due, 'MIRRORED', 'MIRRORED', status=mirrored, remove=disband, asks_hosts=False
    ),
}
# What needs a network or a volume service: test_ports_and_volumes.py has it, but for what these services tell, and
# tests/functional/test_reimage.py. tests/functional/test_host_removal.py removes hosts; test_power_cut.py there starts
# servers that ran when their host went down.
ELSEWHERE = {
    'network_changed',
    'attach_interface',
    'detach_interface',
    'attach_volume',
    'detach_volume',
    'swap_volume',
    'volume_extended',
    'reimage',
    'volume_snapshot_create',
    'volume_snapshot_delete',
    'host_removal',
    'resume_on_host_boot',
}
ASKING_HOSTS = [name for name, case in CASES.items() if case.asks_hosts]
# A variant is disturbed before a thing, and not right after it as well.
MOMENTS = [
    (name, moment)
    for name in ASKING_HOSTS
    for moment in ('before', 'after')
    if moment == 'before' or not CASES[name].variant
]
ASKING_PLACEMENT = [name for name, case in CASES.items() if not case.asks_hosts]
CAST = [name for name, case in CASES.items() if case.act is not fall_due]
STEPS = [(name, index) for name, case in CASES.items() for index in range(len(flows.FLOWS[case.kind].steps))]
STEP_IDS = [f'{name}-{flows.FLOWS[CASES[name].kind].steps[index].name}' for name, index in STEPS]

# What an operation may change in what users see of a server without leaving it another one.
CHANGING = (
    'updated',
    'hostId',
    'OS-EXT-SRV-ATTR:host',
    'OS-EXT-SRV-ATTR:hypervisor_hostname',
    'OS-SRV-USG:launched_at',
)


def clear(cloud: Cloud) -> None:
    """Delete all servers and aggregates: nothing of them is left over, but for images of theirs. Nothing was asked
    since it was last so: nothing is there."""
    if cloud.asked == cloud.cleared_at:
        return
    for server in cloud.ok('GET', '/servers?all_tenants=1&soft_deleted=1')['servers']:
        delete(cloud, server['id'])
    for aggregate in cloud.ok('GET', '/os-aggregates')['aggregates']:
        disband(cloud, aggregate['uuid'])
    cloud.settle()
    cloud.assert_empty()
    cloud.images.made.clear()
    cloud.images.data.clear()
    cloud.cleared_at = cloud.asked


class Subjects:
    """The servers that a case is disturbed with, one disturbance after the other. One that is afterwards what it was
    before has the next one, too; else that has a new one, in an empty cloud.

        subjects = Subjects(cloud, case)
        while ...:
            server = case.act(cloud, subjects.next())
            check(cloud, case, server, case.good)
            subjects.end()
    """

    def __init__(self, cloud: Cloud, case: Case, clear: Callable[[Any], None] = clear) -> None:
        self._cloud, self._case, self._clear = cloud, case, clear
        self._server: str | None = None
        self._was: Any = None

    def next(self) -> str | None:
        """What the case's ``before`` gives back."""
        if self._was is None:
            self._server = self._case.before(self._cloud)
            self._was = self._shown()
        return self._server

    def end(self, kept: bool = True) -> None:
        """A disturbance is over, and all of it was looked at. ``kept`` False: the next one has a new server, as a host
        that died may still have something to do for this one."""
        if not kept or self._was is None or self._was != self._shown():
            self._clear(self._cloud)
            self._was = None

    def _shown(self) -> tuple[dict[str, Any], set[str]] | None:
        """What users see of the server, and the images there are; None where the case is no server's."""
        if self._server is None or self._case.status is not Cloud.status:
            return None
        response = self._cloud.request('GET', f'/servers/{self._server}')
        if response.status_int == 404:
            return None
        shown = {name: value for name, value in response.json['server'].items() if name not in CHANGING}
        return shown, set(self._cloud.images.made)


def check(cloud: Cloud, case: Case, server: str, *expected: str) -> None:
    cloud.settle()
    shown = cloud.request('GET', f'/servers/{server}')
    status = (
        case.status(cloud, server)
        if case.status is not Cloud.status
        else 'GONE'
        if shown.status_int == 404
        else shown.json['server']['status']
    )
    assert status in expected, case.asks_hosts and cloud.story(server)
    if shown.status_int == 200:
        assert shown.json['server']['OS-EXT-STS:task_state'] is None
        if shown.json['server']['status'] == 'ERROR':
            assert shown.json['server']['fault']['message']
    cloud.assert_clean()
    if case.kind == 'live_migrate':
        check_cells(cloud)


def check_cells(cloud: Cloud) -> None:
    """The NUMA cells of each host have its servers and nothing else."""
    for host in cloud.gpus:
        with cloud.cell.read() as conn:
            node = compute_nodes.get(conn, hypervisor_hostname=host)
            rows = instances.by_host(conn, host)
        assert node is not None
        used, wanted = Counter[int](), Counter[int]()
        for cell in objects.NUMATopology.from_json(node['numa_topology']).cells:
            used[cell.id] += cell.cpu_usage
        for row in rows:
            place = objects.InstanceNUMATopology.from_json(row['extra_numa_topology'])
            for cell in place.cells if place is not None else ():
                wanted[cell.id] += len(cell.cpuset)
        assert +used == wanted


# Tables whose rows change by themselves (heartbeats and leases), and the one where the same is written again.
RESTLESS = ('services', 'compute_nodes', 'leases')
REWRITTEN = 'instance_mappings.updated_at'


@functools.cache
def _reads(base: Any, dialect: Any) -> dict[str, str]:
    """{table: the SELECT of all its rows}, as text: what is only compared needs no types."""
    return {
        table.name: str(
            sa.select(*(column for column in table.columns if str(column) != REWRITTEN)).compile(dialect=dialect)
        )
        for table in base.metadata.sorted_tables
        if table.name not in RESTLESS and not table.name.startswith('shadow_')
    }


def everything(cloud: Cloud) -> dict[str, Any]:
    """All rows of all databases, what Placement holds, files and images: what a late act must not change."""
    found: dict[str, Any] = {'allocations': cloud.placement.allocations(), 'images': dict(cloud.images.made)}
    tables = {
        'api': (cloud.databases.api(), api_models.Base),
        'cell0': (cloud.cell0, cell_models.Base),
        'cell': (cloud.cell, cell_models.Base),
    }
    for name, (database, base) in tables.items():
        with database.read() as conn:
            for table, query in _reads(base, conn.dialect).items():
                found[f'{name} {table}'] = sorted(map(repr, conn.exec_driver_sql(query).cursor.fetchall()))
    for host in cloud.gpus:
        home = cloud.directory / host / 'instances'
        found[f'files of {host}'] = sorted(
            (str(path.relative_to(home)), path.stat().st_size) for path in home.rglob('*') if path.is_file()
        )
    return found


@contextlib.contextmanager
def first_after_each_effect(
    monkeypatch: pytest.MonkeyPatch, listener: Callable[[str, str, bool], None]
) -> Iterator[None]:
    """``listener`` (see engine.listen) hears of a thread's first statement, and of the first one after each effect: a
    COMMIT of what was written, and a message to somebody outside. Who ends before another statement leaves what it
    leaves before that one: nothing since is committed, and nobody was asked for anything."""
    local = threading.local()

    def noting(real: Callable[..., Any], writes: bool) -> Callable[..., Any]:
        @contextlib.contextmanager
        def begun(database: engine.Database) -> Iterator[Any]:
            with real(database) as conn:
                local.inside = True
                try:
                    yield conn
                finally:
                    local.inside = False
            if writes:
                local.still = False

        return begun

    def chosen(database: str, statement: str, many: bool) -> None:
        if not getattr(local, 'still', False):
            local.still = True
            listener(database, statement, many)

    def outside(real: Callable[..., Any]) -> Callable[..., Any]:
        def send(*args: Any, **kwargs: Any) -> Any:
            assert not getattr(local, 'inside', False), 'somebody is asked inside a transaction'
            try:
                return real(*args, **kwargs)
            finally:
                local.still = False

        return send

    with monkeypatch.context() as patch:
        for name in ('read', 'write'):
            patch.setattr(engine.Database, name, noting(getattr(engine.Database, name), name == 'write'))
        patch.setattr(DirectTransport, 'send', outside(DirectTransport.send))
        patch.setattr(PlacementClient, '_send', outside(PlacementClient._send))
        silence = engine.listen(chosen)
        try:
            yield
        finally:
            silence()


@contextlib.contextmanager
def crash_at(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[threading.Event]:
    """The thread of a flow ends after its ``number``-th effect (see ``first_after_each_effect``), counted from 0;
    whether one did."""
    crashed, seen = threading.Event(), []

    def listener(database: str, statement: str, many: bool) -> None:
        if threading.current_thread().name.startswith('flow-') and not crashed.is_set() and not cloud.in_upcall:
            seen.append(statement)
            if len(seen) - 1 == number:
                crashed.set()
                raise Crash

    with first_after_each_effect(monkeypatch, listener):
        yield crashed


def disturb(monkeypatch: pytest.MonkeyPatch, kind: str, index: int, act: Callable[..., Any], what: str = 'do') -> None:
    """Replace one step's ``do`` (or ``undo``); ``act(real, work)`` is called instead."""
    flow = flows.FLOWS[kind]
    steps = list(flow.steps)
    real = getattr(steps[index], what)

    def instead(work: Work) -> Any:
        return act(real, work)

    steps[index] = replace(steps[index], **{what: instead})
    monkeypatch.setattr(type(flow), 'steps', tuple(steps))
