"""One operation in a conductor's hands: asking hosts, slots, what it reads of the server, giving the row back."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.environment import HostsNotReporting
from kilonova.conductor.work import HostDown, Step, WaitingForHostSlot
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.errors import Cancelled, Invalid, LeaseLost, Unanswered, Unsent
from kilonova.rpc.compute import Compute
from tests.unit.conductor.site import Site


@pytest.fixture
def work(site: Site) -> Any:
    site.put('active', 'powering-off')
    site.accept('stop')
    return site.work()


def ask(work: Any, host: str = 'gpu1') -> Any:
    return work.call_host(host, Compute.start_instance, instance=work.instance())


def test_an_answer(site: Site, work: Any) -> None:
    site.answers['start_instance'] = {'a': 1}
    work.at(4, Step('step', lambda work: None))
    assert ask(work) == {'a': 1}
    (sent,) = site.sent
    assert (sent.server, sent.args['key']) == ('gpu1', f'{work.uuid}/4.step/1')
    assert work.held_host == 'gpu1'


def test_the_first_key_names_the_kind(work: Any) -> None:
    assert work.key() == f'{work.uuid}/0.stop/1'


@pytest.mark.parametrize('forced', [True, False])
def test_a_host_that_is_known_to_be_down_is_sent_nothing(site: Site, work: Any, forced: bool) -> None:
    site.silence('gpu1', forced=forced)
    with pytest.raises(HostDown, match='compute service of host gpu1 is down'):
        ask(work)
    assert site.sent == [] and work.held_host is None


def test_silence_of_a_host_that_is_there(site: Site, work: Any) -> None:
    """From now on one call at a time finds out whether it is back."""
    site.answers['start_instance'] = Unanswered(who='gpu1', reason='x')
    with pytest.raises(Unanswered) as raised:
        ask(work)
    assert not isinstance(raised.value, HostDown)
    assert site.env.slots._hosts['gpu1'].silent
    site.answers['start_instance'] = None
    ask(work)
    assert not site.env.slots._hosts['gpu1'].silent


def test_silence_of_a_host_that_died(site: Site, work: Any) -> None:
    def die(sent: Any) -> None:
        site.silence('gpu1')
        raise Unanswered(who='gpu1', reason='x')

    site.answers['start_instance'] = die
    with pytest.raises(HostDown):
        ask(work)
    assert site.env.slots._hosts['gpu1'].silent


def test_an_error_is_an_answer(site: Site, work: Any) -> None:
    site.env.slots.silent('gpu1')
    site.answers['start_instance'] = Invalid('no')
    with pytest.raises(Invalid):
        ask(work)
    assert not site.env.slots._hosts['gpu1'].silent


def test_what_was_not_sent_says_nothing_of_the_host(site: Site, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But that this conductor is cut off."""
    cut: list[int] = []
    monkeypatch.setattr(site.env.liveness, 'cut_off', lambda: cut.append(1))
    site.answers['start_instance'] = Unsent(who='gpu1', reason='x')
    with pytest.raises(Unsent):
        ask(work)
    assert cut == [1] and not site.env.slots._hosts['gpu1'].silent


def test_a_slot_is_kept_from_step_to_step(site: Site, work: Any) -> None:
    for _ in range(3):
        ask(work)
    assert site.env.slots._hosts['gpu1'].taken == {True: 0, False: 1}
    ask(work, 'gpu2')
    assert 'gpu1' not in site.env.slots._hosts and work.held_host == 'gpu2'
    work.release_host()
    work.release_host()
    assert site.env.slots._hosts == {} and work.held_host is None


def test_without_a_slot_it_waits(site: Site, work: Any) -> None:
    others = [site.work() for _ in '12']
    for number, other in enumerate(others):
        other.uuid = str(number)
        assert site.env.slots.take('gpu1', other)
        other.held_host = 'gpu1'
    with pytest.raises(WaitingForHostSlot):
        ask(work)
    assert site.sent == [] and work.held_host is None and site.env.slots.parked() == [work.uuid]
    others[0].release_host()
    assert site.resumed == [work.uuid] and work.held_host == 'gpu1'


def test_what_waited_is_compared_again(site: Site, work: Any) -> None:
    """And what was asked for when the row is somebody else's isn't asked."""
    ask(work)
    site.update(owner='another')
    with pytest.raises(LeaseLost):
        ask(work)
    assert len(site.sent) == 1


def test_nothing_is_compared_twice_while_nothing_is_sent(site: Site, work: Any) -> None:
    statements: list[str] = []
    stop = engine.listen(lambda database, statement, many: statements.append(statement))
    try:
        for _ in range(3):
            work.compare()
        assert statements == []
        work.before_sending()
        assert statements == []
        work.before_sending()
        assert statements
    finally:
        stop()


def test_a_comparison_before_writing_elsewhere_is_made_in_any_case(site: Site, work: Any) -> None:
    site.update(owner='another')
    work.compare()
    with pytest.raises(LeaseLost):
        work.compare_now()


def test_who_could_not_renew_compares_nothing(site: Site, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(db: Any, owner: str) -> None:
        asked.append((db, owner))
        raise LeaseLost(operation='x')

    monkeypatch.setattr(site.env.leases, 'check', check)
    for act in (work.check, work.compare):
        with pytest.raises(LeaseLost):
            act()
    assert asked == [(site.cell, work.owner)] * 2


# --- what became of the row ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('change', 'became'),
    [
        ({}, None),
        ({'owner': 'another'}, LeaseLost),
        ({'position': 1}, LeaseLost),
        ({'attempt': 2}, LeaseLost),
        ({'cancelled': True}, Cancelled),
    ],
)
def test_what_became_of_it(site: Site, work: Any, change: dict[str, Any], became: type[Exception] | None) -> None:
    if change:
        site.update(**change)
    found = work.standing()
    assert (None if found is None else type(found)) is became
    assert work.cancelled is ('cancelled' in change)
    if became is LeaseLost:
        with pytest.raises(LeaseLost):
            work.resumed()
    else:
        # A cancel is found when it writes.
        work.resumed()


def test_a_cancel_brings_its_reason(site: Site, work: Any) -> None:
    site.update(cancelled=True, error='{"class": "X"}')
    assert isinstance(work.standing(), Cancelled) and work.error == {'class': 'X'}


def test_a_row_that_is_gone(site: Site, work: Any) -> None:
    with site.cell.write() as conn:
        from kilonova.db.queries import operations

        operations.end(conn, work.uuid, work.instance_uuid)
    assert isinstance(work.standing(), LeaseLost)


def test_a_lease_that_ran_out(site: Site, work: Any) -> None:
    with site.cell.write() as conn:
        from kilonova.db.queries import operation_leases

        conn.execute(operation_leases.leases.update().values(expires=0))
    assert isinstance(work.standing(), LeaseLost)


def test_a_row_that_is_being_unwound_stands_though_it_was_cancelled(site: Site, work: Any) -> None:
    work.failed = True
    site.update(cancelled=True, failed=True)
    assert work.standing() is None
    work.compare_now()


# --- giving back -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('tries', 'error', 'pause'),
    [
        (0, None, 2.0),
        (1, None, 4.0),
        (3, None, 16.0),
        (4, None, 30.0),
        (99, None, 30.0),
        (0, HostsNotReporting(who='x', reason='y'), 2.0),
        (5, HostsNotReporting(who='x', reason='y'), 4.0),
    ],
)
def test_pauses_grow(site: Site, work: Any, tries: int, error: Any, pause: float) -> None:
    """Where all hosts are silent they may be back at any moment."""
    work.outputs.tries = tries
    work.give_back(error)
    row = site.kept()
    assert row is not None and row.outputs['tries'] == tries + 1 and row.owner is None
    with site.cell.read() as conn:
        assert pause - 5 < row.not_before - engine.now(conn) <= pause
    assert site.finished_works == [(work.uuid, pause)]


def test_its_slot_is_given_back_with_it(site: Site, work: Any) -> None:
    ask(work)
    work.give_back()
    assert site.env.slots._hosts == {}


def test_a_row_that_can_not_be_given_back_is_left(site: Site, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep takes it."""
    monkeypatch.setattr(work, 'release', lambda pause: 1 / 0)
    work.give_back()
    assert site.finished_works == [(work.uuid, 2.0)]


def test_it_is_forgotten(site: Site, work: Any) -> None:
    ask(work)
    work.lost()
    assert site.finished_works == [(work.uuid, None)] and site.env.slots._hosts == {}


# --- the server ------------------------------------------------------------------------------------------------------
def test_the_server_is_read_once(site: Site, work: Any) -> None:
    assert work.instance().system_metadata == {'image_min_ram': '1'}
    with site.cell.write() as conn:
        instances.update(conn, work.instance_uuid, {'host': 'gpu2'})
        instances.set_system_metadata(conn, work.instance_uuid, {'image_min_ram': '2'})
    assert (work.instance_row()['host'], work.instance().host) == ('gpu1', 'gpu1')
    assert work.instance_row(fresh=True)['host'] == 'gpu2'
    with site.cell.write() as conn:
        instances.update(conn, work.instance_uuid, {'host': 'gpu3'})
    assert work.instance(fresh=True).host == 'gpu3'
    assert work.instance().system_metadata == {'image_min_ram': '2'}
    with site.cell.write() as conn:
        instances.update(conn, work.instance_uuid, {'host': 'gpu1'})
    work.changed()
    assert work.instance().host == 'gpu1'


@pytest.mark.parametrize('enabled', [True, False])
def test_only_notifications_tell_metadata(site: Site, work: Any, enabled: bool) -> None:
    site.env.notify.enabled = enabled
    assert ('metadata' in work.instance()) is enabled
    if enabled:
        assert work.instance().metadata == {'role': 'db'}


@pytest.mark.parametrize(
    ('kind', 'failed', 'urgent'),
    [
        ('stop', False, False),
        ('stop', True, True),
        ('delete', False, True),
        ('soft_delete', False, True),
        ('release', False, True),
        ('confirm', False, True),
        ('revert', False, True),
        ('boot', False, False),
    ],
)
def test_what_goes_before_the_rest(work: Any, kind: str, failed: bool, urgent: bool) -> None:
    work.kind, work.failed = kind, failed
    assert work.is_urgent is urgent


def test_an_event(work: Any) -> None:
    event = work.event('e', host='h')
    assert event.pop('finish_time') >= event['start_time'] == work.created_at
    assert event == {
        'event': 'e',
        'result': 'Success',
        'start_time': work.created_at,
        'host': 'h',
        'details': None,
        'traceback': None,
    }
    work.error = {'message': 'm', 'details': 'd'}
    event = work.event('e', 'Error')
    assert (event['result'], event['host'], event['details'], event['traceback']) == ('Error', None, 'm', 'd')


def test_a_fault_names_the_host_that_was_asked(site: Site, work: Any) -> None:
    work.error = {'code': 404, 'message': 'm', 'details': 'd'}
    assert work.fault() == {'code': 404, 'message': 'm', 'details': 'd', 'host': None}
    ask(work, 'gpu2')
    assert work.fault()['host'] == 'gpu2'


def test_a_query_that_was_not_sent_says_nothing_of_the_host(
    site: Site, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut: list[int] = []
    monkeypatch.setattr(site.env.liveness, 'cut_off', lambda: cut.append(1))
    site.answers['prepare_volumes'] = Unsent(who='gpu1', reason='x')
    with pytest.raises(Unsent):
        work.query_host('gpu1', Compute.prepare_volumes, instance=work.instance())
    assert cut == [1]
