"""Resize and cold migration: what each host is asked, what is undone, what the rows say at the end."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import objects
from kilonova.accel import holder
from kilonova.conductor.flows import FLOWS, resize
from kilonova.db.queries import instances, migrations, request_specs
from kilonova.errors import HostRejected, Invalid, NoValidHost, Unanswered
from tests.unit.conductor.site import LARGE, MIGRATION, SERVER, SMALL, Sent, Site, primitive, steps, uuid
from tests.unit.scheduler.builders import flavor

INSTANCE = "active/resize_prep on gpu1: flavor 1, metadata {'role': 'db'}"
MOVE, TO_GPU2 = 'resize gpu1 to None: pre-migrating', 'resize gpu1 to gpu2: pre-migrating'
SPEC = f"spec of flavor 2 with ['{uuid('device of gpu2')}']"
IMAGE = {'id': 'the image'}


def begin(site: Site, *hosts: str, **args: Any) -> None:
    """A resize is accepted; the scheduler will choose these hosts."""
    site.put('active', 'resize_prep')
    site.inventory()
    site.choose(*hosts or ('gpu2', 'gpu3'), vcpus=2)
    site.answers.update(prep_resize={'disk': {'host': 'there'}}, resize_instance={'path': '/disk'})
    site.accept(
        'resize',
        {
            'migration_uuid': MIGRATION,
            'migration_type': 'resize',
            'flavor': primitive(LARGE),
            'image': IMAGE,
            'request_spec': primitive(site.spec(LARGE, gpus=(1,))),
            'old_request_spec': primitive(site.spec(SMALL)),
            'clean_shutdown': False,
            **args,
        },
    )


def took_over(site: Site, host: str) -> Any:
    """What a destination writes when it claims: the server is its own from now on, with the new flavor."""

    def answer(sent: Sent) -> dict[str, Any]:
        with site.cell.write() as conn:
            migrations.update(conn, MIGRATION, {'dest_compute': host, 'dest_node': f'node{host[-1]}'})
            made = site.instance(flavor=LARGE, old_flavor=SMALL, new_flavor=LARGE)
            instances.update(conn, made.uuid, {'host': host, 'node': f'node{host[-1]}', **made.flavor_columns()})
            instances.update_extra(conn, made.uuid, made.extra_values(['flavor']))
        return {'disk': None}

    return answer


def test_what_each_host_is_asked(site: Site) -> None:
    begin(site)
    site.go()
    scheduler, *calls = site.calls()
    assert scheduler == (
        None,
        'select_destinations',
        {
            'spec_obj': 'spec of flavor 2 with [None]',
            'instance_uuids': [site.row()['uuid']],
            'return_objects': True,
            'return_alternates': True,
            'claim': False,
            'time_left': 60.0,
        },
    )
    limits = {'memory_mb': 999}
    assert calls == [
        (
            'gpu2',
            'prep_resize',
            {
                'key': '3.prep_resize/1',
                'order': {
                    'instance': INSTANCE,
                    'image': IMAGE,
                    'migration': MOVE,
                    'flavor': 'flavor 2',
                    'request_spec': SPEC,
                    'limits': limits,
                },
            },
        ),
        (
            'gpu1',
            'resize_instance',
            {
                'key': '4.resize_instance/1',
                'order': {
                    'instance': INSTANCE,
                    'image': IMAGE,
                    'migration': MOVE,
                    'flavor': 'flavor 2',
                    'clean_shutdown': False,
                    'disk': {'host': 'there'},
                },
            },
        ),
        (
            'gpu2',
            'finish_resize',
            {
                'key': '5.finish_resize/1',
                'order': {
                    'instance': INSTANCE,
                    'image': IMAGE,
                    'migration': MOVE,
                    'request_spec': SPEC,
                    'disk_info': {'path': '/disk'},
                },
            },
        ),
    ]


def test_it_waits_for_its_confirm(site: Site) -> None:
    begin(site)
    site.go()
    assert site.state() == ('resized', None) and site.kept() is None
    assert site.held() == {'server': {'gpu2': 2}, 'move': {'gpu1': 1}}
    assert site.stored_spec() == 2
    row = site.migration()
    assert {
        name: row[name]
        for name in (
            'uuid',
            'status',
            'migration_type',
            'source_compute',
            'source_node',
            'old_instance_type_id',
            'new_instance_type_id',
            'user_id',
            'project_id',
            'instance_uuid',
        )
    } == {
        'uuid': MIGRATION,
        'status': 'finished',
        'migration_type': 'resize',
        'source_compute': 'gpu1',
        'source_node': 'node1',
        'old_instance_type_id': 1,
        'new_instance_type_id': 2,
        'user_id': 'alice',
        'project_id': 'demo',
        'instance_uuid': site.row()['uuid'],
    }
    assert site.system_metadata()['old_vm_state'] == 'active'
    assert site.events() == [
        ('conductor_migrate_server', 'Success', 'ctl1', None),
        ('cold_migrate', 'Success', 'ctl1', None),
    ]
    assert site.action() == 'done'
    assert site.emitted == [
        ('instance.resize_finish.end', {'instance': INSTANCE, 'moved': 'resize.done', 'host': 'gpu1'})
    ]


@pytest.mark.parametrize('bound_to', [None, 'an earlier move'])
@pytest.mark.parametrize('which', ['neither', 'old', 'new'])
def test_accelerators_belong_to_the_move_until_it_is_confirmed_if_a_flavor_has_some(
    site: Site, which: str, bound_to: str | None
) -> None:
    """Keep the uuid to which the accelerators at the source are bound, for a revert."""
    small, large = (
        flavor(id=number, extra_specs={'accel:device_profile': 'fpga'} if which == name else {})
        for number, name in ((1, 'old'), (2, 'new'))
    )
    known = {holder.BOUND_TO: bound_to} if bound_to else {}
    site.put_moved('active', 'resize_finish', 'migrating', flavor=large, old_flavor=small, new_flavor=large)
    with site.cell.write() as conn:
        instances.set_system_metadata(conn, SERVER, known)
    site.accept('resize', {'migration_uuid': MIGRATION, 'migration_type': 'resize', 'flavor': primitive(large)})
    resize.mark_resized(site.work())
    found = site.system_metadata()
    expected = {holder.BOUND_TO: MIGRATION, holder.BEFORE: bound_to}
    if which == 'neither':
        expected = {holder.BOUND_TO: bound_to, holder.BEFORE: None}
    assert {name: found.get(name) for name in expected} == expected
    assert site.state() == ('resized', None) and found['old_vm_state'] == 'active'


def test_without_notifications_nothing_is_read_for_them(site: Site) -> None:
    site.env.notify.enabled = False
    begin(site)
    site.go()
    assert site.state() == ('resized', None) and site.emitted == []


def test_what_a_destination_writes_is_what_the_next_host_reads(site: Site) -> None:
    begin(site)
    site.answers['prep_resize'] = took_over(site, 'gpu2')
    site.go()
    orders = {sent.method: sent.args['order'] for sent in site.sent[1:]}
    assert (orders['prep_resize'].instance.host, orders['prep_resize'].migration.dest_compute) == ('gpu1', None)
    for later in ('resize_instance', 'finish_resize'):
        assert orders[later].instance.host == 'gpu2' and orders[later].migration.dest_compute == 'gpu2'
    assert orders['resize_instance'].disk is None


STEPS = ['prep_resize', 'resize_instance', 'finish_resize']
UNDONE = {'prep_resize': 'gpu2', 'resize_instance': 'gpu1', 'finish_resize': 'gpu2'}


@pytest.mark.parametrize('failing', STEPS)
def test_a_failure_is_undone_from_the_end(site: Site, failing: str) -> None:
    """An error that no other host would mend. The server is as it was."""
    begin(site)
    claim = took_over(site, 'gpu2')

    def fail(sent: Sent) -> None:
        if failing == 'prep_resize':
            claim(sent)
        raise Invalid('no')

    site.answers.update({'prep_resize': claim, failing: fail})
    site.go()
    done = STEPS[: STEPS.index(failing) + 1]
    found = site.calls()[1:]
    assert [(host, method) for host, method, _ in found[len(done) :]] == [
        (UNDONE[step], f'undo_{step}') for step in reversed(done)
    ]
    for (_, _, args), step in zip(found[len(done) :], reversed(done), strict=True):
        assert args['key'] == f'{FLOWS["resize"].index(step)}.{step}/1'
        assert args['migration'] == TO_GPU2
    assert site.state() == ('active', None) and site.action() == 'Error'
    row = site.row()
    assert (row['host'], row['node'], row['instance_type_id'], row['vcpus']) == ('gpu1', 'node1', 1, 1)
    assert site.held() == {'server': {'gpu1': 1}} and site.stored_spec() == 1
    assert site.migration()['status'] == 'error'
    # By the host that was asked last.
    assert site.faults() == [(400, 'no', 'gpu2')]
    assert [event[:3] for event in site.events()] == [
        (name, 'Error', 'ctl1') for name in ('conductor_migrate_server', 'cold_migrate')
    ]
    assert site.emitted == []


@pytest.mark.parametrize('refusing', ['prep_resize', 'resize_instance'])
def test_a_host_that_refuses_sends_it_to_the_next(site: Site, refusing: str) -> None:
    begin(site)
    site.answers[refusing] = [HostRejected('too small'), site.answers[refusing]]
    site.go()
    asked = [line for line in site.asked() if line.partition(' ')[2] != 'select_destinations']
    first = ['gpu2 prep_resize', 'gpu1 resize_instance'][: STEPS.index(refusing) + 1]
    undone = ['gpu1 undo_resize_instance', 'gpu2 undo_prep_resize'][-len(first) :]
    assert asked == [*first, *undone, 'gpu3 prep_resize', 'gpu1 resize_instance', 'gpu3 finish_resize']
    assert site.held() == {'server': {'gpu3': 2}, 'move': {'gpu1': 1}}
    assert site.state() == ('resized', None)


def test_what_they_said_when_no_host_is_left(site: Site) -> None:
    begin(site)
    site.answers['prep_resize'] = [HostRejected('too small'), HostRejected('too full')]
    site.go()
    assert site.faults() == [(500, 'No valid host was found. Hosts said: too small; too full', 'gpu3')]
    assert site.emitted == [
        (
            'compute_task.migrate_server.error',
            {
                'instance_uuid': site.row()['uuid'],
                'request_spec': 'spec of flavor 2 with [None]',
                'state': 'active',
                'record': site.emitted[0][1]['record'],
            },
        )
    ]
    assert site.emitted[0][1]['record']['class'] == 'NoValidHost'


def test_the_guest_is_not_destroyed_by_a_refusal_of_its_last_step(site: Site) -> None:
    """Who began to build it fails, and no other host is tried."""
    begin(site)
    site.answers['finish_resize'] = HostRejected('no')
    site.go()
    assert 'gpu3 prep_resize' not in site.asked()
    assert site.state() == ('active', None)


def test_devices_that_another_server_got_are_chosen_again(site: Site) -> None:
    """Placement has no room for what was chosen: the scheduler is asked for other devices of the same hosts."""
    begin(site, 'gpu2')
    full, found = site.selection('gpu2', vcpus=9), site.selection('gpu3', vcpus=2)
    site.answers['select_destinations'] = [[[full]], [[found]]]
    work = site.go()
    assert [line for line in site.asked() if 'select' in line or 'prep' in line] == [
        'scheduler select_destinations',
        'scheduler select_destinations',
        'gpu3 prep_resize',
    ]
    # The host that refused counts as an attempt, and is behind it.
    assert work.outputs.choices == 2 and [choice.host for choice in work.outputs.hosts] == ['gpu2', 'gpu3']
    assert work.attempt == 2


def test_hosts_that_were_not_tried_are_not_kept(site: Site) -> None:
    """What is chosen again stands right behind those that refused."""
    begin(site)
    full = site.selection('gpu2', vcpus=9)
    site.answers['select_destinations'] = [[[full] * 5], [[site.selection('gpu3', vcpus=2)]]]
    work = site.go()
    assert [choice.host for choice in work.outputs.hosts] == ['gpu2'] * 3 + ['gpu3'] and work.attempt == 4
    assert site.held()['server'] == {'gpu3': 2}


def test_it_is_not_chosen_for_ever(site: Site) -> None:
    begin(site, 'gpu2')
    site.answers['select_destinations'] = lambda sent: [[site.selection('gpu2', vcpus=9)]]
    site.go()
    assert site.asked() == ['scheduler select_destinations'] * 10
    assert site.faults()[0][1].startswith('No valid host was found. Hosts said: Insufficient compute resources: gpu2: ')
    assert site.held() == {'server': {'gpu1': 1}}


def test_a_host_that_refuses_for_another_reason_is_not_chosen_again(site: Site) -> None:
    begin(site, 'gpu2')
    site.answers['prep_resize'] = HostRejected('no')
    site.go()
    assert site.asked().count('scheduler select_destinations') == 1


def test_no_host_was_chosen(site: Site) -> None:
    """Nothing was asked of any host, so nothing is undone there."""
    begin(site)
    site.answers['select_destinations'] = NoValidHost(reason='none')
    site.go()
    assert site.asked() == ['scheduler select_destinations']
    assert site.state() == ('active', None) and site.migration()['status'] == 'error'
    assert site.faults() == [(500, 'No valid host was found. none', None)]


@pytest.mark.parametrize('silent', [*STEPS, 'select_destinations'])
def test_whoever_takes_the_row_over_asks_the_same_again(site: Site, silent: str) -> None:
    """Silence leaves the row; what was answered before is in it."""
    begin(site)
    answer = site.answers.get(silent)
    site.answers[silent] = Unanswered(who='x', reason='y')
    site.go()
    row = site.kept()
    # The migration is written again.
    position = 0 if silent == 'select_destinations' else FLOWS['resize'].index(silent)
    assert row is not None and (row.owner, row.position) == (None, position)
    before = site.sent[-1]
    site.answers[silent] = answer
    site.sent.clear()
    site.go()
    again = site.sent[0]
    assert (again.server, again.method, again.args.get('key')) == (before.server, before.method, before.args.get('key'))
    assert site.state() == ('resized', None) and site.held() == {'server': {'gpu2': 2}, 'move': {'gpu1': 1}}
    order = {sent.method: sent.args['order'] for sent in site.sent if sent.method != 'select_destinations'}
    if 'resize_instance' in order:
        assert order['resize_instance'].disk == {'host': 'there'}
    assert order['finish_resize'].disk_info == {'path': '/disk'}
    assert site.migration()['status'] == 'finished'


def test_a_request_spec_that_changes_meanwhile_stays(site: Site) -> None:
    """It is read again then."""
    begin(site)
    changes = []

    def change(sent: Sent) -> None:
        changes.append(1)

    real = site.env.leases.check

    def check(db: Any, owner: str) -> None:
        # Between reading the spec and writing it the row is compared.
        if changes and len(changes) < 3:
            changes.append(1)
            with site.api.write() as conn:
                row = request_specs.get(conn, site.row()['uuid'])
                assert row is not None
                request_specs.save(conn, row, site.spec(SMALL, availability_zone=f'zone{len(changes)}').to_json())
        real(db, owner)

    site.answers['finish_resize'] = change
    site.env.leases.check = check  # type: ignore[method-assign]
    site.go()
    assert len(changes) == 3 and site.stored_spec() == 2


def test_a_request_spec_that_changes_all_the_time_is_stored_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(site)
    tries: list[int] = []
    monkeypatch.setattr(request_specs, 'save', lambda *args: tries.append(1))
    site.go()
    row = site.kept()
    assert row is not None and not row.failed and row.position == 6 and len(tries) == 5


def test_a_server_that_was_reset_meanwhile_is_put_back(site: Site) -> None:
    begin(site)

    def reset(sent: Sent) -> None:
        with site.cell.write() as conn:
            instances.transition(conn, sent.args['order'].instance.uuid, 'reset.error')

    site.answers['finish_resize'] = reset
    site.go()
    assert site.asked()[-1] == 'gpu2 undo_prep_resize' and site.held() == {'server': {'gpu1': 1}}
    assert site.state() == ('error', None) and site.stored_spec() == 1 and site.migration()['status'] == 'error'
    assert site.faults() == [] and 'old_vm_state' not in site.system_metadata()


def test_a_server_without_a_request_spec_is_resized(site: Site) -> None:
    begin(site)
    with site.api.write() as conn:
        request_specs.destroy(conn, site.row()['uuid'])
    site.go()
    assert site.state() == ('resized', None)


@pytest.mark.parametrize(('vm_state', 'waits'), [('active', True), ('stopped', False)])
def test_a_second_guest(site: Site, vm_state: str, waits: bool) -> None:
    """A destination that is down may run the guest: the source doesn't start it then. One that was off stays off."""
    begin(site)
    with site.cell.write() as conn:
        conn.execute(instances.instances.update().values(vm_state=vm_state))

    def dies(sent: Sent) -> None:
        site.silence('gpu2')
        raise Unanswered(who='gpu2', reason='died')

    site.answers['finish_resize'] = dies
    site.go()
    asked = site.asked()
    if waits:
        assert asked[-1] == 'gpu2 finish_resize' and site.state() == ('active', 'resize_prep')
        assert site.kept() is not None and site.kept().failed
        site.silence('gpu2', forced=True)
        site.go()
        asked = site.asked()
    assert asked[-1] == 'gpu1 undo_resize_instance'
    assert site.state() == (vm_state, None)
    assert sorted((host, args['method'], args['host']) for host, args in site.releases()) == [
        ('gpu2', f'undo_{step}', 'gpu2') for step in ('finish_resize', 'prep_resize')
    ]
    for _, args in site.releases():
        assert args['kwargs']['instance'].startswith(f'{vm_state}/resize_prep') and args['kwargs']['migration'] == MOVE


def test_a_server_that_is_being_deleted_is_not_started_by_its_source(site: Site) -> None:
    """So nothing is to be waited for."""
    begin(site)

    def dies(sent: Sent) -> None:
        site.silence('gpu2')
        site.update(cancelled=True)
        with site.cell.write() as conn:
            instances.transition(conn, sent.args['order'].instance.uuid, 'delete.start')
        raise Unanswered(who='gpu2', reason='died')

    site.answers['finish_resize'] = dies
    site.go()
    assert site.asked()[-1] == 'gpu1 undo_resize_instance' and site.kept() is None
    assert site.state() == ('active', 'deleting') and site.faults() == []


def test_a_move_that_never_began(site: Site) -> None:
    """Cancelled before its migration was there."""
    begin(site)
    site.update(cancelled=True)
    site.go()
    assert site.sent == [] and site.kept() is None and site.state() == ('active', None)
    assert site.action() == 'Error'


def test_the_context_of_the_move_goes(site: Site) -> None:
    """With it the server gets back the requests and the place that it had."""
    begin(site)
    old = objects.InstancePCIRequests(instance_uuid=uuid('server'), requests=[])

    def claim(sent: Sent) -> Any:
        answer = took_over(site, 'gpu2')(sent)
        context = objects.MigrationContext(
            instance_uuid=uuid('server'),
            migration_id=site.migration()['id'],
            old_pci_requests=old,
            new_pci_requests=None,
            old_numa_topology=None,
            new_numa_topology=None,
        )
        made = site.instance(pci_requests=site.spec(gpus=(1,)).pci_requests, migration_context=context)
        with site.cell.write() as conn:
            instances.update_extra(conn, made.uuid, made.extra_values(['pci_requests', 'migration_context']))
        return answer

    site.answers.update(prep_resize=claim, resize_instance=Invalid('no'))
    site.go()
    row = site.row()
    assert (row['extra_migration_context'], row['extra_pci_requests']) == (None, '[]')


def test_a_migration_that_is_gone(site: Site) -> None:
    begin(site)

    def forget(sent: Sent) -> Any:
        with site.cell.write() as conn:
            conn.execute(migrations.migrations.delete())

    site.answers['prep_resize'] = forget
    site.go()
    row = site.kept()
    assert row is not None and row.error is not None and row.error['class'] == 'MigrationNotFound'


def test_steps() -> None:
    assert steps('resize') == (
        'create_migration select claim_and_move<claim_and_move prep_resize<claim_and_move '
        'resize_instance<claim_and_move finish_resize save_spec mark_resized'
    )
