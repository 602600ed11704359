"""Operations of one step: what the host is asked, and what is left when it can't."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS, one_step
from kilonova.db.queries import volumes as volume_rows
from kilonova.errors import Invalid, Unanswered
from kilonova.objects.vif import Vif
from tests.fixtures.cinder import FakeCinder
from tests.fixtures.neutron import FakeNeutron
from tests.fixtures.servers import put_vifs
from tests.unit.conductor.site import IMAGE, SERVER, Site, steps, uuid

# kind: states before, what the row says, the method and its arguments beside server and key, states after a failure.
CASES: dict[str, tuple[Any, ...]] = {
    'stop': ('active', 'powering-off', {'clean_shutdown': False}, 'stop_instance', {'clean_shutdown': False}),
    'start': ('stopped', 'powering-on', {}, 'start_instance', {}),
    'reboot': ('active', 'rebooting', {'reboot_type': 'SOFT'}, 'reboot_instance', {'reboot_type': 'SOFT'}),
    'pause': ('active', 'pausing', {}, 'pause_instance', {}),
    'unpause': ('paused', 'unpausing', {}, 'unpause_instance', {}),
    'suspend': ('active', 'suspending', {}, 'suspend_instance', {}),
    'resume': ('suspended', 'resuming', {}, 'resume_instance', {}),
    'trigger_crash_dump': ('active', None, {}, 'trigger_crash_dump', {}),
    'rescue': (
        'active',
        'rescuing',
        {'image': {'id': IMAGE}, 'sealed': 'x'},
        'rescue_instance',
        {'order': {'instance': 'active/rescuing on gpu1: flavor 1', 'image': {'id': IMAGE}, 'sealed': 'x'}},
    ),
    'unrescue': ('rescued', 'unrescuing', {}, 'unrescue_instance', {}),
    'set_admin_password': ('active', 'updating_password', {'sealed': 'x'}, 'set_admin_password', {'sealed': 'x'}),
    'snapshot': ('active', 'image_snapshot', {'image_id': IMAGE}, 'snapshot_instance', {'image_id': IMAGE}),
    'restore': ('soft-delete', 'restoring', {}, 'restore_instance', {}),
}


def test_all_kinds_are_here() -> None:
    assert sorted(CASES) == sorted(flow.name for flow in one_step.FLOWS)
    assert [steps(kind) for kind in CASES] == [case[3] for case in CASES.values()]


@pytest.mark.parametrize('kind', CASES)
def test_the_host_is_asked_and_writes_the_end(site: Site, kind: str) -> None:
    vm_state, task_state, args, method, more = CASES[kind]
    site.env.notify.enabled = False
    site.put(vm_state, task_state)
    site.accept(kind, args)
    site.go()
    about = {} if 'order' in more else {'instance': f'{vm_state}/{task_state} on gpu1: flavor 1'}
    assert site.calls() == [('gpu1', method, {**about, **more, 'key': f'0.{method}/1'})]
    assert site.kept() is not None and site.action() == 'under way'
    assert site.finished_works == [(site.operation, None)]


@pytest.mark.parametrize('kind', CASES)
def test_a_failure_leaves_the_server_as_it_was(site: Site, kind: str) -> None:
    vm_state, task_state, args, method, _ = CASES[kind]
    site.put(vm_state, task_state)
    site.accept(kind, args)
    site.answers[method] = Invalid('no /such/place')
    site.go()
    assert site.state() == (vm_state, None)
    assert site.kept() is None and site.action() == 'Error'
    assert site.events() == [(f'compute_{method}', 'Error', None, 'no place')]
    assert site.faults() == [(400, 'no place', 'gpu1')]


@pytest.mark.parametrize('shutdown', [True, None])
def test_a_guest_is_shut_down_properly_unless_it_is_said(site: Site, shutdown: bool | None) -> None:
    site.put('active', 'powering-off')
    site.accept('stop', {} if shutdown is None else {'clean_shutdown': shutdown})
    site.go()
    assert site.sent[0].args['clean_shutdown'] is True


@pytest.mark.parametrize(
    ('kind', 'args', 'is_new'),
    [('start', {}, True), ('reboot', {'reboot_type': 'HARD'}, True), ('reboot', {'reboot_type': 'SOFT'}, False)],
)
def test_what_a_host_could_not_get_before_is_its_own_before_it_starts_a_guest_anew(
    site: Site, kind: str, args: dict[str, Any], is_new: bool
) -> None:
    """Bind a port that no agent had bound, and attach a volume that was attached to no host."""
    vm_state, task_state, _, method, _ = CASES[kind]
    site.put(vm_state, task_state)
    neutron, cinder = FakeNeutron(hosts={'gpu1'}), FakeCinder()
    site.env._networks, site.env._volumes = neutron.client, cinder.client
    site.answers['prepare_volumes'] = lambda sent: {'connector': {'host': sent.server}, 'devices': []}
    port_id = neutron.add_port(neutron.add_network('private', 'demo'), 'demo', device_id=SERVER)
    vif = Vif(id=port_id, mac='m', network_id='n', label='l', project_id='demo', type='binding_failed')
    volume_id = cinder.add_volume('demo')
    with site.cell.write() as conn:
        put_vifs(conn, SERVER, [vif])
        row = volume_rows.new_row(volume_id, size=1, connection_info='{}')
        volume_rows.add(conn, SERVER, {**row, 'device_name': '/dev/vdb', 'boot_index': None})
    site.accept(kind, args)
    site.go()
    assert site.asked() == [*(['gpu1 prepare_volumes'] if is_new else []), f'gpu1 {method}']
    assert neutron.bound() == ([f'gpu1 {SERVER}'] if is_new else [])
    assert cinder.statuses() == {volume_id: 'in-use' if is_new else 'available'}


def test_a_rescue_without_an_image(site: Site) -> None:
    """The host has one of its own."""
    site.put('active', 'rescuing')
    site.accept('rescue', {'image': None, 'sealed': None})
    site.go()
    assert site.sent[0].args['order'].image == {}


def test_an_image_of_a_snapshot_that_fails_goes(site: Site) -> None:
    """First what the host keeps for it."""
    site.put('active', 'image_snapshot')
    site.accept('snapshot', {'image_id': IMAGE})
    site.answers['snapshot_instance'] = Invalid('no')
    site.go()
    assert site.calls()[1] == (
        'gpu1',
        'undo_snapshot_instance',
        {
            'instance': "active/image_snapshot on gpu1: flavor 1, metadata {'role': 'db'}",
            'image_id': IMAGE,
            'key': '0.snapshot_instance/1',
        },
    )
    assert site.images.deleted == [IMAGE]


def test_a_silent_image_service_holds_up_no_server(site: Site) -> None:
    site.put('active', 'image_snapshot')
    site.accept('snapshot', {'image_id': IMAGE})
    site.answers['snapshot_instance'] = Invalid('no')
    site.images.refusals = [Unanswered(who='images', reason='x')]
    site.go()
    assert site.state() == ('active', None) and site.images.deleted == []
    assert site.releases() == [(None, {'image_id': IMAGE})]


def test_a_row_without_a_required_argument_fails(site: Site) -> None:
    """It is readable, and so it is no obstacle: the operation ends as with any error of its step."""
    site.put('active', 'rebooting')
    site.accept('reboot', {'of a newer release': 1})
    site.go()
    assert site.sent == [] and site.kept() is None and site.action() == 'Error'
    assert (site.state(), site.faults()) == (('active', None), [(500, 'KeyError', None)])


def test_a_move_without_a_required_argument_is_undone(site: Site) -> None:
    """The steps that need other arguments only are done, and undone."""
    site.put('active', 'resize_prep')
    site.accept('resize', {'migration_uuid': uuid('migration')})
    site.go()
    assert site.kept() is None and site.action() == 'Error'
    assert (site.state(), site.faults()) == (('active', None), [(500, 'KeyError', None)])


def run(work: Any) -> None:
    """The flow of a row that was taken."""
    FLOWS[work.kind].run(work)
