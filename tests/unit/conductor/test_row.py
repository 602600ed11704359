"""What a row keeps of its steps, and decisions about it. JSON of the release before is read, and written the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import exc

from kilonova.conductor.flows import FLOWS, hosts_of
from kilonova.conductor.row import ChosenHost, SelectOutputs
from kilonova.db import engine
from kilonova.db.queries import operations
from kilonova.errors import Cancelled, LeaseLost
from tests.unit.conductor.site import Site, uuid

HOST = {
    'host': 'gpu1',
    'node': 'gpu1',
    'compute_node_uuid': 'n',
    'cell_uuid': 'c',
    'availability_zone': 'nova',
    'allocations': {'p': {'resources': {'VCPU': 1}}},
    'mappings': {'': ['p']},
    'limits': None,
}
CORE = {'tries': 2, 'back_to': 1, 'refusals': ['gpu1: disk full']}
ROWS = [
    ('boot', {}),
    ('boot', {'select': []}),
    ('stop', CORE),
    ('delete', {'terminate': {'consumers': ['m']}}),
    (
        'boot',
        {
            'select': [HOST, {**HOST, 'host': 'gpu2'}],
            'create_instance': {'id': 7},
            'overtaken': [1],
            'early_delete': True,
            **CORE,
        },
    ),
    (
        'resize',
        {
            'select': [HOST],
            'prep_resize': {'disk': {'host': 'gpu1'}},
            'resize_instance': {'path': '/d'},
            'choices': 2,
            **CORE,
        },
    ),
]


@pytest.mark.parametrize(('kind', 'stored'), ROWS)
def test_what_is_stored_is_read_and_stored_again(kind: str, stored: dict[str, Any]) -> None:
    assert FLOWS[kind].outputs.read(stored).stored() == stored


def test_what_is_not_known_is_left_out() -> None:
    """Rows that lack what came later, and rows of a later release."""
    outputs = FLOWS['boot'].outputs.read({'later': 1, 'select': [{'host': 'gpu1', 'later': 1}]})
    assert [(choice.host, choice.limits, choice.mappings) for choice in outputs.hosts] == [('gpu1', None, {})]
    assert 'later' not in outputs.stored()


@pytest.mark.parametrize(('attempt', 'found'), [(1, {'gpu1'}), (2, {'gpu2'}), (3, set())])
def test_which_host_an_attempt_works_on(attempt: int, found: set[str]) -> None:
    assert hosts_of({'select': [HOST, {**HOST, 'host': 'gpu2'}]}, attempt) == found
    assert hosts_of({}, attempt) == set()


# --- writing a row ---------------------------------------------------------------------------------------------------
@pytest.fixture
def work(site: Site) -> Any:
    site.put('active', 'powering-off')
    site.accept('stop', {'clean_shutdown': True}, attempt=2)
    return site.work()


def losing(db: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The answer to the next COMMIT is lost."""
    lost: list[int] = []
    real = db.write

    @contextlib.contextmanager
    def write() -> Iterator[Any]:
        with real() as conn:
            yield conn
        if not lost:
            lost.append(1)
            raise exc.OperationalError('COMMIT', None, Exception('lost'), connection_invalidated=True)

    monkeypatch.setattr(db, 'write', write)
    return lost


def test_a_decision_writes_the_outputs(site: Site, work: Any) -> None:
    work.outputs.tries = 3
    work.decide({'position': 1})
    row = site.kept()
    assert row is not None and (row.position, row.attempt, row.outputs) == (1, 2, {'tries': 3})
    work.decide({'attempt': 3})
    work.decide({'position': 2})
    row = site.kept()
    assert row is not None and (row.position, row.attempt) == (2, 3)


def test_nothing_was_sent_since_a_decision(site: Site, work: Any) -> None:
    work.before_sending()
    work.decide({'position': 1})
    site.update(owner='another')
    work.compare()


@pytest.mark.parametrize('cancelled', [True, False])
def test_a_decision_about_a_cancelled_row(site: Site, work: Any, cancelled: bool) -> None:
    site.update(cancelled=True)
    if cancelled:
        work.decide({'position': 1}, cancelled=True)
    else:
        with pytest.raises(Cancelled):
            work.decide({'position': 1})
    row = site.kept()
    assert row is not None and row.position == int(cancelled)


@pytest.mark.parametrize('values', [{'position': 1}, {'attempt': 3}, {'failed': True}])
@pytest.mark.parametrize('cancelled', [False, True])
def test_the_answer_to_a_decision_may_be_lost(
    site: Site, work: Any, values: dict[str, Any], cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written: it stands where it was to stand."""
    site.update(cancelled=cancelled)
    lost = losing(site.cell, monkeypatch)
    work.decide(values, cancelled=cancelled)
    assert lost
    work.decide({'position': 5}, cancelled=cancelled)
    row = site.kept()
    assert row is not None and row.position == 5


def test_a_decision_of_another_is_none_of_ours(site: Site, work: Any) -> None:
    """Though it stands where we would have put it."""
    site.update(position=1)
    with pytest.raises(LeaseLost):
        work.decide({'position': 1})


def test_the_end(site: Site, work: Any) -> None:
    written: list[Any] = []
    work.end(lambda conn: written.append(operations.get(conn, work.uuid)))
    assert written == [None] and site.rows() == [] and site.woken == []
    # The row was ended: nothing is to be done any more.
    work.close()
    assert site.finished_works == [(work.uuid, None)]


def test_the_end_without_more(site: Site, work: Any) -> None:
    work.close()
    assert site.rows() == [] and site.finished_works == [(work.uuid, None)]


def test_an_end_that_the_host_wrote_is_not_written_here(site: Site, work: Any) -> None:
    work.ended_by_host()
    work.close()
    assert site.kept() is not None
    from kilonova.conductor.work import Step

    work.done(Step('x', lambda work: None))
    row = site.kept()
    assert row is not None and row.position == 0 and work.position == 1


@pytest.mark.parametrize(
    ('change', 'error'),
    [({'cancelled': True}, Cancelled), ({'owner': 'another'}, LeaseLost), ({'position': 1}, LeaseLost)],
)
def test_an_end_of_a_row_that_is_not_ours(
    site: Site, work: Any, change: dict[str, Any], error: type[Exception]
) -> None:
    """Nothing of it is written."""
    site.update(**change)
    written: list[Any] = []
    with pytest.raises(error):
        work.end(written.append)
    assert written == [] and site.kept() is not None


@pytest.mark.parametrize('how', ['failed', 'cancelled'])
def test_whoever_waits_is_woken_by_the_end_of_what_unwinds(site: Site, work: Any, how: str) -> None:
    waiting = operations.OperationRow.new(site.ctxt, 'delete', work.instance_uuid)
    waiting.slot = operations.WAIT
    with site.cell.write() as conn:
        operations.insert(conn, [waiting])
    site.update(cancelled=True)
    setattr(work, how, True)
    work.end()
    assert site.woken == [([waiting.uuid], True)]
    (row,) = site.rows()
    assert row.slot == operations.RUN


def test_the_answer_to_an_end_may_be_lost(site: Site, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = losing(site.cell, monkeypatch)
    work.end()
    assert lost and site.rows() == []


def test_the_copy_for_another_database(site: Site, work: Any) -> None:
    work.outputs.tries = 1
    row = work.copy_for('me', 3)
    assert (
        row.uuid,
        row.kind,
        row.instance_uuid,
        row.args,
        row.request_id,
        row.position,
        row.attempt,
        row.outputs,
        row.owner,
        row.slot,
    ) == (work.uuid, 'stop', work.instance_uuid, {'clean_shutdown': True}, 'req-1', 3, 2, {'tries': 1}, 'me', 'run')
    assert row.context == work.ctxt.to_dict()


def test_a_hand_over(site: Site, work: Any) -> None:
    """From now on it is compared in the other database, as that one's owner's."""
    row = work.copy_for(site.env.leases.owner_in(site.api), 3)
    with site.api.write() as conn:
        operations.insert(conn, [row])
        operations.end(conn, 'x', 'y')
    site.update(owner='another')
    work.handed_over(site.api, site.env.leases.owner_in(site.api), 3)
    assert work.ctxt.cell is site.api
    work.compare()
    work.compare_now()
    work.decide({'position': 4})
    with site.api.read() as conn:
        found = operations.get(conn, work.uuid)
    assert found is not None and found.position == 4


def test_a_row_that_is_added_with_something(site: Site, work: Any) -> None:
    def add(kind: str, delay: float = 0) -> bool:
        row = operations.OperationRow.new(site.ctxt, kind, work.instance_uuid, beside=True)
        added: bool = work.add(row, lambda row: row.kind == kind, delay, lambda conn: written.append(kind))
        return added

    written: list[str] = []
    assert add('release') and add('release') and add('mirror')
    # One of each; what is written with it is written each time.
    assert [row.kind for row in site.rows()] == ['stop', 'release', 'mirror']
    assert written == ['release', 'release', 'mirror']
    for elsewhere in ({'position': 1}, {'position': 0, 'owner': 'another'}):
        site.update(**elsewhere)
        assert not add('another') and len(site.rows()) == 3 and len(written) == 3


def test_it_is_given_free_with_its_outputs(site: Site, work: Any) -> None:
    work.outputs.tries = 4
    work.release(10.0)
    row = site.kept()
    assert row is not None and (row.owner, row.outputs) == (None, {'tries': 4})
    with site.cell.read() as conn:
        assert 5 < row.not_before - engine.now(conn) <= 10


def test_choices_of_the_scheduler(site: Site) -> None:
    one, two = ChosenHost.all_of([site.selection('gpu1'), site.selection('gpu2', zone=None, memory_mb=None)])
    assert (one.host, one.node, one.compute_node_uuid, one.cell_uuid, one.availability_zone) == (
        'gpu1',
        'node1',
        uuid('gpu1'),
        site.cell_uuid,
        'zone1',
    )
    assert one.allocations == {uuid('gpu1'): {'resources': {'VCPU': 1}}}
    assert list(one.mappings.values()) == [[uuid('device of gpu1')]]
    assert one.scheduler_limits is not None and one.scheduler_limits.memory_mb == 999
    assert (two.availability_zone, two.limits, two.scheduler_limits) == (None, None, None)


def test_a_choice_without_allocations(site: Site) -> None:
    """As old rows, or a scheduler that claims nothing, may have it."""
    selection = site.selection('gpu1')
    selection.allocation_request = None
    (choice,) = ChosenHost.all_of([selection])
    assert (choice.allocations, choice.mappings) == ({}, {})


def test_no_answer_is_not_an_empty_one() -> None:
    assert (SelectOutputs().select, SelectOutputs().hosts) == (None, [])
    assert SelectOutputs.read({'select': []}).select == [] and SelectOutputs(select=[]).stored() == {'select': []}
