"""A flow's core: the order of steps and undos, what is decided before what, and how each kind of failure ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kilonova.conductor.flow import Flow
from kilonova.conductor.row import SelectOutputs
from kilonova.conductor.work import HostDown, Step, WaitingForHostSlot, Work
from kilonova.db.queries import operations
from kilonova.errors import Cancelled, HostRejected, Invalid, KeyGone, Unanswered
from tests.unit.conductor.site import Site

STEPS = ('choose', 'claim', 'build', 'end')


class Story(Flow[SelectOutputs]):
    """Four steps; ``happens[name]``: what a step ('claim') or its undo ('undo claim') comes to, one each time."""

    name, outputs = 'stop', SelectOutputs

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.happens: dict[str, list[Any]] = {}
        again = {'claim': 'claim', 'build': 'claim'}
        self.steps = tuple(
            Step(  # type: ignore[misc]
                name,
                self._act(name),
                None if name == 'end' else self._act(f'undo {name}'),
                again.get(name),
                saved=name != 'build',
            )
            for name in STEPS
        )

    def _act(self, name: str) -> Callable[[Work[SelectOutputs]], None]:
        def act(work: Work[SelectOutputs]) -> None:
            assert len(self.lines) < 50, 'it goes on for ever'
            self.lines.append(f'{name} {work.key().partition("/")[2]}')
            left = self.happens.get(name)
            happens = left.pop(0) if left else None
            if isinstance(happens, Exception):
                raise happens
            if happens is not None:
                happens()

        return act


def begin(site: Site, **values: Any) -> tuple[Story, Work[SelectOutputs]]:
    site.put('active', 'powering-off')
    site.accept('stop', **values)
    return Story(), take(site)


def take(site: Site) -> Work[SelectOutputs]:
    """As another worker gets it."""
    work = site.work()
    return Work(site.kept(), work.db, work.env, work.owner, SelectOutputs)  # type: ignore[arg-type]


def with_hosts(site: Site, count: int, **values: Any) -> tuple[Story, Work[SelectOutputs]]:
    return begin(site, outputs={'select': [{'host': f'gpu{number + 1}'} for number in range(count)]}, **values)


def test_steps_in_their_order_then_the_end(site: Site) -> None:
    flow, work = begin(site)
    flow.run(work)
    assert flow.lines == ['choose 0.choose/1', 'claim 1.claim/1', 'build 2.build/1', 'end 3.end/1']
    assert site.rows() == [] and site.finished_works == [(work.uuid, None)]


def test_from_where_the_row_stands(site: Site) -> None:
    flow, work = begin(site, position=2)
    flow.run(work)
    assert flow.lines == ['build 2.build/1', 'end 3.end/1']


@pytest.mark.parametrize(('step', 'position'), [('choose', 0), ('claim', 1), ('build', 2), ('end', 2)])
def test_silence_leaves_the_row_where_it_was_saved(site: Site, step: str, position: int) -> None:
    """The step whose output needn't survive is done again."""
    flow, work = begin(site)
    flow.happens[step] = [Unanswered(who='x', reason='y')]
    flow.run(work)
    row = site.kept()
    assert row is not None and (row.position, row.owner, row.failed, row.outputs) == (
        position,
        None,
        False,
        {'tries': 1, 'reason': 'x does not answer: y'},
    )
    assert site.finished_works == [(work.uuid, 2.0)]
    assert not any(line.startswith('undo') for line in flow.lines)


def test_a_failure_undoes_from_the_end(site: Site) -> None:
    """The step that failed, too. The end state is written with the end of the row."""
    flow, work = begin(site)
    flow.happens['build'] = [Invalid('no')]
    ended = []
    flow.ended_badly = lambda work: (ended.append(site.kept()), work.end())  # type: ignore[assignment,func-returns-value]
    flow.run(work)
    assert flow.lines[3:] == ['undo build 2.build/1', 'undo claim 1.claim/1', 'undo choose 0.choose/1']
    assert ended[0].failed and ended[0].error['message'] == 'no'
    assert site.rows() == [] and site.finished_works == [(work.uuid, None)]


def test_a_failure_is_written_before_anything_is_undone(site: Site) -> None:
    flow, work = begin(site)
    seen: list[Any] = []
    flow.happens['claim'] = [Invalid('no')]
    flow.happens['undo claim'] = [lambda: seen.append(site.kept())]
    flow.run(work)
    (row,) = seen
    assert row.failed and row.position == 1
    assert {name: row.error[name] for name in ('class', 'message', 'code')} == {
        'class': 'Invalid',
        'message': 'no',
        'code': 400,
    }
    assert 'in act' in row.error['details']


@pytest.mark.parametrize(
    ('error', 'message', 'code'),
    [
        (Invalid('no /etc/kilonova/place'), 'no place', 400),
        (ZeroDivisionError('/etc/secret'), 'ZeroDivisionError', 500),
    ],
)
def test_what_users_may_read(site: Site, error: Exception, message: str, code: int) -> None:
    flow, work = begin(site)
    flow.happens['choose'] = [error]
    flow.run(work)
    assert work.error is not None
    assert (work.error['class'], work.error['message'], work.error['code']) == (type(error).__name__, message, code)
    assert str(error) in work.error['details'] and len(work.error['details']) <= 8000
    fault = work.fault()
    assert (fault['code'], fault['message'], fault['host']) == (code, message, None)
    assert fault['details'] == work.error['details']


def test_the_first_reason_stays(site: Site) -> None:
    flow, work = begin(site)
    flow.happens.update({'claim': [Invalid('first')], 'undo claim': [Unanswered(who='x', reason='y')]})
    flow.run(work)
    work = take(site)
    flow.happens['undo choose'] = [Invalid('second'), None]
    flow.run(work)
    assert work.error is not None and work.error['message'] == 'first'
    work = take(site)
    flow.run(work)
    assert flow.lines[-2:] == ['undo claim 1.claim/1', 'undo choose 0.choose/1'] and site.rows() == []


@pytest.mark.parametrize('error', [Unanswered(who='x', reason='y'), ZeroDivisionError()])
def test_an_undo_that_fails_is_done_again(site: Site, error: Exception) -> None:
    flow, work = begin(site)
    flow.happens.update({'claim': [Invalid('no')], 'undo claim': [error]})
    flow.run(work)
    row = site.kept()
    assert row is not None and row.failed and row.owner is None and 'undo choose 0.choose/1' not in flow.lines
    flow.run(take(site))
    assert flow.lines[-2:] == ['undo claim 1.claim/1', 'undo choose 0.choose/1'] and site.rows() == []


def test_an_undo_that_waits_for_a_slot(site: Site) -> None:
    """Whoever has the slots goes on with it."""
    flow, work = begin(site)
    flow.happens.update({'claim': [Invalid('no')], 'undo claim': [WaitingForHostSlot()]})
    with pytest.raises(WaitingForHostSlot):
        flow.run(work)
    row = site.kept()
    assert row is not None and row.owner is not None and site.finished_works == []


def test_an_end_that_can_not_be_written_is_written_later(site: Site) -> None:
    flow, work = begin(site)
    flow.happens['choose'] = [Invalid('no')]
    ends: list[Any] = [ZeroDivisionError(), Unanswered(who='x', reason='y')]

    def end(work: Work[SelectOutputs]) -> None:
        if ends:
            raise ends.pop(0)
        work.end()

    flow.ended_badly = end  # type: ignore[method-assign]
    for _ in range(2):
        flow.run(work)
        assert site.kept() is not None
        work = take(site)
    flow.run(work)
    assert site.rows() == [] and site.finished_works[-1] == (work.uuid, None)


def test_who_lost_its_row_stops_at_once(site: Site) -> None:
    """Before the undo, and without a word in the row."""
    flow, work = begin(site)
    flow.happens['claim'] = [lambda: site.update(owner='another'), None]
    flow.run(work)
    assert flow.lines == ['choose 0.choose/1', 'claim 1.claim/1']
    row = site.kept()
    assert row is not None and (row.owner, row.failed, row.position) == ('another', False, 1)
    assert site.finished_works == [(work.uuid, None)]


def test_who_lost_its_row_undoes_nothing(site: Site) -> None:
    flow, work = begin(site)
    flow.happens['claim'] = [Invalid('no')]
    fail = work.fail

    def lose(error: Exception) -> None:
        fail(error)
        site.update(owner='another')
        work.before_sending()

    work.fail = lose  # type: ignore[method-assign]
    flow.run(work)
    assert flow.lines == ['choose 0.choose/1', 'claim 1.claim/1'] and site.finished_works == [(work.uuid, None)]


def test_a_database_that_is_silent_when_it_fails(site: Site) -> None:
    flow, work = begin(site)
    flow.happens['claim'] = [Invalid('no')]
    work.fail = lambda error: (_ for _ in ()).throw(Unanswered(who='x', reason='y'))  # type: ignore[method-assign]
    flow.run(work)
    row = site.kept()
    assert row is not None and not row.failed and row.owner is None
    assert [line for line in flow.lines if 'undo' in line] == []


# --- cancelled -------------------------------------------------------------------------------------------------------
def test_a_cancelled_row_unwinds_where_it_stands(site: Site) -> None:
    flow, work = begin(site, position=1, cancelled=True)
    flow.run(work)
    assert flow.lines == ['undo claim 1.claim/1', 'undo choose 0.choose/1'] and site.rows() == []
    assert work.error is not None and work.error['class'] == 'Cancelled'


def test_a_cancelled_row_that_failed_goes_on_with_that(site: Site) -> None:
    flow, work = begin(site, position=1, cancelled=True, failed=True)
    flow.run(work)
    assert flow.lines == ['undo claim 1.claim/1', 'undo choose 0.choose/1'] and work.error is None
    assert work.fault() == {'code': 500, 'message': 'Unknown error', 'details': None, 'host': None}


def test_one_that_is_cancelled_meanwhile_learns_it_when_it_writes(site: Site) -> None:
    flow, work = begin(site)
    reason = {'class': 'X', 'message': 'asked for', 'code': 1, 'details': None}
    flow.happens['claim'] = [lambda: operations.cancel_with(site.cell, work.uuid, reason)]
    flow.run(work)
    # What it had decided before is undone with it.
    assert flow.lines[2:] == ['undo build 2.build/1', 'undo claim 1.claim/1', 'undo choose 0.choose/1']
    assert work.error == reason and site.rows() == []


def test_a_host_that_heard_of_the_cancel_first(site: Site) -> None:
    """Why it was cancelled stands in the row."""
    flow, work = begin(site)
    reason = {'class': 'X', 'message': 'asked for', 'code': 1, 'details': None}

    def cancelled() -> None:
        operations.cancel_with(site.cell, work.uuid, reason)
        raise Cancelled(key='k')

    flow.happens['build'] = [cancelled]
    flow.run(work)
    assert work.error == reason and work.cancelled


# --- keys that are gone ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('meanwhile', 'error', 'undone'),
    [({}, 'KeyGone', True), ({'cancelled': True}, 'Cancelled', True), ({'owner': 'another'}, None, False)],
)
def test_a_host_that_does_not_know_the_row(
    site: Site, meanwhile: dict[str, Any], error: str | None, undone: bool
) -> None:
    flow, work = begin(site)

    def gone() -> None:
        if meanwhile:
            site.update(**meanwhile)
        raise KeyGone(key='k')

    flow.happens['claim'] = [gone]
    flow.run(work)
    assert (work.error and work.error['class']) == error
    assert ('undo choose 0.choose/1' in flow.lines) is undone
    assert site.finished_works == [(work.uuid, None)]


def test_a_key_that_is_gone_while_the_database_is_silent(site: Site) -> None:
    flow, work = begin(site)
    flow.happens['claim'] = [KeyGone(key='k')]
    work.standing = lambda: (_ for _ in ()).throw(Unanswered(who='x', reason='y'))  # type: ignore[method-assign]
    flow.run(work)
    row = site.kept()
    assert row is not None and not row.failed and row.owner is None and len(flow.lines) == 2


# --- attempts --------------------------------------------------------------------------------------------------------
def test_a_refusal_leads_to_the_next_host(site: Site) -> None:
    """Back to the step that takes the next one; that it is being undone is written before it is."""
    flow, work = with_hosts(site, 3)
    seen: list[Any] = []
    flow.happens.update(
        {'build': [HostRejected('full'), HostRejected('small')], 'undo build': [lambda: seen.append(site.kept())]}
    )
    flow.run(work)
    assert flow.lines == [
        'choose 0.choose/1',
        'claim 1.claim/1',
        'build 2.build/1',
        'undo build 2.build/1',
        'undo claim 1.claim/1',
        'claim 1.claim/2',
        'build 2.build/2',
        'undo build 2.build/2',
        'undo claim 1.claim/2',
        'claim 1.claim/3',
        'build 2.build/3',
        'end 3.end/3',
    ]
    (row,) = seen
    assert (row.undoing, row.position, row.attempt, row.outputs['back_to'], row.outputs['refusals']) == (
        True,
        2,
        1,
        1,
        ['full'],
    )
    assert not work.undoing and work.outputs.back_to is None and work.outputs.refusals == ['full', 'small']


def test_an_attempt_may_begin_from_the_first_step(site: Site) -> None:
    flow, work = with_hosts(site, 2)
    flow.steps = tuple(replace(step, again_from='choose') for step in flow.steps)
    flow.happens['claim'] = [HostRejected('full')]
    flow.run(work)
    assert flow.lines == [
        'choose 0.choose/1',
        'claim 1.claim/1',
        'undo claim 1.claim/1',
        'undo choose 0.choose/1',
        'choose 0.choose/2',
        'claim 1.claim/2',
        'build 2.build/2',
        'end 3.end/2',
    ]


def test_the_next_attempt_stands_in_the_row(site: Site) -> None:
    flow, work = with_hosts(site, 2)
    site.update(written='what a host wrote')
    flow.happens.update({'build': [HostRejected('full')], 'claim': [None, Unanswered(who='x', reason='y')]})
    flow.run(work)
    row = site.kept()
    assert row is not None and (row.position, row.attempt, row.undoing, row.written) == (1, 2, False, '')
    assert 'back_to' not in row.outputs and row.outputs['refusals'] == ['full']


def test_an_attempt_that_is_being_undone_is_undone_by_who_takes_the_row(site: Site) -> None:
    flow, work = with_hosts(site, 2)
    flow.happens.update({'build': [HostRejected('full')], 'undo claim': [Unanswered(who='x', reason='y')]})
    flow.run(work)
    row = site.kept()
    assert row is not None and row.undoing and row.position == 2
    flow.lines.clear()
    flow.run(take(site))
    assert flow.lines == [
        'undo build 2.build/1',
        'undo claim 1.claim/1',
        'claim 1.claim/2',
        'build 2.build/2',
        'end 3.end/2',
    ]


def test_an_undo_of_an_attempt_by_who_lost_the_row(site: Site) -> None:
    flow, work = with_hosts(site, 2)
    flow.happens.update(
        {'build': [HostRejected('full')], 'undo build': [lambda: (site.update(owner='another'), work.before_sending())]}
    )
    flow.run(work)
    assert flow.lines[-1] == 'undo build 2.build/1' and site.finished_works == [(work.uuid, None)]


@pytest.mark.parametrize('step', ['choose', 'end'])
def test_a_step_that_no_attempt_begins_from(site: Site, step: str) -> None:
    flow, work = with_hosts(site, 3)
    flow.happens[step] = [HostRejected('no')]
    flow.run(work)
    assert work.attempt == 1 and work.error is not None and work.error['message'] == 'no'
    assert 'undo choose 0.choose/1' in flow.lines


@pytest.mark.parametrize(('hosts', 'attempts'), [(0, 1), (1, 1), (2, 2), (5, 3)])
def test_so_many_hosts_are_tried(site: Site, hosts: int, attempts: int) -> None:
    """Those that there are, max_attempts at most."""
    flow, work = with_hosts(site, hosts)
    flow.happens['build'] = [HostRejected('no')] * 9
    flow.run(work)
    assert [line for line in flow.lines if line.startswith('build')] == [
        f'build 2.build/{number + 1}' for number in range(attempts)
    ]
    assert work.error is not None and work.error['class'] == 'HostRejected'
    assert site.rows() == []


def test_what_the_last_refusal_becomes(site: Site) -> None:
    flow, work = with_hosts(site, 1)
    flow.happens['build'] = [HostRejected('no')]
    flow.exhausted = lambda work, error: Invalid(f'none: {error}')  # type: ignore[method-assign]
    flow.run(work)
    assert work.error is not None and (work.error['message'], work.error['code']) == ('none: no', 400)


def test_a_host_that_is_down_counts_as_a_refusal(site: Site) -> None:
    flow, work = with_hosts(site, 2)
    flow.happens['build'] = [HostDown(host='gpu1')]
    flow.run(work)
    assert work.outputs.refusals == ['compute service of host gpu1 is down'] and work.attempt == 2


# --- flows that only go forward --------------------------------------------------------------------------------------
@pytest.mark.parametrize('error', [Invalid('no'), HostRejected('no'), ZeroDivisionError()])
def test_what_only_goes_forward_is_tried_again(site: Site, error: Exception) -> None:
    flow, work = begin(site)
    flow.forward_only = True
    flow.happens['claim'] = [error]
    flow.run(work)
    row = site.kept()
    assert row is not None and (row.position, row.failed, row.owner, row.outputs['tries']) == (1, False, None, 1)
    flow.run(take(site))
    assert flow.lines[-3:] == ['claim 1.claim/1', 'build 2.build/1', 'end 3.end/1'] and site.rows() == []


def test_what_only_goes_forward_undoes_nothing(site: Site) -> None:
    flow, work = begin(site, cancelled=True, position=1)
    flow.forward_only = True
    flow.run(work)
    assert flow.lines == [] and site.rows() == [] and work.failed


def test_the_place_of_a_step() -> None:
    assert [Story().index(name) for name in STEPS] == [0, 1, 2, 3]
