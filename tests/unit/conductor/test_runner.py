"""The runner alone: its leases, its sweep, the slots of hosts, rows that wait for their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.conductor import flows, process
from kilonova.conductor import runner as runners
from kilonova.conductor.environment import Environment
from kilonova.conductor.host_liveness import HostLiveness
from kilonova.conductor.row import Outputs
from kilonova.conductor.runner import Runner
from kilonova.conductor.work import WaitingForHostSlot, Work
from kilonova.db import engine
from kilonova.db.models.cell import Base
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import Cancelled, LeaseLost

CONTEXT = {'user_id': 'u', 'project_id': 'p'}


def until(what: Callable[[], Any], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, 'it did not become true'
        time.sleep(0.01)


@pytest.fixture
def databases(tmp_path) -> Iterator[list[engine.Database]]:
    found = [engine.Database(f'sqlite:///{tmp_path}/{name}.sqlite', name) for name in ('api', 'cell1')]
    for database in found:
        Base.metadata.create_all(database._engine)
    yield found
    for database in found:
        database.dispose()


@pytest.fixture
def make(databases, monkeypatch) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []
    # No cast is under way.
    monkeypatch.setattr(runners, 'YOUNG', -60.0)

    def runner(**options: Any) -> Runner:
        api, cell = databases
        env: Any = SimpleNamespace(
            api=api,
            cells=SimpleNamespace(databases=lambda: [cell], reload=lambda: None),
            liveness=HostLiveness(60),
            all_databases=lambda: [api, cell],
            ping=lambda: None,
            compute=SimpleNamespace(cancel=lambda *args, **kwargs: None),
        )
        values = {'slots': 4, 'slots_per_host': 2, 'lease_time': 3, 'sweep_interval': 0.2, 'host': 'ctl1', **options}
        found = Runner(env, **values)
        found.ran = []  # type: ignore[attr-defined]

        def run(work: Work) -> None:
            found.ran.append(work.uuid)  # type: ignore[attr-defined]
            found.finished(work)

        found.run = run  # type: ignore[method-assign]
        made.append(found)
        return found

    yield runner
    for one in made:
        one.stop(1)


def add(database: engine.Database, uuid: str, **values: Any) -> None:
    with database.write() as conn:
        operations.insert(
            conn,
            [
                operations.OperationRow(
                    **{'uuid': uuid, 'kind': 'stop', 'instance_uuid': f'server of {uuid}', 'context': CONTEXT, **values}
                )
            ],
        )


def work_of(
    runner: Runner, database: engine.Database, uuid: str = 'o', owner: str | None = None, **values: Any
) -> Work[Outputs]:
    row = operations.OperationRow(
        **{'uuid': uuid, 'kind': 'stop', 'instance_uuid': 's', 'request_id': 'r', 'context': CONTEXT, **values}
    )
    env: Environment = runner.env
    return Work(row, database, env, owner or runner.leases.owner_in(database), Outputs)


def run_out(database: engine.Database, owner: str) -> None:
    with database.write() as conn:
        conn.execute(
            operation_leases.leases.update()
            .where(operation_leases.leases.c.owner == owner)
            .values(expires=engine.now(conn) - 0.001)
        )


def test_a_database_that_hangs_holds_up_no_other(make, databases, monkeypatch):
    """A database that hangs stops neither the renewal of leases nor the sweep in another database."""
    api, cell = databases
    runner, hanging, release = make(), threading.Event(), threading.Event()
    runner.start()
    real = engine.Database.write

    def write(self):
        if self is api:
            hanging.set()
            release.wait(30)
        return real(self)

    monkeypatch.setattr(engine.Database, 'write', write)
    monkeypatch.setattr(
        engine.Database,
        'read',
        lambda self, read=engine.Database.read: (release.wait(30) if self is api else None, read(self))[1],
    )
    try:
        assert hanging.wait(10)
        add(cell, 'row')
        until(lambda: 'row' in runner.ran)
        # Whoever takes a row may renew the lease for that: there is none from now on.
        with cell.write() as conn:
            operations.end(conn, 'row', 'server of row')
        until(lambda: not runner._held)
        with cell.read() as conn:
            first = conn.execute(sa.select(operation_leases.leases.c.expires)).scalar_one()

        def renewed() -> bool:
            with cell.read() as conn:
                return conn.execute(sa.select(operation_leases.leases.c.expires)).scalar_one() > first + 1

        until(renewed)
    finally:
        release.set()


def test_a_lease_that_ran_out_is_never_renewed(make, databases):
    """Rule 6: the process goes on as another owner; what it held as the old one is lost."""
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    before = runner.leases.owner_in(cell)
    runner.leases.check(cell, before)
    run_out(cell, before)
    assert not operation_leases.renew_lease(cell, before, 30)
    runner.leases.renew(cell)
    after = runner.leases.owner_in(cell)
    assert after != before
    runner.leases.check(cell, after)
    with pytest.raises(LeaseLost):
        runner.leases.check(cell, before)
    with cell.read() as conn:
        assert [owner for owner, _ in operation_leases.living(conn)] == [after]


def test_no_step_is_begun_by_who_could_not_renew(make, databases):
    """Rule 6: for two thirds of the lease, by its own clock, though the lease itself still stands."""
    _, cell = databases
    runner = make(lease_time=30)
    runner.leases.renew(cell)
    owner = runner.leases.owner_in(cell)
    runner.leases._leases[cell.url].renewed -= 21
    runner.leases.check(cell, owner)
    assert time.monotonic() - runner.leases._leases[cell.url].renewed < 10, 'it was renewed for that'
    runner.leases._leases[cell.url].renewed -= 21
    run_out(cell, owner)
    with pytest.raises(LeaseLost):
        runner.leases.check(cell, owner)


@pytest.mark.parametrize(
    'change', [{}, {'lease': -1}, {'owner': 'another'}, {'position': 1}, {'attempt': 2}, {'cancelled': True}]
)
def test_decisions_compare_owner_lease_position_and_attempt(make, databases, change):
    """Rules 6 and 14: each condition alone keeps a decision, a message, an undo and an end from being made."""
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    owner = runner.leases.owner_in(cell)
    add(cell, 'o', owner=owner)
    if 'lease' in change:
        run_out(cell, owner)
    else:
        with cell.write() as conn:
            conn.execute(operations.operations.update().values(change or {'owner': owner}))
    with cell.read() as conn:
        stands = operation_leases.stands(conn, 'o', owner, (0, 1))
    assert stands is (not change)
    for act in (Work.compare_now, lambda work: work.decide({'position': 0}), Work.end):
        # Who learnt that it was cancelled may end it.
        work = work_of(runner, cell)
        if change:
            with pytest.raises((LeaseLost, Cancelled)):
                act(work)
        else:
            act(work)
    with cell.read() as conn:
        assert bool(operations.get(conn, 'o')) is bool(change)


def test_own_rows_in_no_runner_are_found(make, databases):
    """Rule 7: a row of ours that nobody holds any more, too."""
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    add(cell, 'mine', owner=runner.leases.owner_in(cell))
    runner.start()
    until(lambda: runner.ran and set(runner.ran) == {'mine'})


def test_a_boot_in_a_cell_waits_for_its_twin(make, databases):
    """Rule 19: until the api database has it no more, the row there alone counts; so it does while that is silent."""
    api, cell = databases
    runner = make()
    for database in databases:
        runner.leases.renew(database)
        add(database, 'boot', kind='boot', not_before=0 if database is cell else 2e10)
    assert runner.sweep() == 0 and not runner._held
    reads, api.read = api.read, None
    assert runner.sweep() == 0 and not runner._held
    api.read = reads
    with api.write() as conn:
        operations.end(conn, 'boot', 'server of boot')
    assert runner.sweep() == 1 and runner._held == {'boot'}


def test_rows_given_back_belong_to_nobody(make, databases):
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    add(cell, 'o', owner=runner.leases.owner_in(cell))
    work_of(runner, cell).give_back(RuntimeError('x'))
    with cell.read() as conn:
        row = operations.get(conn, 'o')
    assert row.owner is None and row.not_before > 0 and row.outputs == {'tries': 1, 'reason': 'RuntimeError'}


def test_a_cancelled_row_that_is_given_back_does_not_wait(make, databases):
    """Its delete waits for it."""
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    add(cell, 'o', owner=runner.leases.owner_in(cell), cancelled=True)
    work_of(runner, cell).give_back(RuntimeError('x'))
    with cell.read() as conn:
        assert operations.get(conn, 'o').not_before <= engine.now(conn)


@pytest.mark.parametrize('delay', [0.0, 3600.0])
def test_a_row_that_is_added_may_wait(make, databases, delay):
    """One of its kind is there once."""
    _, cell = databases
    runner = make()
    runner.leases.renew(cell)
    add(cell, 'o', owner=runner.leases.owner_in(cell), instance_uuid='s')
    for uuid in ('p', 'q'):
        other = operations.OperationRow(
            uuid=uuid, kind='release', instance_uuid='s', request_id='r', context=CONTEXT, slot=uuid
        )
        assert work_of(runner, cell).add(other, lambda row: row.kind == 'release', delay, None)
    with cell.read() as conn:
        assert operations.get(conn, 'q') is None
        waits = operations.get(conn, 'p').not_before - (engine.now(conn) if delay else 0.0)
    assert waits == 0.0 if not delay else waits > delay / 2


def test_a_hand_over_takes_no_row_from_somebody_living(databases):
    """A hand-over takes a row from a dead owner or from none, but not from a living one (operations.md, rule 19)."""
    _, cell = databases
    operation_leases.begin_lease(cell, 'me', 'h', 30)
    operation_leases.begin_lease(cell, 'living', 'h', 30)
    operation_leases.begin_lease(cell, 'dead', 'h', -1)
    for owner, after in (('living', 'living'), ('dead', 'me'), (None, 'me')):
        add(cell, f'of {owner}', owner=owner)
        with cell.write() as conn:
            operation_leases.own(conn, f'of {owner}', 'me')
        with cell.read() as conn:
            assert operations.get(conn, f'of {owner}').owner == after
    # Nor does one whose own lease has run out.
    add(cell, 'free')
    with cell.write() as conn:
        operation_leases.own(conn, 'free', 'dead')
    with cell.read() as conn:
        assert operations.get(conn, 'free').owner is None


def test_a_waiting_delete_behind_nothing_goes_on(make, databases):
    """However it came to that: the row before it is gone, and nobody told it."""
    _, cell = databases
    runner = make()
    add(cell, 'd', kind='delete', slot=operations.WAIT)
    runner.start()
    until(lambda: runner.ran and set(runner.ran) == {'d'})


def test_slots_of_a_host(make, databases):
    """Rule 5: so many calls to one host, as many of urgent work; what waits goes on in its order, with its slot."""
    _, cell = databases
    runner = make()
    resumed = []
    runner.workers.add = lambda job, urgent: resumed.append(job.args[0].uuid)
    works = [work_of(runner, cell, str(number)) for number in range(4)]
    deletes = [work_of(runner, cell, f'd{number}', kind='delete') for number in range(3)]
    assert [runner.slots.take('gpu1', work) for work in works] == [True, True, False, False]
    assert [runner.slots.take('gpu1', work) for work in deletes] == [True, True, False]
    assert runner.slots.take('gpu2', work_of(runner, cell, 'elsewhere'))
    assert sorted(runner.slots.parked()) == ['2', '3', 'd2']
    runner.slots.release('gpu1', works[0])
    assert resumed == ['2'] and works[2].held_host == 'gpu1'
    runner.slots.release('gpu1', deletes[0])
    assert resumed == ['2', 'd2']
    runner.slots.release('gpu1', works[2])
    assert resumed == ['2', 'd2', '3']


def test_one_call_finds_out_whether_a_silent_host_is_back(make, databases):
    _, cell = databases
    runner = make()
    runner.workers.add = lambda job, urgent: None
    runner.slots.silent('gpu1')
    works = [work_of(runner, cell, str(number)) for number in range(3)]
    assert [runner.slots.take('gpu1', work) for work in works] == [True, False, False]
    runner.slots.answers('gpu1')
    assert [work.held_host for work in works] == [None, 'gpu1', None]
    assert runner.slots.parked() == ['2']


# --- the runner in this thread ---------------------------------------------------------------------------------------
class Queued:
    """What a runner gave its workers, as (job, urgent)."""

    def __init__(self, runner: Runner) -> None:
        self.jobs: list[tuple[Any, bool]] = []
        self.later: list[tuple[float, Any]] = []
        runner.workers.add = lambda job, urgent: self.jobs.append((job, urgent))  # type: ignore[method-assign]
        runner.workers.call_later = lambda seconds, act: self.later.append(  # type: ignore[method-assign]
            (seconds, act)
        )

    def work_off(self) -> list[bool]:
        """All of them, with what follows; which were urgent."""
        done = []
        while self.jobs:
            job, urgent = self.jobs.pop(0)
            done.append(urgent)
            while job is not None:
                job = job()
        return done


@pytest.fixture
def queued(make, databases) -> tuple[Any, Queued]:
    runner = make()
    for database in databases:
        runner.leases.renew(database)
    return runner, Queued(runner)


def test_a_row_is_taken_once(queued, databases):
    """Waking it again while it is here does nothing."""
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o')
    runner.wake(cell, ['o'])
    runner.wake(cell, ['o'], urgent=True)
    assert runner.holds('o') and len(jobs.jobs) == 1
    assert jobs.work_off() == [False] and runner.ran == ['o'] and not runner.holds('o')
    with cell.read() as conn:
        assert operations.get(conn, 'o').owner == runner.leases.owner_in(cell)


@pytest.mark.parametrize('urgent', [True, False])
def test_what_is_urgent_is_taken_so(queued, databases, urgent):
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o')
    runner.wake(cell, ['o'], urgent=urgent)
    assert jobs.work_off() == [urgent]


def test_rows_of_one_create_begin_together(queued, databases, monkeypatch):
    """One worker goes on with the first, the others are queued. Boots that were not begun are selected together."""
    (runner, jobs), (api, _) = queued, databases
    together = []
    monkeypatch.setattr(
        type(flows.FLOWS['boot']),
        'begin_together',
        lambda self, works: together.append([(work.uuid, work.select_answered) for work in works]),
    )
    add(api, 'a', kind='boot')
    add(api, 'b', kind='boot')
    add(api, 'c', kind='boot', position=1)
    add(api, 'd', kind='boot', failed=True)
    add(api, 'e', kind='boot', cancelled=True)
    add(api, 'f', kind='delete')
    runner.wake(api, ['a', 'b', 'c', 'd', 'e', 'f'], fresh=True)
    assert jobs.work_off() == [False, False, False, True, False, True]
    assert together == [[('a', True), ('b', True)]] and runner.ran == ['a', 'b', 'c', 'd', 'e', 'f']


def test_one_boot_begins_by_itself(queued, databases, monkeypatch):
    (runner, jobs), (api, _) = queued, databases
    monkeypatch.setattr(type(flows.FLOWS['boot']), 'begin_together', lambda self, works: 1 / 0)
    seen = []
    runner.run = lambda work: seen.append(work.select_answered)
    for number, fresh in enumerate((True, False)):
        add(api, str(number), kind='boot')
        runner.wake(api, [str(number)], fresh=fresh)
    jobs.work_off()
    # Of a row that others had before us a question may still be open.
    assert seen == [True, False]


def test_rows_that_could_not_be_taken_are_let_go(queued, databases, monkeypatch):
    (runner, jobs), (_, cell) = queued, databases
    monkeypatch.setattr(operation_leases, 'take', lambda db, uuids, owner: 1 / 0)
    runner.wake(cell, ['o'])
    jobs.work_off()
    assert not runner.holds('o') and runner.ran == []


def test_without_a_lease_nothing_is_taken(queued, databases, monkeypatch):
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o')

    def check(db, owner):
        raise LeaseLost(operation='x')

    monkeypatch.setattr(runner.leases, 'check', check)
    runner.wake(cell, ['o'])
    jobs.work_off()
    with cell.read() as conn:
        assert operations.get(conn, 'o').owner is None and not runner.holds('o')


def test_of_a_row_that_is_not_to_be_had_what_is_before_it_is_cancelled(queued, databases, monkeypatch):
    """A waiting delete, or one of another owner."""
    (runner, jobs), (_, cell) = queued, databases
    before = []
    monkeypatch.setattr(runner._cancels, 'before', lambda db, uuid: before.append((db, uuid)))
    add(cell, 'a')
    add(cell, 'd', kind='delete', slot=operations.WAIT)
    runner.wake(cell, ['a', 'd'])
    jobs.work_off()
    assert before == [(cell, 'd')] and runner.ran == ['a'] and not runner.holds('d')


def test_a_row_that_waits_here_is_looked_at_again(queued, databases):
    """A wake may follow a cancel."""
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o', owner=runner.leases.owner_in(cell))
    runner._held.add('o')
    others = [work_of(runner, cell, str(number)) for number in range(2)]
    assert all(runner.slots.take('gpu1', other) for other in others)
    work = work_of(runner, cell)
    assert not runner.slots.take('gpu1', work) and not runner.idle()
    runner.wake(cell, ['o'], urgent=True)
    assert runner.slots.parked() == [] and jobs.work_off() == [True] and runner.ran == ['o']


def test_what_waited_goes_on_unless_its_row_went_elsewhere(queued, databases):
    (runner, jobs), (_, cell) = queued, databases
    runner._held.add('o')
    work = work_of(runner, cell)
    work.slot_urgent = True
    runner._go_on(work)
    assert jobs.work_off() == [True] and runner.ran == [] and not runner.holds('o')
    add(cell, 'o', owner=runner.leases.owner_in(cell))
    work.slot_urgent = False
    runner._go_on(work)
    assert jobs.work_off() == [False] and runner.ran == ['o']


def test_what_waited_while_the_database_is_silent_is_given_back(queued, databases):
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o', owner=runner.leases.owner_in(cell))
    work = work_of(runner, cell)
    work.resumed = lambda: 1 / 0
    runner._go_on(work)
    jobs.work_off()
    with cell.read() as conn:
        assert operations.get(conn, 'o').owner is None
    assert runner.ran == []


def test_what_is_given_back_is_looked_at_in_time(queued, databases):
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o')
    runner._held.add('o')
    runner.finished(work_of(runner, cell, kind='delete'), retry_in=7.0)
    ((seconds, act),) = jobs.later
    # Not before the row may be taken.
    assert not runner.holds('o') and 7.0 < seconds < 8
    act()
    assert jobs.work_off() == [True] and runner.ran == ['o']
    runner.finished(work_of(runner, cell))
    assert len(jobs.later) == 1


def test_what_stops_takes_nothing(queued, databases):
    (runner, jobs), (_, cell) = queued, databases
    add(cell, 'o')
    runner.halt()
    runner.wake(cell, ['o'])
    assert jobs.jobs == [] and not runner.holds('o')


def test_an_end_gives_the_rows_free(make, databases):
    _, cell = databases
    runner = make()
    runner.start()
    add(cell, 'o', owner=runner.leases.owner_in(cell), not_before=2e10)
    runner.stop(5)
    with cell.read() as conn:
        assert operations.get(conn, 'o').owner is None and operation_leases.living(conn) == []


def test_a_lease_says_which_process_holds_it(make, databases):
    """It is described when it starts: it may have been forked meanwhile."""
    api, cell = databases
    runner = make()
    assert runner.leases.host == 'ctl1'
    runner.start()
    for database in (api, cell):
        with database.read() as conn:
            assert [text for _, text in operation_leases.living(conn)] == [process.describe('ctl1')]


def test_work_of_a_lease_that_ran_out_is_dropped(queued, databases):
    """What waited for slots; nothing of it is asked any more."""
    (runner, _), (_, cell) = queued, databases
    owner = runner.leases.owner_in(cell)
    for number in range(4):
        runner._held.add(str(number))
        runner.slots.take('gpu1', work_of(runner, cell, str(number), owner if number < 3 else 'another'))
    assert runner.slots.parked() == ['2', '3']
    run_out(cell, owner)
    runner.leases.renew(cell)
    assert runner.slots.parked() == ['3'] and not runner.holds('2') and runner.holds('0')


def test_a_flow_runs_as_its_request(make, databases, monkeypatch):
    """Its log lines are those of the request; what its flow doesn't catch leaves the row to the sweep."""
    from oslo_context import context

    _, cell = databases
    runner = make()
    del runner.run
    seen: list[Any] = []
    happens: list[Any] = [None, WaitingForHostSlot(), ZeroDivisionError()]

    def run(self, work):
        seen.append(context.get_current() is work.ctxt)
        error = happens.pop(0)
        if error:
            raise error

    monkeypatch.setattr(type(flows.FLOWS['stop']), 'run', run)
    for number in range(3):
        runner._held.add(str(number))
        runner.run(work_of(runner, cell, str(number)))
    assert seen == [True] * 3 and runner._held == {'0', '1'}


def test_a_sweep_of_all(queued, databases):
    (runner, jobs), (api, cell) = queued, databases
    add(api, 'a')
    add(cell, 'b')
    assert runner.sweep() == 2
    jobs.work_off()
    assert sorted(runner.ran) == ['a', 'b']
    assert runner.sweep(3600) == 0


def test_a_cancel_is_sent_to_whoever_has_the_row(queued, databases, monkeypatch):
    (runner, _), (_, cell) = queued, databases
    again = []
    monkeypatch.setattr(runner._cancels, 'again', lambda db, uuid: again.append((db, uuid)))
    runner.was_cancelled(cell, 'o')
    assert again == [(cell, 'o')]


def test_silence_of_all_hosts_makes_it_listen_to_itself(queued, databases, monkeypatch):
    """Where it doesn't reach itself hosts couldn't be heard."""
    runner, _ = queued
    cut, looked = [], []

    class Listening:
        period, silence = 0.01, True

        def look(self, db):
            looked.append(db)
            raise ZeroDivisionError

        def cut_off(self):
            cut.append(1)
            runner.halt()

    runner.env.liveness = Listening()
    pinged = []
    runner.env.ping = lambda: (pinged.append(1), len(pinged) > 1 and 1 / 0)
    runner._listen_forever()
    # Cells alone have hosts.
    assert set(looked) == {databases[1]} and len(pinged) == 2 and cut == [1]


def test_while_hosts_are_heard_it_does_not_ask_itself(queued, databases):
    runner, _ = queued
    looks = []

    class Listening:
        period, silence = 0.01, False

        def look(self, db):
            looks.append(db)
            if len(looks) == 3:
                runner.halt()

    runner.env.liveness = Listening()
    runner.env.ping = lambda: 1 / 0
    runner._listen_forever()
    assert len(looks) == 3


def test_a_new_cell_is_looked_after(make, databases, tmp_path):
    """Each database once, though it is read again and again; an error of that ends nothing."""
    api, cell = databases
    runner = make(sweep_interval=0.02)
    found, reads = [api], []

    def reload():
        reads.append(1)
        if len(reads) == 3:
            found.append(cell)
        raise ZeroDivisionError

    runner.env.all_databases = lambda: found
    runner.env.cells.reload = reload
    before = threading.active_count()
    runner.start()
    with cell.read() as conn:
        assert operation_leases.living(conn) == []
    until(lambda: len(reads) > 5)
    add(cell, 'o')
    until(lambda: 'o' in runner.ran)
    names = [thread.name for thread in threading.enumerate()]
    assert sorted(name for name in names if name.startswith(('lease-', 'sweep-'))) == [
        'lease-api',
        'lease-cell1',
        'sweep-api',
        'sweep-cell1',
    ]
    runner.stop(5)
    until(lambda: threading.active_count() <= before)


def test_a_database_that_does_not_answer_holds_up_no_operation_for_another_host(queued, databases, monkeypatch):
    """What waits for a host that is down goes on, and finds out that it is down."""
    (runner, jobs), (_, cell) = queued, databases
    for host in ('gpu1', 'gpu2', 'gpu3'):
        runner.slots.silent(host)
        for number in range(2):
            runner.slots.take(host, work_of(runner, cell, f'{host} {number}'))
    assert sorted(runner.slots.parked()) == ['gpu1 1', 'gpu2 1', 'gpu3 1']

    def is_down(db, host):
        if host == 'gpu1':
            raise ValueError('silent')
        return host == 'gpu2'

    monkeypatch.setattr(runner.env.liveness, 'is_down', is_down)
    runner._free_of_lost_hosts()
    assert sorted(runner.slots.parked()) == ['gpu1 1', 'gpu3 1'] and len(jobs.jobs) == 1
