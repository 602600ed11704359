"""Confirm and revert of a resized server: who is asked, in which order, and what the rows say at the end."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS
from kilonova.db.queries import instances
from kilonova.errors import DevicesMissing, HostRejected, Invalid, Unanswered
from tests.unit.conductor.site import MIGRATION, SMALL, Sent, Site, primitive, steps

MOVE = 'resize gpu1 to gpu2'
CONFIRM, REVERT = {'migration_uuid': MIGRATION}, ('revert_resize', 'finish_revert_resize')


def confirm(site: Site, **values: Any) -> None:
    site.put_moved('resized', status='confirming', **values)
    site.hold_moved()
    site.accept('confirm', CONFIRM)


def revert(site: Site, **values: Any) -> None:
    site.put_moved('resized', 'resize_reverting', status='reverting', **values)
    site.hold_moved()
    site.accept('revert', {**CONFIRM, 'request_spec': primitive(site.spec(SMALL))})


@pytest.mark.parametrize(
    ('power_state', 'before', 'after'), [(1, 'active', 'active'), (4, 'active', 'stopped'), (1, 'stopped', 'stopped')]
)
def test_a_confirm_leaves_nothing_of_the_move(site: Site, power_state: int, before: str, after: str) -> None:
    confirm(site, power_state=power_state, system_metadata={'old_vm_state': before, 'image_x': 'y'})
    site.go()
    assert site.calls() == [
        (
            'gpu1',
            'confirm_resize',
            {
                'instance': "resized/None on gpu2: flavor 2, metadata {'role': 'db'}",
                'migration': f'{MOVE}: confirming',
                'key': '0.confirm_source/1',
            },
        )
    ]
    assert site.state() == (after, None) and site.kept() is None and site.action() == 'done'
    assert site.flavors() == {'cur': 2, 'old': None, 'new': None}
    assert site.row()['extra_migration_context'] is None
    assert site.system_metadata() == {'image_x': 'y'}
    assert site.migration()['status'] == 'confirmed'
    assert site.held() == {'server': {'gpu2': 2}}
    event, facts = site.emitted[0]
    assert (event, facts['moved'], facts['host']) == ('instance.resize_confirm.end', f'confirm.{after}', 'gpu1')


def test_a_server_whose_state_was_reset_keeps_that(site: Site) -> None:
    confirm(site)
    with site.cell.write() as conn:
        instances.transition(conn, site.row()['uuid'], 'reset.error')
    site.go()
    assert site.state() == ('error', None) and site.migration()['status'] == 'confirmed'
    assert site.emitted[0][1]['moved'] is None and site.kept() is None


def test_without_notifications(site: Site) -> None:
    site.env.notify.enabled = False
    confirm(site)
    site.go()
    assert site.state() == ('active', None)


def test_a_dead_source_confirms_later(site: Site) -> None:
    confirm(site)
    site.silence('gpu1')
    site.go()
    assert site.sent == [] and site.state() == ('active', None)
    ((host, args),) = site.releases()
    assert (host, args['host'], args['method']) == ('gpu1', 'gpu1', 'confirm_resize')
    assert args['kwargs'] == {
        'instance': "resized/None on gpu2: flavor 2, metadata {'role': 'db'}",
        'migration': f'{MOVE}: confirming',
    }


@pytest.mark.parametrize(
    ('kind', 'method'), [('confirm', 'confirm_resize'), ('revert', 'revert_resize'), ('revert', 'finish_revert_resize')]
)
def test_what_fails_is_tried_again(site: Site, kind: str, method: str) -> None:
    """They only go forward, also where a host refuses."""
    (confirm if kind == 'confirm' else revert)(site)
    site.answers[method] = [Invalid('x'), HostRejected('x')]
    for tries in (1, 2):
        site.go()
        row = site.kept()
        assert row is not None and not row.failed and row.outputs['tries'] == tries and row.owner is None
        assert site.state()[0] == 'resized'
    site.go()
    assert site.kept() is None and site.state() == ('active', None)
    assert [line for line in site.asked() if line.endswith(f' {method}')] == [
        f'{"gpu2" if method == "revert_resize" else "gpu1"} {method}'
    ] * 3


def test_a_revert(site: Site) -> None:
    revert(site)

    def back(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.update(conn, sent.args['instance'].uuid, {'host': 'gpu1', 'node': 'node1'})

    site.answers['finish_revert_resize'] = back
    site.go()
    server, key = "resized/resize_reverting on gpu2: flavor 2, metadata {'role': 'db'}", '{}/1'
    assert site.calls() == [
        (host, method, {'instance': server, 'migration': f'{MOVE}: reverting', 'key': key.format(step)})
        for host, method, step in (
            ('gpu1', 'check_revert', '0.check_source'),
            ('gpu2', 'revert_resize', '1.revert_dest'),
            ('gpu1', 'finish_revert_resize', '3.finish_revert'),
        )
    ]
    assert site.state() == ('active', None) and site.kept() is None and site.action() == 'done'
    assert site.held() == {'server': {'gpu1': 1}} and site.stored_spec() == 1
    assert site.migration()['status'] == 'reverted'
    assert site.row()['extra_migration_context'] is None and site.system_metadata() == {}
    event, facts = site.emitted[0]
    assert (event, facts['moved'], facts['host']) == ('instance.resize_revert.end', 'revert.active', 'gpu1')
    assert facts['instance'].startswith('resized/resize_reverting on gpu1')


def test_what_was_off_is_off_again(site: Site) -> None:
    revert(site, system_metadata={'old_vm_state': 'stopped'})
    site.go()
    assert site.state() == ('stopped', None) and site.emitted[0][1]['moved'] == 'revert.stopped'


def test_a_state_that_was_reset_is_no_revert(site: Site) -> None:
    revert(site)
    with site.cell.write() as conn:
        instances.transition(conn, site.row()['uuid'], 'reset.active')
    site.go()
    assert site.emitted[0][1]['moved'] is None and site.migration()['status'] == 'reverted'


def test_a_spec_that_is_not_known_stays(site: Site) -> None:
    revert(site)
    site.accept('revert', CONFIRM, slot='beside')
    site.go()
    assert site.stored_spec() == 2 and site.state() == ('active', None)


def test_a_source_that_lacks_devices_refuses(site: Site) -> None:
    """The server goes on at the destination, and may be confirmed or reverted later."""
    revert(site)
    site.answers['check_revert'] = DevicesMissing(addresses='08:00.0', uuid='s')
    site.go()
    assert site.asked() == ['gpu1 check_revert']
    assert site.state() == ('resized', None) and site.kept() is None and site.action() == 'Error'
    assert site.migration()['status'] == 'finished'
    text = 'PCI device(s) 08:00.0 of instance s are no longer on its host.'
    assert site.faults() == [(500, text, 'gpu1')]
    assert site.events() == [('conductor_revert_resize', 'Error', 'ctl1', text)]
    assert site.held() == {'server': {'gpu2': 2}, 'move': {'gpu1': 1}}


def test_a_source_that_is_down_is_waited_for(site: Site) -> None:
    revert(site)
    site.silence('gpu1')
    site.go()
    row = site.kept()
    assert site.sent == [] and row is not None and (row.position, row.failed) == (0, False)


def test_a_destination_that_may_run_the_guest_is_waited_for(site: Site) -> None:
    revert(site)
    site.silence('gpu2')
    site.go()
    row = site.kept()
    assert site.asked() == ['gpu1 check_revert'] and row is not None and (row.position, row.failed) == (1, False)
    assert site.releases() == []
    site.silence('gpu2', forced=True)
    site.go()
    assert site.asked() == ['gpu1 finish_revert_resize'] and site.kept() is None
    ((host, args),) = site.releases()
    assert (host, args['host'], args['method']) == ('gpu2', 'gpu2', 'revert_resize')
    assert args['kwargs'] == {
        'instance': "resized/resize_reverting on gpu2: flavor 2, metadata {'role': 'db'}",
        'migration': f'{MOVE}: reverting',
    }


@pytest.mark.parametrize('values', [{'system_metadata': {'old_vm_state': 'stopped'}}, {'deleting': True}])
def test_a_guest_that_no_source_starts_is_not_waited_for(site: Site, values: dict[str, Any]) -> None:
    """It was off before, or the server is being deleted."""
    deleting = values.pop('deleting', False)
    revert(site, **values)
    if deleting:
        with site.cell.write() as conn:
            instances.transition(conn, site.row()['uuid'], 'delete.start')
    site.silence('gpu2')
    site.go()
    assert site.asked() == ['gpu1 check_revert', 'gpu1 finish_revert_resize']


def test_a_delete_ends_it(site: Site) -> None:
    """Which then does all of it."""
    revert(site)
    site.update(cancelled=True)
    site.go()
    assert site.sent == [] and site.kept() is None
    assert site.migration()['status'] == 'reverting' and site.faults() == [] and site.action() == 'under way'


@pytest.mark.parametrize('silent', ['check_revert', 'revert_resize', 'finish_revert_resize'])
def test_a_row_goes_on_where_it_stood(site: Site, silent: str) -> None:
    revert(site)
    site.answers[silent] = [Unanswered(who='x', reason='y'), None]
    site.go()
    site.sent.clear()
    site.go()
    methods = ['check_revert', *REVERT]
    assert [sent.method for sent in site.sent] == methods[methods.index(silent) :]
    assert site.held() == {'server': {'gpu1': 1}} and site.state() == ('active', None)
    assert FLOWS['revert'].steps[2].name == 'move_back'


def test_what_came_back_in_placement_is_not_moved_twice(site: Site) -> None:
    """Between the last two hosts that are asked the row says so."""
    revert(site)
    site.answers['finish_revert_resize'] = [Unanswered(who='x', reason='y'), None]
    site.go()
    assert site.held() == {'server': {'gpu1': 1}}
    requests = len(site.placement.requests)
    site.go()
    assert [method for method, _ in site.placement.requests[requests:]] == ['GET']


def test_steps() -> None:
    assert steps('confirm') == 'confirm_source drop_allocation mark_confirmed'
    assert steps('revert') == 'check_source revert_dest move_back finish_revert save_spec mark_reverted'
