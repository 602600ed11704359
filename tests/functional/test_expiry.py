"""Periods that expire: builds that take too long, moves that nobody confirms, shelved and rescued servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor import expiry
from kilonova.db import engine
from kilonova.db.queries import migrations, operations
from kilonova.db.queries.expired import Due
from kilonova.errors import InstanceInvalidState, Unanswered
from tests.fixtures.cloud import Cloud
from tests.functional.test_resize import resize

GPUS = {'gpu1': ['0000:08:00.0', '0000:09:00.0'], 'gpu2': ['0000:88:00.0', '0000:89:00.0']}
# What comes round whatever the options say.
CELLS = {expiry.TOKENS: 60, expiry.HISTORY: 60, expiry.ACCELERATORS: 3600}
HOUR = 3600
TIMED_OUT = 'Instance build timed out. Set to error state.'


@pytest.fixture
def hurried(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Two hosts with two GPUs each, where builds and moves have an hour."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    # What a silent scheduler may still claim is looked at again after it.
    monkeypatch.setattr('kilonova.conductor.flows.boot.SELECT_DEADLINE', 0.1)
    return make_cloud(GPUS, instance_build_timeout=HOUR, resize_confirm_window=HOUR)


def age(db: engine.Database, table: Any, seconds: float) -> None:
    """As if all rows of a table had been written that long ago."""
    moment = operations.instance_queries.utcnow() - operations.datetime.timedelta(seconds=seconds)
    with db.write() as conn:
        conn.execute(table.update().values(created_at=moment, updated_at=moment))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waits(db: engine.Database) -> bool:
    """Whether a boot met silence here, and will be tried again."""
    with db.read() as conn:
        return any(
            operations.OperationRow.read(row).outputs.get('tries')
            for row in conn.execute(operations.operations.select()).mappings()
        )


def late(cloud: Cloud) -> int:
    """One look at builds."""
    return cloud.conductors[0].expiry.run('check_instance_build_time')


def assert_timed_out(cloud: Cloud, server: str) -> None:
    """ERROR with its reason, and nothing is left; the user can delete it."""
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:task_state'], shown['fault']['message']) == ('ERROR', None, TIMED_OUT)
    assert cloud.owned(server) == [] and server not in cloud.placement.allocations()
    cloud.assert_clean()
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    cloud.assert_empty()


@pytest.mark.parametrize('method', ['select_destinations', 'build_and_run_instance'])
def test_a_build_whose_answer_never_comes(hurried: Cloud, method: str) -> None:
    """A build that exceeds instance_build_timeout ends in ERROR with a reason, and nothing is left of it, whether
    the scheduler does not answer (the row is in the API database) or the host does not."""
    cloud = hurried

    def on_message(kind: str, topic: str, host: str, name: str, args: dict, deliver: Any) -> Any:
        if name != method:
            return deliver()
        if name == 'select_destinations':
            raise Unanswered(who='scheduler', reason='a test')
        raise Unanswered(who=host, reason='a test')

    cloud.on_message = on_message
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    database = cloud.databases.api() if method == 'select_destinations' else cloud.cell
    until(lambda: waits(database))
    age(database, operations.operations, HOUR - 60)
    assert late(cloud) == 0
    age(database, operations.operations, HOUR + 60)
    assert late(cloud) == 1 and late(cloud) == 0
    cloud.settle()
    assert_timed_out(cloud, server)


def test_a_build_at_which_its_host_works(hurried: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that times out while its host works on it is cancelled there. The host undoes its work, and the fault
    gives the timeout as the reason."""
    cloud, begun, go_on = hurried, threading.Event(), threading.Event()
    for manager in cloud.computes.values():
        power = manager.host.driver.guests
        spawn = power.spawn

        def slowly(*args: Any, spawn: Any = spawn, **kwargs: Any) -> Any:
            begun.set()
            assert go_on.wait(60)
            return spawn(*args, **kwargs)

        monkeypatch.setattr(power, 'spawn', slowly)
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    assert begun.wait(60)
    age(cloud.cell, operations.operations, HOUR + 60)
    try:
        assert late(cloud) == 1
    finally:
        go_on.set()
    cloud.settle()
    assert_timed_out(cloud, server)


def test_a_delete_of_a_build_that_timed_out_wins(hurried: Cloud) -> None:
    """A delete of a server whose build has timed out deletes the server, even if the conductor dies in between."""
    cloud = hurried

    def on_message(kind: str, topic: str, host: str, name: str, args: dict, deliver: Any) -> Any:
        if name == 'build_and_run_instance':
            raise Unanswered(who=host, reason='a test')
        return deliver()

    cloud.on_message = on_message
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    until(lambda: waits(cloud.cell))
    age(cloud.cell, operations.operations, HOUR + 60)
    cloud.conductors[0].runner.halt()
    assert late(cloud) == 1
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.crash_conductor()
    cloud.start_conductor()
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()


def test_a_move_that_nobody_answers_is_confirmed(hurried: Cloud) -> None:
    """A move that is neither confirmed nor reverted within resize_confirm_window is confirmed. Its old devices are
    free, and the action is recorded as confirmResize."""
    cloud = hurried
    server = cloud.boot(cloud.flavor(gpus=1))
    resize(cloud, server, cloud.flavor(gpus=2))
    assert cloud.status(server) == 'VERIFY_RESIZE' and len(cloud.owned(server)) == 3
    look = cloud.conductors[0].expiry.run
    age(cloud.cell, operations.migrations, HOUR - 60)
    assert look('poll_unconfirmed_resizes') == 0
    age(cloud.cell, operations.migrations, HOUR + 60)
    assert look('poll_unconfirmed_resizes') == 1
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and look('poll_unconfirmed_resizes') == 0
    assert len(cloud.owned(server)) == 2 and list(cloud.placement.allocations()) == [server]
    actions = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert actions[0]['action'] == 'confirmResize'
    cloud.assert_clean()


def test_of_two_conductors_one_confirms(hurried: Cloud) -> None:
    """If two conductors find the same expired move, one confirms it and the other gets InstanceInvalidState. A
    revert by the user at that moment is either first or is refused."""
    cloud = hurried
    server = cloud.boot(cloud.flavor(gpus=1))
    resize(cloud, server, cloud.flavor(gpus=2))
    with cloud.cell.read() as conn:
        (due,) = expiry.expired.unconfirmed(conn, 0, 10)
    assert due.server == server and isinstance(due, Due)
    env = cloud.conductors[0].env
    cloud.action(server, 'revertResize', expect=202)
    with pytest.raises(InstanceInvalidState):
        expiry.confirm(env, cloud.cell, due)
    assert cloud.status(server) == 'ACTIVE' and len(cloud.owned(server)) == 1
    resize(cloud, server, cloud.flavor(gpus=2))
    with cloud.cell.read() as conn:
        (due,) = expiry.expired.unconfirmed(conn, 0, 10)
    uuid = expiry.confirm(env, cloud.cell, due)
    with cloud.cell.read() as conn:
        # As the API leaves it: of a confirm and a revert the second finds it taken.
        assert migrations.get(conn, uuid=due.row)['status'] == 'confirming'
    with pytest.raises(InstanceInvalidState):
        expiry.confirm(env, cloud.cell, due)
    env.runner.wake(cloud.cell, [uuid])
    cloud.settle()
    assert cloud.status(server) == 'ACTIVE' and len(cloud.owned(server)) == 2
    cloud.assert_clean()


def test_a_shelved_server_leaves_its_host_in_time(
    make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shelved server keeps its host and devices until shelved_offload_time is over. Then it is offloaded, as if a
    user had requested shelveOffload."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud(GPUS, shelved_offload_time=HOUR)
    assert cloud.conductors[0].expiry.timers.spacing['poll_shelved_instances'] == 3600
    server, other = cloud.boot(cloud.flavor(gpus=1)), cloud.boot(cloud.flavor())
    cloud.action(server, 'shelve', expect=202)

    def look(minutes: int) -> int:
        moment = operations.instance_queries.utcnow() - operations.datetime.timedelta(minutes=minutes)
        with cloud.cell.write() as conn:
            operations.instance_queries.set_system_metadata(conn, server, {'shelved_at': moment.isoformat()})
        return cloud.conductors[0].expiry.run('poll_shelved_instances')

    assert look(59) == 0 and cloud.status(server) == 'SHELVED' and len(cloud.owned(server)) == 1
    assert look(61) == 1
    cloud.settle()
    assert cloud.status(server) == 'SHELVED_OFFLOADED' and cloud.owned(server) == []
    assert list(cloud.placement.allocations()) == [other] and look(61) == 0
    actions = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert actions[0]['action'] == 'shelveOffload'
    cloud.assert_clean()
    cloud.action(server, 'unshelve', expect=202)
    assert cloud.status(server) == 'ACTIVE' and look(61) == 0
    cloud.assert_clean()


def test_a_rescue_ends_in_time(make_cloud: Callable[..., Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rescue ends after rescue_timeout, as if its user had requested unrescue. The period starts with the last
    rescue."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.02)
    cloud = make_cloud(GPUS, rescue_timeout=HOUR)
    server = cloud.boot(cloud.flavor(gpus=1))
    actions, look = operations.instance_queries.actions, cloud.conductors[0].expiry.run

    def begun(minutes: int) -> None:
        moment = operations.instance_queries.utcnow() - operations.datetime.timedelta(minutes=minutes)
        with cloud.cell.write() as conn:
            conn.execute(actions.update().where(actions.c.instance_uuid == server).values(start_time=moment))

    for _time in range(2):
        cloud.action(server, 'rescue', {}, expect=200)
        assert cloud.status(server) == 'RESCUE' and look('poll_rescued_instances') == 0
        begun(59)
        assert look('poll_rescued_instances') == 0
        begun(61)
        assert look('poll_rescued_instances') == 1
        cloud.settle()
        assert cloud.status(server) == 'ACTIVE' and look('poll_rescued_instances') == 0
        assert len(cloud.owned(server)) == 1
        cloud.assert_clean()
    told = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert [row['action'] for row in told].count('unrescue') == 2


def test_each_look_is_one_statement_a_database(hurried: Cloud) -> None:
    """Whatever there is; and a database that is silent holds up no other."""
    cloud, said = hurried, []
    for number in range(3):
        cloud.boot(cloud.flavor(), name=f's{number}')
    expiries = cloud.conductors[0].expiry
    for expires in expiry.EXPIRES:
        said.clear()
        with cloud.cell.read() as conn:
            engine.sa.event.listen(conn, 'before_cursor_execute', lambda *args: said.append(args[2]))
            assert expires.find(conn, 10 * HOUR, 10) == []
        assert len(said) == 1 and 'LIMIT' in said[0]
        assert expiries.run(expires.name) == 0


def test_without_an_option_nothing_comes_round(make_cloud: Callable[..., Cloud]) -> None:
    cloud = make_cloud({'gpu1': []})
    timers = cloud.conductors[0].expiry.timers
    assert timers.spacing == CELLS
    assert {task['spacing'] for task in timers.told() if task['name'] not in CELLS} == {-1}
    assert [task['name'] for task in timers.told()] == sorted(
        [*CELLS, expiry.HEALING, *(expires.name for expires in expiry.EXPIRES)]
    )


def test_periodic_enable_is_the_conductors_too(make_cloud: Callable[..., Cloud]) -> None:
    cloud = make_cloud({'gpu1': []}, instance_build_timeout=1, periodic_enable=False)
    assert cloud.conductors[0].expiry.timers.spacing == {}


def test_what_expires_comes_round(make_cloud: Callable[..., Cloud]) -> None:
    """Each periodic task of expiry runs under its own name, once a minute, or more often if its period is shorter."""
    cloud = make_cloud({'gpu1': []}, instance_build_timeout=1, resize_confirm_window=30, reclaim_instance_interval=HOUR)
    timers = cloud.conductors[0].expiry.timers
    assert timers.spacing == {
        **CELLS,
        'check_instance_build_time': 1,
        'poll_unconfirmed_resizes': 30,
        'reclaim_queued_deletes': 60,
    }
    until(lambda: next(one for one in timers.told() if one['name'] == 'check_instance_build_time')['result'] == 'ok')
