"""Evacuation of a dead host's server: what the chosen host is asked, and what waits for the dead one."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows import FLOWS
from kilonova.db.queries import instances, migrations, services
from kilonova.errors import HostRejected, Invalid, NoValidHost, Unanswered
from tests.unit.conductor.site import MIGRATION, SERVER, SMALL, Sent, Site, primitive, steps, uuid

# As the server keeps it.
IMAGE = {'id': '89792132-a1be-5926-90c6-d84f183c15e8', 'min_ram': 1, 'properties': {}}
DB = "metadata {'role': 'db'}"
MOVE = 'evacuation gpu1 to None: pre-migrating'
ON_GPU1 = f'active/rebuilding on gpu1: flavor 1, {DB}'


def begin(site: Site, vm_state: str = 'active', **args: Any) -> None:
    site.put(vm_state, 'rebuilding')
    site.inventory()
    site.silence('gpu1', forced=True)
    site.choose('gpu2', 'gpu3')
    site.accept(
        'evacuate',
        {
            'migration_uuid': MIGRATION,
            'migration_type': 'evacuation',
            'flavor': primitive(SMALL),
            'image': IMAGE,
            'request_spec': primitive(site.spec(gpus=(1,))),
            'sealed': 'x',
            'shared': True,
            'stays_off': False,
            'power_state': 6,
            **args,
        },
    )


def took_over(site: Site, host: str = 'gpu2') -> Any:
    def answer(sent: Sent) -> None:
        with site.cell.write() as conn:
            migrations.update(conn, MIGRATION, {'dest_compute': host, 'dest_node': f'node{host[-1]}'})
            instances.update(conn, SERVER, {'host': host, 'node': f'node{host[-1]}', 'power_state': 1})

    return answer


def test_what_the_new_host_is_asked(site: Site) -> None:
    """Metadata are for the config drive."""
    site.env.notify.enabled = False
    begin(site)
    site.go()
    _, call = site.calls()
    assert call == (
        'gpu2',
        'evacuate_instance',
        {
            'key': '3.evacuate_instance/1',
            'order': {
                'instance': ON_GPU1,
                'image': IMAGE,
                'migration': MOVE,
                'sealed': 'x',
                'limits': {'memory_mb': 999},
                'request_spec': f"spec of flavor 1 with ['{uuid('device of gpu2')}']",
                'power_on': True,
                'shared': True,
                'block_devices': [f'/dev/vda of {SERVER}'],
            },
        },
    )


@pytest.mark.parametrize(
    ('vm_state', 'stays_off', 'after'),
    [('active', False, 'active'), ('active', True, 'stopped'), ('stopped', False, 'stopped')],
)
def test_it_is_elsewhere(site: Site, vm_state: str, stays_off: bool, after: str) -> None:
    begin(site, vm_state, stays_off=stays_off)
    site.answers['evacuate_instance'] = took_over(site)
    site.go()
    assert site.sent[1].args['order'].power_on is (after == 'active')
    assert site.state() == (after, None) and site.kept() is None and site.action() == 'done'
    row = site.row()
    assert row['launched_at'] is not None and row['extra_migration_context'] is None
    assert site.migration()['status'] == 'done'
    assert site.events() == [('rebuild_server', 'Success', 'ctl1', None)]
    assert [(event, facts.get('moved'), facts.get('host')) for event, facts in site.emitted] == [
        ('instance.rebuild_scheduled', None, None),
        ('instance.rebuild.end', f'rebuild.{after}', 'gpu2'),
    ]
    # What the dead host has waits for it; what the migration holds in Placement goes at once.
    (host, args), (nowhere, held) = site.releases()
    assert (host, args['host'], args['method']) == ('gpu1', 'gpu1', 'clean_evacuated')
    assert args['kwargs'] == {
        'instance': f'{vm_state}/rebuilding on gpu2: flavor 1, {DB}',
        'migration': ('evacuation gpu1 to gpu2: pre-migrating'),
    }
    assert (nowhere, held) == (None, {'consumer': MIGRATION})
    assert site.woken == [([site.rows()[1].uuid], True)]
    assert site.held() == {'server': {'gpu2': 1}, 'move': {'gpu1': 1}}


def test_the_image_that_the_server_has_now_is_asked_for_and_built(site: Site) -> None:
    """A rebuild that ran when the evacuation was accepted was undone afterwards. Another conductor that takes the
    operation over asks for the same image."""
    begin(site)
    with site.cell.write() as conn:
        instances.set_system_metadata(conn, SERVER, {'image_hw_machine_type': 'q35', 'image_hw_numa_nodes': '1'})
    site.answers['evacuate_instance'] = [Unanswered(who='gpu2', reason='away'), took_over(site)]
    site.go()
    site.go()
    asked, *orders = [sent.args for sent in site.sent]
    for given in (asked['spec_obj'], *(args['order'].request_spec for args in orders)):
        assert given.image.properties.hw_machine_type == 'q35' and len(given.numa_topology.cells) == 1
    properties = {'hw_machine_type': 'q35', 'hw_numa_nodes': 1}
    assert [args['order'].image['properties'] for args in orders] == [properties] * 2


def test_a_state_that_was_reset_meanwhile_is_no_evacuation(site: Site) -> None:
    begin(site)

    def reset(sent: Sent) -> None:
        took_over(site)(sent)
        with site.cell.write() as conn:
            instances.transition(conn, SERVER, 'reset.error')

    site.answers['evacuate_instance'] = reset
    site.go()
    assert site.releases() == [] and site.migration()['status'] == 'error' and site.state() == ('error', None)
    assert site.row()['host'] == 'gpu1' and site.held() == {'server': {'gpu1': 1}}
    assert site.asked()[-1] == 'gpu2 undo_evacuate_instance'


@pytest.mark.parametrize('late', [False, True])
def test_a_host_that_is_not_fenced_any_more(site: Site, late: bool) -> None:
    """It may run the guest. It is looked at before anything is asked, and once more before the new host is."""
    begin(site)
    choose = site.answers['select_destinations']

    def lift() -> None:
        with site.cell.write() as conn:
            row = services.get(conn, host='gpu1', binary='nova-compute')
            assert row is not None
            services.update(conn, row['id'], {'forced_down': False})

    def answer(sent: Sent) -> Any:
        lift()
        return choose(sent)

    if late:
        site.answers['select_destinations'] = answer
    else:
        lift()
    site.go()
    assert site.asked() == (['scheduler select_destinations', 'gpu2 undo_evacuate_instance'] if late else [])
    assert site.state() == ('active', None) and site.held() == {'server': {'gpu1': 1}}
    text = (
        'The compute service of host gpu1 is not forced down (any more): its hypervisor may still run the '
        'server, so the server is not started on another host.'
    )
    assert site.faults() == [(409, text, 'gpu2' if late else None)]


def test_a_failure_leaves_it_on_the_dead_host(site: Site) -> None:
    begin(site)

    def fail(sent: Sent) -> None:
        took_over(site)(sent)
        raise Invalid('no')

    site.answers['evacuate_instance'] = fail
    site.go()
    _, _, undo = site.calls()
    assert undo == (
        'gpu2',
        'undo_evacuate_instance',
        {
            'key': '3.evacuate_instance/1',
            'migration': 'evacuation gpu1 to gpu2: pre-migrating',
            'instance': f'active/rebuilding on gpu2: flavor 1, {DB}',
        },
    )
    row = site.row()
    assert (row['host'], row['node'], row['power_state']) == ('gpu1', 'node1', 6)
    assert site.state() == ('active', None) and site.kept() is None and site.action() == 'Error'
    assert site.migration()['status'] == 'error' and site.held() == {'server': {'gpu1': 1}}
    assert site.faults() == [(400, 'no', 'gpu2')]
    # The part that ended well is not said again.
    assert site.events() == [
        ('rebuild_server', 'Success', 'ctl1', None),
        ('compute_rebuild_instance', 'Error', 'ctl1', 'no'),
    ]
    assert [event for event, _ in site.emitted] == ['instance.rebuild_scheduled']


def test_no_host_takes_it(site: Site) -> None:
    begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='none')
    site.go()
    text = 'No valid host was found. none'
    assert site.asked() == ['scheduler select_destinations']
    assert site.events() == [('rebuild_server', 'Error', 'ctl1', text)]
    ((event, facts),) = site.emitted
    assert (event, facts['instance_uuid'], facts['request_spec'], facts['state'], facts['record']['class']) == (
        'compute_task.rebuild_server.error',
        SERVER,
        'spec of flavor 1 with [None]',
        'active',
        'NoValidHost',
    )


def test_the_next_host(site: Site) -> None:
    begin(site)
    site.answers['evacuate_instance'] = [HostRejected('full'), took_over(site, 'gpu3')]
    site.go()
    assert site.asked()[1:] == ['gpu2 evacuate_instance', 'gpu2 undo_evacuate_instance', 'gpu3 evacuate_instance']
    assert site.held() == {'server': {'gpu3': 1}, 'move': {'gpu1': 1}} and site.state() == ('active', None)


@pytest.mark.parametrize(
    ('claimed', 'cancelled', 'waits'), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_new_host_that_dies_is_waited_for_where_it_may_run_the_guest(
    site: Site, claimed: bool, cancelled: bool, waits: bool
) -> None:
    begin(site)

    def die(sent: Sent) -> None:
        if claimed:
            took_over(site)(sent)
        site.silence('gpu2')
        if cancelled:
            site.update(cancelled=True)
        raise Unanswered(who='gpu2', reason='died')

    site.answers['evacuate_instance'] = [die, took_over(site, 'gpu3')]
    site.go()
    row = site.kept()
    if waits:
        assert row is not None and row.undoing and not row.failed and site.releases() == []
        site.silence('gpu2', forced=True)
        site.go()
    elif cancelled:
        assert row is None and site.row()['host'] == 'gpu1'
    (host, args), *_ = site.releases()
    assert (host, args['method']) == ('gpu2', 'undo_evacuate_instance')
    assert args['kwargs']['instance'].startswith('active/rebuilding')
    assert args['kwargs']['migration'].startswith('evacuation gpu1 to')
    if not cancelled:
        assert site.asked()[-1] == 'gpu3 evacuate_instance'
        # It was put back in between, and is the third host's now.
        assert site.row()['host'] == 'gpu3'


@pytest.mark.parametrize('step', ['select_destinations', 'evacuate_instance'])
def test_it_goes_on_where_it_stood(site: Site, step: str) -> None:
    begin(site)
    site.answers[step] = [Unanswered(who='x', reason='y'), [[site.selection('gpu2')]] if 'select' in step else None]
    site.go()
    row = site.kept()
    assert row is not None and row.position == (0 if 'select' in step else FLOWS['evacuate'].index(step))
    site.go()
    assert site.state() == ('active', None) and site.held() == {'server': {'gpu2': 1}, 'move': {'gpu1': 1}}
    assert [event for event, *_ in site.events()] == ['rebuild_server']


def test_steps() -> None:
    assert steps('evacuate') == (
        'begin_evacuation select claim_and_move<claim_and_move evacuate_instance<claim_and_move mark_evacuated'
    )
