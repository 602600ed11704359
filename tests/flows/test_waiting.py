"""What waits never blocks what must go through: deletes, rows behind rows that are held, boots beside a dead host.

Each test is the story of a fault that there was; ``docs/reference/regressions.md`` lists them.
"""

from __future__ import annotations

import threading
import time

import pytest

from kilonova.db.queries import operations
from kilonova.errors import Cancelled, Unanswered
from kilonova.virt.libvirt.snapshots import LibvirtSnapshots
from tests.flows.test_fencing import until

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:85:00.0', '0000:86:00.0']}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)


def held_up(cloud, method='build_and_run_instance', host='gpu1'):
    """The first call of this method to this host takes until ``hold`` is set: (hold, at_it)."""
    hold, at_it = threading.Event(), threading.Event()

    def on_message(kind, topic, to, name, args, deliver):
        if name == method and to == host and not at_it.is_set():
            at_it.set()
            hold.wait(60)
        return deliver()

    cloud.on_message = on_message
    return hold, at_it


def service(cloud, host, down):
    (found,) = cloud.ok('GET', f'/os-services?host={host}&binary=nova-compute')['services']
    cloud.ok('PUT', f'/os-services/{found["id"]}', {'forced_down': down})


def test_a_delete_reaches_an_operation_that_waits_for_a_slot(make_cloud):
    """A delete ends an operation that waits for a slot of its host, even if the call in that slot goes on."""
    cloud = make_cloud(GPUS, conductor__flow_slots_per_host=1)
    flavor = cloud.flavor()
    hold, at_it = held_up(cloud)
    first = cloud.create(flavor, availability_zone='nova:gpu1')['server']['id']
    assert at_it.wait(20)
    parked = cloud.create(flavor, availability_zone='nova:gpu1')['server']['id']
    (runner,) = [conductor.runner for conductor in cloud.conductors]
    until(runner.slots.parked)
    assert cloud.request('DELETE', f'/servers/{parked}').status_int == 204
    try:
        until(lambda: cloud.status(parked) == 'GONE')
    finally:
        hold.set()
    cloud.settle()
    assert cloud.status(first) == 'ACTIVE'
    cloud.assert_clean()


def test_a_delete_reaches_what_another_conductor_has_parked(make_cloud):
    """Rule 17: the one who takes the delete can't wake it; its holder's sweep sees that it was cancelled."""
    cloud = make_cloud(GPUS, conductor__flow_slots_per_host=1)
    flavor = cloud.flavor()
    hold, at_it = held_up(cloud)
    cloud.create(flavor, availability_zone='nova:gpu1')
    assert at_it.wait(20)
    parked = cloud.create(flavor, availability_zone='nova:gpu1')['server']['id']
    first = cloud.conductors[0].runner
    until(first.slots.parked)
    second = cloud.start_conductor()
    on_message = cloud.on_message

    def to_second(kind, topic, to, name, args, deliver):
        if name == 'terminate_instance' and kind == 'cast':
            second.runner.wake(cloud.cell, [args['operation']], urgent=True)
            return None
        return on_message(kind, topic, to, name, args, deliver)

    cloud.on_message = to_second
    assert cloud.request('DELETE', f'/servers/{parked}').status_int == 204
    until(lambda: cloud.status(parked) == 'GONE')
    hold.set()
    cloud.settle()
    cloud.assert_clean()


def test_a_sweep_sees_what_is_behind_its_own_rows(make_cloud, monkeypatch):
    """A sweep finds a younger row even if the conductor itself holds more rows than one batch of the sweep has."""
    monkeypatch.setattr('kilonova.conductor.sweep.SWEEP_BATCH', 3)
    cloud = make_cloud(GPUS, conductor__flow_slots_per_host=1)
    flavor = cloud.flavor()
    other = cloud.boot(flavor, availability_zone='nova:gpu2')
    hold, at_it = held_up(cloud)
    many = [cloud.create(flavor, availability_zone='nova:gpu1')['server']['id'] for _ in range(4)]
    assert at_it.wait(20)
    (runner,) = [conductor.runner for conductor in cloud.conductors]
    until(lambda: len(runner.slots.parked()) == 3)
    on_message = cloud.on_message
    cloud.on_message = lambda kind, *rest: None if kind == 'cast' else on_message(kind, *rest)
    assert cloud.request('POST', f'/servers/{other}/action', {'os-stop': None}).status_int == 202
    cloud.on_message = on_message
    try:
        until(lambda: cloud.status(other) == 'SHUTOFF')
    finally:
        hold.set()
    cloud.settle()
    assert [cloud.status(server) for server in many] == ['ACTIVE'] * 4


def endless_snapshot(cloud, monkeypatch):
    """A server whose snapshot is copied until its host is told to stop or ``over`` is set: (server, over, stopped)."""
    server = cloud.boot(cloud.flavor())
    at_it, over, stopped = threading.Event(), threading.Event(), []

    def endless(self, instance, image_id, check, uploading):
        at_it.set()
        while not over.wait(0.05):
            try:
                check()
            except Cancelled:
                stopped.append('cancelled')
                raise

    monkeypatch.setattr(LibvirtSnapshots, 'snapshot', endless)
    assert cloud.request('POST', f'/servers/{server}/action', {'createImage': {'name': 'x'}}).status_int == 202
    assert at_it.wait(20)
    return server, over, stopped


@pytest.mark.parametrize('lost', ['cast', 'cancel'])
def test_a_cancel_that_was_lost_is_sent_again(make_cloud, monkeypatch, lost):
    """A delete during a snapshot ends although its cast, or the host's `cancel`, was lost: the sweep sends `cancel`
    again."""
    cloud, losing = make_cloud(GPUS), []
    server, over, stopped = endless_snapshot(cloud, monkeypatch)

    def on_message(kind, topic, host, method, args, deliver):
        if kind == 'cast' and method == ('terminate_instance' if lost == 'cast' else 'cancel') and not losing:
            losing.append(method)
            return None
        return deliver()

    cloud.on_message = on_message
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    try:
        until(lambda: cloud.status(server) == 'GONE')
    finally:
        over.set()
    assert stopped and losing
    cloud.settle()
    cloud.assert_clean()


def test_a_reset_stops_what_a_host_is_at(make_cloud, monkeypatch):
    """Rule 17: nothing waits behind what it cancelled, so that the sweep alone tells the host."""
    cloud = make_cloud(GPUS)
    server, over, stopped = endless_snapshot(cloud, monkeypatch)
    assert cloud.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'active'}}).status_int == 202
    try:
        until(lambda: stopped)
    finally:
        over.set()
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and not cloud.images.made
    cloud.assert_clean()


def test_a_boot_beside_a_dead_host(make_cloud, monkeypatch):
    """A boot on a living host ends while sixteen deletes wait for a dead host and the conductor has eight slots.

    The conductor checks whether a host is up before it sends a message, and limits the calls to one host for deletes,
    too.
    """
    monkeypatch.setattr('kilonova.conductor.work.LONGEST_PAUSE', 0.2)
    cloud = make_cloud(
        {'gpu1': ['0000:08:00.0'], 'gpu2': ['0000:85:00.0']}, conductor__flow_slots=8, conductor__flow_slots_per_host=2
    )
    flavor = cloud.flavor()
    servers = [cloud.create(flavor, availability_zone='nova:gpu1')['server']['id'] for _ in range(16)]
    cloud.settle()
    (runner,) = [conductor.runner for conductor in cloud.conductors]
    cloud.crash_compute('gpu1')
    service(cloud, 'gpu1', True)
    hold, waiting, most, sent = threading.Event(), [], [], []

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'compute' and host == 'gpu1' and kind != 'cast':
            # Its queue outlives it in the broker: nobody says that nobody listens.
            sent.append(method)
            waiting.append(method)
            most.append(len(waiting))
            hold.wait(2)
            waiting.pop()
            raise Unanswered(who=host, reason='timed out')
        return deliver()

    cloud.on_message = on_message
    for server in servers:
        assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    until(lambda: len(most) >= 2)
    # While the first ones wait: what runs for the host never takes all slots.
    server = cloud.create(flavor)['server']['id']
    until(lambda: cloud.status(server) == 'ACTIVE')
    assert max(most) <= 2
    # Calls that end at once, so that it is no lack of slots that keeps any from being sent.
    hold.set()
    until(lambda: [row['kind'] for row in cloud.rows()] == ['release'] * 16 and not waiting, 120)
    # Nobody sends anything to a host that is known to be down, however often its releases are looked at.
    before = len(sent)
    for _ in range(3):
        runner.sweep()
        time.sleep(0.3)
    assert len(sent) == before
    cloud.on_message = None
    cloud.start_compute('gpu1')
    service(cloud, 'gpu1', False)
    cloud.settle(120)
    cloud.assert_clean()


def test_urgent_work_finds_a_worker_however_many_calls_are_slow(make_cloud):
    """Rule 5: all workers for ordinary work are in long calls; a delete elsewhere goes through."""
    cloud = make_cloud(GPUS, conductor__flow_slots=4, conductor__flow_slots_per_host=100)
    flavor = cloud.flavor()
    other = cloud.boot(flavor, availability_zone='nova:gpu2')
    hold, begun = threading.Event(), []

    def on_message(kind, topic, to, name, args, deliver):
        if name == 'build_and_run_instance':
            begun.append(to)
            hold.wait(60)
        return deliver()

    cloud.on_message = on_message
    many = [cloud.create(flavor, availability_zone='nova:gpu1')['server']['id'] for _ in range(5)]
    until(lambda: len(begun) == 3)
    assert cloud.request('DELETE', f'/servers/{other}').status_int == 204
    try:
        until(lambda: cloud.status(other) == 'GONE')
        assert len(begun) == 3
    finally:
        hold.set()
    cloud.settle()
    assert [cloud.status(server) for server in many] == ['ACTIVE'] * 5


def test_what_is_unparked_and_ends_without_its_slot_passes_it_on(make_cloud):
    """If a parked operation gets a slot but lost its row to another owner, the next parked operation gets the slot."""
    cloud = make_cloud(GPUS, conductor__flow_slots_per_host=1)
    flavor = cloud.flavor()
    hold, at_it = held_up(cloud)
    many = [cloud.create(flavor, availability_zone='nova:gpu1')['server']['id']]
    assert at_it.wait(20)
    (runner,) = [conductor.runner for conductor in cloud.conductors]
    for count in (1, 2):
        many.append(cloud.create(flavor, availability_zone='nova:gpu1')['server']['id'])
        until(lambda count=count: len(runner.slots.parked()) == count)
    # As if another conductor had taken the first that waits.
    table = operations.operations
    with cloud.cell.write() as conn:
        conn.execute(table.update().where(table.c.uuid == runner.slots.parked()[0]).values(owner='another'))
    # Within the time that the sweep would need, nothing else resumes them.
    hold.set()
    until(lambda: cloud.status(many[2]) == 'ACTIVE')
    cloud.settle()
    assert [cloud.status(server) for server in many] == ['ACTIVE'] * 3


def test_waiting_rows_take_no_thread(make_cloud, monkeypatch):
    """Rule 7: forty rows that wait for their time, one queue."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 1.0)
    cloud = make_cloud(GPUS, conductor__sweep_interval=15)
    flavor = cloud.flavor()
    silent = [True]

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'build_and_run_instance' and silent:
            raise Unanswered(who=host, reason='injected silence')
        return deliver()

    cloud.on_message = on_message
    many = [cloud.create(flavor)['server']['id'] for _ in range(40)]
    (runner,) = [conductor.runner for conductor in cloud.conductors]
    until(lambda: runner.workers.due() >= 20)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    silent.clear()
    cloud.settle()
    assert [cloud.status(server) for server in many] == ['ACTIVE'] * 40
