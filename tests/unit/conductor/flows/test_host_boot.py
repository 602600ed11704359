"""A server that ran when its host went down: its row waits until the host can start it. Rule 22."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.work import Work
from kilonova.context import get_admin_context
from kilonova.db.queries import actions, resumes
from kilonova.errors import HostRejected, Invalid, KilonovaError, Unanswered
from kilonova.rpc.interface import VersionCapError
from tests.unit.conductor.site import SERVER, Site

RUNS = {'is_running': True, 'power_state': 1}


@pytest.fixture
def planned(site: Site) -> Site:
    """An ACTIVE server on gpu1, which could not start it."""
    site.put('active', power_state=1)
    resumes.plan(site.cell, get_admin_context(), 'gpu1', {SERVER: 'no card'}, is_off=True)
    site.operation = site.rows()[0].uuid
    return site


def go(site: Site) -> Work[Any]:
    (row,) = [row for row in site.rows() if row.kind == resumes.KIND]
    return site.go(row.uuid)


def change(site: Site, **values: Any) -> None:
    """Write columns of the server, as somebody else would."""
    table = resumes.servers
    with site.cell.write() as conn:
        conn.execute(table.update().where(table.c.uuid == SERVER).values(**values))


def story(site: Site) -> tuple[Any, ...]:
    """The message of the server's action, whether it has ended, and its one event: result and details."""
    with site.cell.read() as conn:
        (action,) = actions.page(conn, SERVER, limit=10) or ()
        (event,) = actions.list_events(conn, action['id'])
    ended = {action['finish_time'] is not None, event['finish_time'] is not None}
    assert len(ended) == 1
    return action['message'], ended.pop(), event['result'], event['details']


def test_what_is_written_when_a_host_could_not_start_a_server(planned: Site) -> None:
    """Once, however often the host says so; and only of servers that are to run there and rest."""
    site = planned
    assert story(site) == ('Waiting', False, None, 'no card')
    assert (site.row()['power_state'], site.state()) == (4, ('active', None))
    (row,) = site.rows()
    assert (row.kind, row.host, row.slot, row.outputs['reason']) == (resumes.KIND, 'gpu1', row.uuid, 'no card')
    resumes.plan(site.cell, get_admin_context(), 'gpu1', {SERVER: 'another'}, is_off=True)
    assert [one.uuid for one in site.rows()] == [row.uuid] and story(site)[3] == 'no card'


@pytest.mark.parametrize(
    'values', [{'vm_state': 'stopped'}, {'task_state': 'powering-off'}, {'host': 'gpu2'}, {'deleted': 1}]
)
def test_nothing_is_written_of_a_server_that_is_not_to_run(site: Site, values: dict[str, Any]) -> None:
    site.put('active', power_state=1)
    change(site, **values)
    resumes.plan(site.cell, get_admin_context(), 'gpu1', {SERVER: 'no card'}, is_off=True)
    assert site.rows() == []


def test_it_is_tried_until_it_runs(planned: Site) -> None:
    site = planned
    site.answers['resume_guest'] = [KilonovaError('no storage'), Unanswered(who='gpu1', reason='x'), RUNS]
    go(site)
    assert story(site) == ('Waiting', False, None, 'no storage') and site.rows()[0].outputs['reason'] == 'no storage'
    go(site)
    assert story(site)[:3] == ('Waiting', False, None)
    go(site)
    assert (site.rows(), site.state(), site.row()['power_state']) == ([], ('active', None), 1)
    assert story(site) == (None, True, 'Success', 'Started after 1 failed tries; the last one: gpu1 does not answer: x')
    assert site.asked() == ['gpu1 resume_guest'] * 3


@pytest.mark.parametrize(
    ('before', 'details'),
    [
        ([], 'Runs again. Reason of the delay: no card'),
        ([Unanswered(who='gpu1', reason='x')], 'Runs again. Reason of the delay: gpu1 does not answer: x'),
        ([KilonovaError('no storage')] * 2, 'Started after 2 failed tries; the last one: no storage'),
    ],
)
def test_the_action_of_a_server_that_runs_again_says_why_it_took_so_long(
    planned: Site, before: list[Exception], details: str
) -> None:
    site = planned
    site.answers['resume_guest'] = [*before, RUNS]
    for _ in [*before, RUNS]:
        go(site)
    assert story(site) == (None, True, 'Success', details)


def test_an_answer_that_is_lost_changes_nothing(planned: Site) -> None:
    """The host is asked again under the same key."""
    site = planned
    site.answers['resume_guest'] = [Unanswered(who='gpu1', reason='lost'), RUNS]
    go(site)
    go(site)
    first, second = [kwargs['key'] for _, _, kwargs in site.calls()]
    assert first == second and site.rows() == [] and story(site)[2] == 'Success'


def test_a_host_that_is_down_is_waited_for(planned: Site) -> None:
    """Its time counts from its next start on."""
    site = planned
    site.silence('gpu1')
    go(site)
    assert site.sent == [] and site.state() == ('active', None)
    assert story(site) == ('Waiting', False, None, 'compute service of host gpu1 is down')
    before = site.rows()[0]
    resumes.plan(site.cell, get_admin_context(), 'gpu1', {}, is_off=True)
    after = site.rows()[0]
    assert after.created_at is not None and before.created_at is not None
    assert (after.not_before, after.created_at > before.created_at) == (0, True)


def test_an_operation_of_its_user_is_waited_for(planned: Site) -> None:
    site = planned
    site.accept('reboot', {'reboot_type': 'HARD'})
    site.operation = next(row.uuid for row in site.rows() if row.kind == resumes.KIND)
    go(site)
    assert site.sent == [] and len(site.rows()) == 2


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        ({'vm_state': 'stopped'}, 'the server is now stopped'),
        ({'host': 'gpu2'}, 'the server is now on host gpu2'),
        ({'host': None, 'vm_state': 'shelved_offloaded'}, 'the server is now on no host'),
    ],
)
def test_a_server_that_is_not_to_run_there_any_more_is_left(planned: Site, values: dict[str, Any], said: str) -> None:
    site = planned
    change(site, **values)
    go(site)
    assert (site.sent, site.rows()) == ([], [])
    assert story(site)[:3] == (None, True, 'Success') and said in story(site)[3]


def test_the_row_of_a_deleted_server_ends(planned: Site) -> None:
    site = planned
    change(site, deleted=1)
    go(site)
    assert (site.sent, site.rows()) == ([], [])


def test_a_server_that_changes_while_its_host_is_asked_is_looked_at_again(planned: Site) -> None:
    site = planned
    site.answers['resume_guest'] = [{'is_running': False}]
    go(site)
    assert len(site.rows()) == 1 and site.rows()[0].outputs['reason'].endswith('its state was changed meanwhile')


@pytest.mark.parametrize(
    ('error', 'timeout', 'ends'),
    [
        (KilonovaError('no card'), 3600, False),
        (KilonovaError('no card'), 0, True),
        (HostRejected('full'), 0, True),
        (Invalid('hw_x is nonsense'), 3600, True),
        (Unanswered(who='gpu1', reason='silence'), 0, False),
    ],
)
@pytest.mark.parametrize('vm_state', ['active', 'resized', 'rescued'])
def test_how_it_ends(planned: Site, error: Exception, timeout: int, ends: bool, vm_state: str) -> None:
    """Never silently: when its time is over, or when no later try could go better."""
    site = planned
    change(site, vm_state=vm_state)
    site.env.conf.conductor.host_boot_resume_timeout = timeout
    site.answers['resume_guest'] = [error]
    go(site)
    if not ends:
        assert len(site.rows()) == 1 and site.state() == (vm_state, None) and story(site)[0] == 'Waiting'
        return
    assert site.rows() == []
    assert site.state() == ('stopped' if vm_state == 'active' else vm_state, None)
    message, ended, result, details = story(site)
    assert (message, ended, result) == ('Error', True, 'Error') and str(error) in details
    if vm_state == 'active':
        ((_, fault, _),) = site.faults()
        assert fault == f'The server was not started again after its host went down: {error}'


def test_a_compute_of_the_release_before_is_not_asked(planned: Site) -> None:
    """It starts such servers by itself, or says that they are off."""
    site = planned
    site.answers['resume_guest'] = [VersionCapError(version='6.13', cap='6.12')]
    go(site)
    assert len(site.rows()) == 1
