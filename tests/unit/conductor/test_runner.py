"""The runner alone: its leases, its sweep, the slots of hosts, rows that wait for their time."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.environment import Environment
from kilonova.conductor.hearing import Hearing
from kilonova.conductor.row import Outputs
from kilonova.conductor.runner import Runner
from kilonova.conductor.work import Work
from kilonova.db import engine
from kilonova.db.models.cell import Base
from kilonova.db.queries import operations
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
def make(databases) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def runner(**options: Any) -> Runner:
        api, cell = databases
        env: Any = SimpleNamespace(
            api=api, cells=SimpleNamespace(databases=lambda: [cell], reload=lambda: None), hearing=Hearing(60),
            all_databases=lambda: [api, cell],
            ping=lambda: None, compute=SimpleNamespace(cancel=lambda *args, **kwargs: None))
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
        operations.insert(conn, [operations.Operation(**{
            'uuid': uuid, 'kind': 'stop', 'instance_uuid': f'server of {uuid}', 'context': CONTEXT, **values})])


def work_of(runner: Runner, database: engine.Database, uuid: str = 'o', owner: str | None = None,
            **values: Any) -> Work[Outputs]:
    row = operations.Operation(**{'uuid': uuid, 'kind': 'stop', 'instance_uuid': 's', 'request_id': 'r',
                                  'context': CONTEXT, **values})
    env: Environment = runner.env
    return Work(row, database, env, owner or runner.leases.owner_in(database), Outputs)


def run_out(database: engine.Database, owner: str) -> None:
    with database.write() as conn:
        conn.execute(operations.leases.update().where(operations.leases.c.owner == owner)
                     .values(expires=engine.now(conn) - 0.001))


def test_a_database_that_hangs_holds_up_no_other(make, databases, monkeypatch):
    """Finding 1.6: renewal and sweep of the healthy one go on while the other neither answers nor fails."""
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
    monkeypatch.setattr(engine.Database, 'read', lambda self, read=engine.Database.read: (
        release.wait(30) if self is api else None, read(self))[1])
    try:
        assert hanging.wait(10)
        add(cell, 'row')
        until(lambda: 'row' in runner.ran)
        # Whoever takes a row may renew the lease for that: there is none from now on.
        with cell.write() as conn:
            operations.end(conn, 'row', 'server of row')
        until(lambda: not runner._held)
        with cell.read() as conn:
            first = conn.execute(operations.sa.select(operations.leases.c.expires)).scalar_one()

        def renewed() -> bool:
            with cell.read() as conn:
                return conn.execute(operations.sa.select(operations.leases.c.expires)).scalar_one() > first + 1
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
    assert not operations.renew_lease(cell, before, 30)
    runner.leases.renew(cell)
    after = runner.leases.owner_in(cell)
    assert after != before
    runner.leases.check(cell, after)
    with pytest.raises(LeaseLost):
        runner.leases.check(cell, before)
    with cell.read() as conn:
        assert [owner for owner, _ in operations.living(conn)] == [after]


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


@pytest.mark.parametrize('change', [
    {}, {'lease': -1}, {'owner': 'another'}, {'position': 1}, {'attempt': 2}, {'cancelled': True}])
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
        stands = operations.stands(conn, 'o', owner, (0, 1))
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
    until(lambda: runner.ran == ['mine'])


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
    assert row.owner is None and row.not_before > 0 and row.outputs == {'tries': 1}


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
        other = operations.Operation(uuid=uuid, kind='release', instance_uuid='s', request_id='r', context=CONTEXT,
                                     slot=uuid)
        assert work_of(runner, cell).add(other, lambda row: row.kind == 'release', delay, None)
    with cell.read() as conn:
        assert operations.get(conn, 'q') is None
        waits = operations.get(conn, 'p').not_before - (engine.now(conn) if delay else 0.0)
    assert waits == 0.0 if not delay else waits > delay / 2


def test_a_hand_over_takes_no_row_from_somebody_living(databases):
    """Finding 1.11, rule 19."""
    _, cell = databases
    operations.begin_lease(cell, 'me', 'h', 30)
    operations.begin_lease(cell, 'living', 'h', 30)
    operations.begin_lease(cell, 'dead', 'h', -1)
    for owner, after in (('living', 'living'), ('dead', 'me'), (None, 'me')):
        add(cell, f'of {owner}', owner=owner)
        with cell.write() as conn:
            operations.own(conn, f'of {owner}', 'me')
        with cell.read() as conn:
            assert operations.get(conn, f'of {owner}').owner == after
    # Nor does one whose own lease has run out.
    add(cell, 'free')
    with cell.write() as conn:
        operations.own(conn, 'free', 'dead')
    with cell.read() as conn:
        assert operations.get(conn, 'free').owner is None


def test_a_waiting_delete_behind_nothing_goes_on(make, databases):
    """However it came to that: the row before it is gone, and nobody told it."""
    _, cell = databases
    runner = make()
    add(cell, 'd', kind='delete', slot=operations.WAIT)
    runner.start()
    until(lambda: runner.ran == ['d'])


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
