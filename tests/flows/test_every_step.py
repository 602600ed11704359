"""Every step of every flow: fail it, lose its messages, crash who works on it, delete beside it (operations.md).

Afterwards nothing is left over: no Placement allocation, PCI device, domain, file, migration or operation, and the
server is in an end state that its user can read. Where messages or statements are disturbed, a test goes on until the
flow has no further one. What makes no sense for a flow is left out of it: a pending release has no server to delete any
more, nobody casts what only waits for its time, and a mirror asks no host, so its requests to Placement are lost.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kilonova.conductor import flows
from kilonova.conductor.flow import Step
from kilonova.db import engine
from kilonova.db.queries import operations
from kilonova.errors import KilonovaError, Unanswered
from tests.fixtures.cloud import Cloud, Crash

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
    # False: its steps ask Placement alone.
    asks_hosts: bool = True

    @property
    def stride(self) -> int:
        return 3 if self.variant else 1


def booted(cloud: Cloud) -> str:
    return cloud.boot(cloud.small, networks='none')


def resized(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.action(server, 'resize', {'flavorRef': cloud.large})
    assert cloud.status(server) == 'VERIFY_RESIZE', cloud.story(server)
    return server


def stopped(cloud: Cloud) -> str:
    server = booted(cloud)
    cloud.action(server, 'os-stop')
    return server


def ask(name: str, body=None) -> Callable[[Cloud, str | None], str]:
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


def home(cloud: Cloud, row: dict) -> engine.Database:
    """The database that a waiting row is in."""
    return cloud.databases.api() if row['kind'] == 'mirror' else cloud.cell


def wait(cloud: Cloud, row: dict, delay: float) -> int:
    """Let a row that is in no hands wait so many seconds from now; how many there were, 0 or 1."""
    table = operations.operations
    with home(cloud, row).write() as conn:
        return conn.execute(table.update().where(table.c.uuid == row['uuid'], table.c.owner.is_(None)).values(
            not_before=engine.now(conn) + delay)).rowcount


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


def deleted_without_host(cloud: Cloud) -> str:
    """The server is gone, what its host holds is still to be given back, and the host is there again."""
    server = booted(cloud)
    host = cloud.host_of(server)
    (service,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    cloud.crash_compute(host)
    cloud.ok('PUT', f"/os-services/{service['id']}", {'forced_down': True})
    delete(cloud, server)
    keep_waiting(cloud, 'release')
    assert released(cloud, server) == 'HELD'
    cloud.start_compute(host)
    cloud.ok('PUT', f"/os-services/{service['id']}", {'forced_down': False})
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
    cloud.ok('POST', f"/os-aggregates/{made['id']}/action", {'add_host': {'host': 'gpu2'}})
    cloud.placement.before = None
    keep_waiting(cloud, 'mirror')
    assert mirrored(cloud, made['uuid']) == 'DIFFERENT'
    return made['uuid']


def mirrored(cloud: Cloud, uuid: str) -> str:
    """How an aggregate and what Placement has of it stand to each other."""
    hosts = {host for row in cloud.ok('GET', '/os-aggregates')['aggregates'] if row['uuid'] == uuid
             for host in row['hosts']}
    if hosts != {row['name'] for row in cloud.placement.client.list_providers(member_of=uuid)}:
        return 'DIFFERENT'
    return 'MIRRORED' if hosts else 'GONE'


def disband(cloud: Cloud, uuid: str | None) -> str:
    """The aggregate loses its hosts and is deleted."""
    (row,) = [row for row in cloud.ok('GET', '/os-aggregates')['aggregates'] if row['uuid'] == uuid]
    for host in row['hosts']:
        cloud.ok('POST', f"/os-aggregates/{row['id']}/action", {'remove_host': {'host': host}})
    cloud.ok('DELETE', f"/os-aggregates/{row['id']}")
    return uuid or ''


CASES = {
    'boot': Case('boot', lambda cloud: None, create, 'ACTIVE', 'ERROR'),
    'resize': Case('resize', booted, ask('resize'), 'VERIFY_RESIZE', 'ACTIVE'),
    'resize-stopped': Case('resize', stopped, ask('resize'), 'VERIFY_RESIZE', 'SHUTOFF', variant=True),
    'migrate': Case('resize', booted, ask('migrate'), 'VERIFY_RESIZE', 'ACTIVE', variant=True),
    'confirm': Case('confirm', resized, ask('confirmResize'), 'ACTIVE', 'ACTIVE'),
    'revert': Case('revert', resized, ask('revertResize'), 'ACTIVE', 'ACTIVE'),
    'delete': Case('delete', booted, delete, 'GONE', 'GONE'),
    'delete-resized': Case('delete', resized, delete, 'GONE', 'GONE', variant=True),
    'soft-delete': Case('soft_delete', booted, soft_delete, 'SOFT_DELETED', 'SOFT_DELETED'),
    'soft-delete-resized': Case('soft_delete', resized, soft_delete, 'SOFT_DELETED', 'SOFT_DELETED', variant=True),
    'restore': Case('restore', soft_deleted, ask('restore'), 'ACTIVE', 'SOFT_DELETED'),
    'snapshot': Case('snapshot', booted, ask('createImage', {'name': 'snap'}), 'ACTIVE', 'ACTIVE'),
    'stop': Case('stop', booted, ask('os-stop'), 'SHUTOFF', 'ACTIVE'),
    'start': Case('start', stopped, ask('os-start'), 'ACTIVE', 'SHUTOFF'),
    'reboot': Case('reboot', booted, ask('reboot', {'type': 'HARD'}), 'ACTIVE', 'ACTIVE'),
    'reboot-soft': Case('reboot', booted, ask('reboot', {'type': 'SOFT'}), 'ACTIVE', 'ACTIVE', variant=True),
    'release': Case('release', deleted_without_host, fall_due, 'GONE', 'GONE', status=released),
    'mirror': Case('mirror', unmirrored, fall_due, 'MIRRORED', 'MIRRORED', status=mirrored, remove=disband,
                   asks_hosts=False),
}
ASKING_HOSTS = [name for name, case in CASES.items() if case.asks_hosts]
ASKING_PLACEMENT = [name for name, case in CASES.items() if not case.asks_hosts]
CAST = [name for name, case in CASES.items() if case.act is not fall_due]
STEPS = [(name, index) for name, case in CASES.items() for index in range(len(flows.FLOWS[case.kind].steps))]
STEP_IDS = [f'{name}-{flows.FLOWS[CASES[name].kind].steps[index].name}' for name, index in STEPS]


def test_every_flow_has_a_case():
    assert {case.kind for case in CASES.values()} == set(flows.FLOWS)


class Shared:
    """One cloud for many cases; a case that leaves it unclean gets the next one a new one."""

    cloud: Cloud | None = None


@pytest.fixture(scope='module')
def shared(tmp_path_factory, cloud_templates):
    holder = Shared()
    made = []

    def get() -> Cloud:
        if holder.cloud is None:
            holder.cloud = Cloud(tmp_path_factory.mktemp('flows'), cloud_templates, GPUS,
                                 reclaim_instance_interval=3600)
            holder.cloud.small, holder.cloud.large = holder.cloud.flavor(gpus=1), holder.cloud.flavor(gpus=2)
            made.append(holder.cloud)
        return holder.cloud
    holder.get = get
    yield holder
    for cloud in made:
        cloud.stop()


@pytest.fixture
def ground(shared, monkeypatch):
    """An empty cloud; afterwards it is empty again."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 0.2)
    cloud = shared.get()
    shared.cloud = None
    yield cloud
    cloud.on_message = cloud.placement.before = cloud.placement.after = None
    clear(cloud)
    if len(cloud.conductors) == 1 and set(cloud.computes) == set(GPUS):
        shared.cloud = cloud


def clear(cloud: Cloud) -> None:
    """Delete all servers and aggregates: nothing of them is left over, but for images of theirs."""
    for server in cloud.ok('GET', '/servers?all_tenants=1&soft_deleted=1')['servers']:
        delete(cloud, server['id'])
    for aggregate in cloud.ok('GET', '/os-aggregates')['aggregates']:
        disband(cloud, aggregate['uuid'])
    cloud.settle()
    cloud.assert_empty()
    cloud.images.made.clear()
    cloud.images.data.clear()


def check(cloud: Cloud, case: Case, server: str, *expected: str) -> None:
    cloud.settle()
    assert case.status(cloud, server) in expected, case.asks_hosts and cloud.story(server)
    shown = cloud.request('GET', f'/servers/{server}')
    if shown.status_int == 200:
        assert shown.json['server']['OS-EXT-STS:task_state'] is None
        if shown.json['server']['status'] == 'ERROR':
            assert shown.json['server']['fault']['message']
    cloud.assert_clean()


def disturb(monkeypatch, kind: str, index: int, do: Callable) -> None:
    """Replace one step's ``do``; ``do(real, work)`` is called instead."""
    flow = flows.FLOWS[kind]
    steps = list(flow.steps)
    step = steps[index]
    steps[index] = Step(step.name, lambda work: do(step.do, work), step.undo, step.again_from, step.saved)
    monkeypatch.setattr(type(flow), 'steps', tuple(steps))


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize(('name', 'index'), STEPS, ids=STEP_IDS)
def test_a_step_fails(ground, monkeypatch, name, index, when):
    """Rows 0.24, 1.35."""
    case, failed = CASES[name], []
    server = case.before(ground)

    def do(real, work):
        if failed:
            return real(work)
        if when == 'after':
            real(work)
        failed.append(work.uuid)
        raise KilonovaError('injected failure')
    disturb(monkeypatch, case.kind, index, do)
    server = case.act(ground, server)
    flow = flows.FLOWS[case.kind]
    last_written = when == 'after' and index == len(flow.steps) - 1
    if flow.forward_only or last_written:
        check(ground, case, server, case.good)
    else:
        check(ground, case, server, case.bad)
        assert ground.images.made == {}
    assert failed


@pytest.mark.parametrize('lost', ['message', 'reply'])
@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_each_message_is_lost_in_turn(ground, name, lost):
    """Silence means ask, never undo: downward and upward. Ends when the flow has no further message."""
    case, number, seen = CASES[name], 0, [None]
    while len(seen) > number:
        server, seen = case.before(ground), []

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen):
            seen.append(method)
            if len(seen) - 1 != number:
                return deliver()
            if lost == 'reply':
                deliver()
            if kind == 'cast':
                return None
            raise Unanswered(who=topic, reason='injected silence')
        ground.on_message = on_message
        server = case.act(ground, server)
        ground.settle()
        ground.on_message = None
        check(ground, case, server, case.good)
        clear(ground)
        number += case.stride
    assert number > 2, f'{name} has only {number} messages'


@pytest.mark.parametrize('lost', ['request', 'answer'])
@pytest.mark.parametrize('name', ASKING_PLACEMENT)
def test_each_request_to_placement_is_lost_in_turn(ground, name, lost):
    case, number, seen = CASES[name], 0, [None]
    while len(seen) > number:
        server, seen = case.before(ground), []

        def lose(method, path, number=number, seen=seen):
            if not threading.current_thread().name.startswith('flow-'):
                return
            seen.append(path)
            if len(seen) - 1 == number:
                raise ground.placement.broken()
        setattr(ground.placement, 'before' if lost == 'request' else 'after', lose)
        server = case.act(ground, server)
        ground.settle()
        ground.placement.before = ground.placement.after = None
        check(ground, case, server, case.good)
        clear(ground)
        number += case.stride
    assert number > 2, f'{name} has only {number} requests'


# The thread that crashes ends with Crash, as it is meant to.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
@pytest.mark.parametrize('name', CASES)
def test_the_conductor_crashes_before_each_statement_in_turn(ground, name):
    """The conductor is gone right before a statement of the flow's worker; another one takes the row over. Row 1.19."""
    case, number, happened = CASES[name], 0, True
    while happened:
        server, seen = case.before(ground), []
        crashed = threading.Event()

        def listener(database, statement, many, number=number, seen=seen, crashed=crashed):
            if not threading.current_thread().name.startswith('flow-') or crashed.is_set() or ground.in_upcall:
                return
            seen.append(statement)
            if len(seen) - 1 == number:
                crashed.set()
                raise Crash
        silence = engine.listen(listener)
        try:
            server = case.act(ground, server)
            while not crashed.is_set() and ground.rows():
                crashed.wait(0.02)
        finally:
            silence()
        happened = crashed.is_set()
        if happened:
            ground.crash_conductor()
            ground.start_conductor()
        check(ground, case, server, case.good)
        clear(ground)
        number += case.stride
    assert number > 4, f'{name} has only {number} statements'


@pytest.mark.parametrize('moment', ['before', 'after'])
@pytest.mark.parametrize('name', ASKING_HOSTS)
def test_a_compute_crashes_at_each_upcall_in_turn(ground, name, moment):
    """The host is gone before or right after each thing that it tells the conductor; it comes back empty."""
    case, number, happened = CASES[name], 0, True
    while happened:
        server, seen, gone, hosts = case.before(ground), [], [], {}

        def on_message(kind, topic, host, method, args, deliver, number=number, seen=seen, gone=gone, hosts=hosts):
            # Of this thread alone: heartbeats of the same host come from another one.
            worker = threading.get_ident()
            if topic == 'compute' and kind != 'cast':
                hosts[worker] = host
                try:
                    return deliver()
                except Crash:
                    ground.crash_compute(host)
                    gone.append(host)
                    raise Unanswered(who=host, reason='crashed') from None
                finally:
                    del hosts[worker]
            if topic == 'conductor' and worker in hosts and not gone:
                seen.append(method)
                if len(seen) - 1 == number:
                    if moment == 'after':
                        deliver()
                    raise Crash
            return deliver()
        ground.on_message = on_message
        server = case.act(ground, server)
        end = threading.Event()
        for _ in range(500):
            if gone or not ground.rows():
                break
            end.wait(0.02)
        happened = bool(gone)
        if gone:
            ground.start_compute(gone[0])
        ground.settle()
        ground.on_message = None
        for compute in ground.computes.values():
            # What its timer does a few seconds later: guests whose flows started none.
            compute.guests.look_again()
        check(ground, case, server, case.good, case.bad)
        clear(ground)
        number += case.stride
    assert number > 1, f'{name} has no upcall'


@pytest.mark.parametrize('name', CASES)
def test_two_conductors_on_one_row(ground, name):
    case = CASES[name]
    server = case.before(ground)
    second = ground.start_conductor()
    first = next(conductor for conductor in ground.conductors if conductor is not second)

    def on_message(kind, topic, host, method, args, deliver):
        if kind == 'cast' and topic == 'conductor':
            uuids = args.get('operations') or [args['operation']]
            database = ground.databases.api() if args.get('operations') else ground.cell
            for conductor in (first, second):
                conductor.runner.wake(database, uuids)
            return None
        return deliver()
    ground.on_message = on_message
    server = case.act(ground, server)
    check(ground, case, server, case.good)
    ground.on_message = None
    ground.conductors.remove(first)
    first.stop(5)


DELETED = [(one, *pair, when) for one, pair in zip(STEP_IDS, STEPS, strict=True) for when in ('before', 'after')
           if CASES[pair[0]].kind not in ('delete', 'release') and (when == 'after' or not CASES[pair[0]].variant)]


@pytest.mark.parametrize(('name', 'index', 'when'), [row[1:] for row in DELETED],
                         ids=[f'{when}-{one}' for one, *_, when in DELETED])
def test_delete_at_a_step(ground, monkeypatch, name, index, when):
    """Delete always wins, and gives back what both sides had."""
    case, deleted = CASES[name], []
    server = case.before(ground)

    def do(real, work):
        result = real(work) if when == 'after' else None
        if not deleted:
            deleted.append(case.remove(ground, work.instance_uuid))
        return result if when == 'after' else real(work)
    disturb(monkeypatch, case.kind, index, do)
    server = case.act(ground, server)
    check(ground, case, server, 'GONE')
    assert deleted == [server]
    ground.assert_empty()


@pytest.mark.parametrize('name', CAST)
def test_the_broker_loses_the_cast(ground, name):
    case = CASES[name]
    server = case.before(ground)
    ground.on_message = lambda kind, topic, host, method, args, deliver: None if kind == 'cast' else deliver()
    server = case.act(ground, server)
    ground.settle()
    ground.on_message = None
    check(ground, case, server, case.good)
