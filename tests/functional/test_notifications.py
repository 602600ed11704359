"""What a whole cloud tells other programs, in both forms and in order."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest

from kilonova.context import get_admin_context
from kilonova.db.queries import instances, usages
from kilonova.errors import KilonovaError
from kilonova.objects.notifications import Payload
from tests.fixtures.cloud import IMAGE_ID
from tests.fixtures.notifications import Recorder


@pytest.fixture
def telling(make_cloud):
    """``telling(**options)``: a cloud that tells all, and what it told."""

    def make(**options):
        recorder = Recorder()
        # driver is only looked at: the recorder takes what there is to send.
        cloud = make_cloud(
            sender=recorder,
            oslo_messaging_notifications__driver=['messagingv2'],
            notifications__notification_format='both',
            **options,
        )
        recorder.sent.clear()
        return cloud, recorder

    return make


def versioned(recorder, ignore=('flavor.',)):
    """(event type, publisher) of the versioned ones."""
    return [(message.event, message.publisher) for message in recorder.of(True) if not message.event.startswith(ignore)]


def events(recorder):
    return [event for event, _ in versioned(recorder)]


def old_events(recorder):
    """Of the unversioned ones, without the prefix that most have."""
    return [message.event.removeprefix('compute.instance.') for message in recorder.of(False)]


def data(recorder, event):
    """The last versioned payload of an event."""
    return next(
        message.payload['nova_object.data'] for message in reversed(recorder.of(True)) if message.event == event
    )


def old(recorder, event):
    return next(message.payload for message in reversed(recorder.of(False)) if message.event == event)


SCHED = ['scheduler.select_destinations.start', 'scheduler.select_destinations.end']
MOVE = [
    'instance.exists',
    'instance.resize_prep.start',
    'instance.resize_prep.end',
    'instance.resize.start',
    'instance.resize.end',
    'instance.resize_finish.start',
    'instance.resize_finish.end',
]


def test_the_life_of_a_server_in_notifications(telling):
    """Boot, stop, start, reboot, snapshot, resize, confirm, revert, lock and delete send the notifications of Nova
    in order, in both forms."""
    cloud, told = telling()
    small, large = cloud.flavor('tmp1', gpus=1), cloud.flavor('tmp2', gpus=2)
    assert [message.event for message in told.of(True)].count('flavor.create') == 2
    assert data(told, 'flavor.update')['extra_specs'] == {'pci_passthrough:alias': 'QuadroM4000-video:2'}
    told.sent.clear()

    # Boot.
    server = cloud.boot(small, metadata={'role': 'train'}, tags=['blue'])
    home = cloud.host_of(server)
    assert versioned(told) == [
        *((event, 'nova-scheduler:controller') for event in SCHED),
        ('instance.create.start', f'nova-compute:{home}'),
        ('instance.create.end', f'nova-compute:{home}'),
    ]
    assert old_events(told) == [*SCHED, 'create.start', 'create.end']
    end = data(told, 'instance.create.end')
    assert (end['state'], end['task_state'], end['power_state'], end['host']) == ('active', None, 'running', home)
    assert (end['metadata'], end['tags'], end['fault'], end['uuid']) == ({'role': 'train'}, ['blue'], None, server)
    assert end['launched_at'] and end['request_id'].startswith('req-') and end['action_initiator_user'] == 'admin'
    assert old(told, 'compute.instance.create.end')['message'] == 'Success'
    asked = data(told, SCHED[1])
    assert asked['pci_requests']['nova_object.data']['requests'][0]['nova_object.data']['count'] == 1
    assert asked['image']['nova_object.data']['disk_format'] == 'qcow2'
    start = next(
        message.payload['nova_object.data'] for message in told.of(True) if message.event == 'instance.create.start'
    )
    assert (start['host'], start['state']) == (None, 'building')

    # One-step operations.
    for action, body, names in (
        ('os-stop', None, 'power_off'),
        ('os-start', None, 'power_on'),
        ('reboot', {'type': 'HARD'}, 'reboot'),
        ('createImage', {'name': 'i'}, 'snapshot'),
    ):
        told.sent.clear()
        cloud.action(server, action, body)
        assert versioned(told) == [(f'instance.{names}.{phase}', f'nova-compute:{home}') for phase in ('start', 'end')]
        assert old_events(told) == [f'{names}.start', f'{names}.end']
        assert data(told, f'instance.{names}.end')['metadata'] == {'role': 'train'}
        assert data(told, f'instance.{names}.end')['power_state'] == ('shutdown' if names == 'power_off' else 'running')
    assert data(told, 'instance.snapshot.end')['snapshot_image_id'] in cloud.images.made

    # Resize.
    told.sent.clear()
    cloud.action(server, 'resize', {'flavorRef': large})
    other = cloud.host_of(server)
    assert other != home
    assert events(told) == [*SCHED, *MOVE]
    assert old_events(told) == [
        *SCHED,
        'exists',
        'resize.prep.start',
        'resize.prep.end',
        'resize.start',
        'resize.end',
        'finish_resize.start',
        'finish_resize.end',
    ]
    publishers = dict(versioned(told))
    assert publishers['instance.resize_prep.end'] == publishers['instance.resize_finish.end'] == f'nova-compute:{other}'
    assert publishers['instance.resize.end'] == f'nova-compute:{home}'
    for phase in ('start', 'end'):
        prep = data(told, f'instance.resize_prep.{phase}')
        assert (prep['new_flavor']['nova_object.data']['name'], prep['flavor']['nova_object.data']['name']) == (
            'tmp2',
            'tmp1',
        ), phase
    # What its row says until the source has carried the disks: nothing is written for the field's resize_migrating.
    assert data(told, 'instance.resize.start')['task_state'] == 'resize_prep'
    assert old(told, 'compute.instance.resize.start')['state_description'] == 'resize_prep'
    assert data(told, 'instance.resize.end')['task_state'] == 'resize_migrated'
    assert old(told, 'compute.instance.resize.prep.end')['new_instance_type'] == 'tmp2'
    finish = data(told, 'instance.resize_finish.end')
    assert (finish['state'], finish['flavor']['nova_object.data']['name'], finish['host']) == ('resized', 'tmp2', other)

    # Confirm, resize back, revert.
    told.sent.clear()
    cloud.action(server, 'confirmResize')
    assert versioned(told) == [
        (f'instance.resize_confirm.{phase}', f'nova-compute:{home}') for phase in ('start', 'end')
    ]
    assert old_events(told) == ['resize.confirm.start', 'resize.confirm.end']
    assert data(told, 'instance.resize_confirm.end')['state'] == 'active'
    cloud.action(server, 'resize', {'flavorRef': small})
    told.sent.clear()
    cloud.action(server, 'revertResize')
    assert events(told) == ['instance.exists', 'instance.resize_revert.start', 'instance.resize_revert.end']
    assert old_events(told) == ['exists', 'resize.revert.start', 'resize.revert.end']
    reverted = data(told, 'instance.resize_revert.end')
    assert (reverted['state'], reverted['flavor']['nova_object.data']['name']) == ('active', 'tmp2')

    # What the API does itself.
    told.sent.clear()
    cloud.action(server, 'lock', {'locked_reason': 'mine'})
    assert data(told, 'instance.lock')['locked_reason'] == 'mine'
    cloud.action(server, 'unlock')
    cloud.ok('PUT', f'/servers/{server}/tags', {'tags': ['red']})
    assert data(told, 'instance.update')['tags'] == ['red']
    cloud.ok('PUT', f'/servers/{server}/metadata', {'metadata': {}})
    cloud.ok('PUT', f'/servers/{server}', {'server': {'name': 'new'}})
    assert versioned(told) == [
        ('instance.lock', 'nova-api:controller'),
        ('instance.unlock', 'nova-api:controller'),
        ('instance.update', 'nova-api:controller'),
    ]
    assert old_events(told) == ['update']

    # Delete.
    told.sent.clear()
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    here = f'nova-compute:{other}'
    assert versioned(told) == [
        ('instance.delete.start', here),
        ('instance.shutdown.start', here),
        ('instance.shutdown.end', here),
        ('instance.delete.end', here),
    ]
    assert old_events(told) == ['delete.start', 'shutdown.start', 'shutdown.end', 'delete.end']
    gone = data(told, 'instance.delete.end')
    assert (gone['state'], gone['task_state'], gone['host']) == ('deleted', None, None)
    assert gone['deleted_at'] and gone['terminated_at']
    assert json.dumps([message.payload for _, message in told.sent])


def test_changes_of_states_are_notified(telling):
    """The conductor sends an update notification with BUILDING. Every later change of the states that is committed
    sends one with the states before it."""
    cloud, told = telling(notifications__notify_on_state_change='vm_and_task_state')
    flavor = cloud.flavor()
    server = cloud.boot(flavor)
    cloud.action(server, 'os-stop')

    def updates(recorder):
        found = []
        for message in recorder.of(True):
            if message.event == 'instance.update':
                change = message.payload['nova_object.data']['state_update']['nova_object.data']
                found.append(
                    (
                        message.publisher,
                        change['old_state'],
                        change['state'],
                        change['old_task_state'],
                        change['new_task_state'],
                    )
                )
        return found

    compute = 'nova-compute:controller'
    assert updates(told) == [
        ('nova-conductor:controller', None, 'building', None, 'scheduling'),
        (compute, 'building', 'building', 'scheduling', 'spawning'),
        (compute, 'building', 'active', 'spawning', None),
        (compute, 'active', 'active', None, 'powering-off'),
        (compute, 'active', 'stopped', 'powering-off', None),
    ]
    building = next(message for message in told.of(False) if message.event == 'compute.instance.update')
    assert (building.publisher, building.payload['state'], building.payload['old_state']) == (
        'conductor.controller',
        'building',
        None,
    )
    told.sent.clear()
    cloud.ok('PUT', f'/servers/{server}', {'server': {'name': 'new'}})
    assert (data(told, 'instance.update')['old_display_name'], data(told, 'instance.update')['display_name']) == (
        's',
        'new',
    )
    cloud.ok('PUT', f'/servers/{server}/metadata', {'metadata': {'a': 'b'}})
    assert data(told, 'instance.update')['metadata'] == {'a': 'b'}
    told.sent.clear()
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert [change[2:] for change in updates(told)] == [('stopped', None, 'deleting'), ('deleted', 'deleting', None)]


@pytest.mark.parametrize(
    ('action', 'message', 'told_as'),
    [('confirmResize', 'confirm_resize', 'resize_confirm'), ('revertResize', 'revert_resize', 'resize_revert')],
)
def test_a_state_that_never_was_is_not_told(telling, action, message, told_as):
    """The state is reset while a move ends: the server keeps what was said, and that is what its end tells."""
    cloud, told = telling()
    server = cloud.boot(cloud.flavor('tmp1', gpus=1))
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor('tmp2', gpus=2)})
    reset = []

    def on_message(kind, topic, host, method, args, deliver):
        if topic == 'compute' and method == message and not reset:
            reset.append(cloud.request('POST', f'/servers/{server}/action', {'os-resetState': {'state': 'error'}}))
        return deliver()

    cloud.on_message = on_message
    cloud.action(server, action)
    assert reset and cloud.status(server) == 'ERROR'
    assert data(told, f'instance.{told_as}.end')['state'] == 'error'


def test_failures(telling):
    """A server that no host takes, a move that no host takes, a build and a stop that fail on their hosts."""
    cloud, told = telling(notifications__notify_on_state_change='vm_state')
    many, one = cloud.flavor('many', gpus=9), cloud.flavor('one', gpus=1)
    server = cloud.boot(many)
    assert cloud.status(server) == 'ERROR'
    assert events(told) == [SCHED[0], 'instance.update', 'compute_task.build_instances.error']
    told_of = data(told, 'compute_task.build_instances.error')
    assert (told_of['instance_uuid'], told_of['state']) == (server, 'error')
    assert told_of['reason']['nova_object.data']['exception'] == 'NoValidHost'
    assert old(told, 'compute_task.build_instances')['reason'].startswith('No valid host was found. ')
    assert {message.priority for _, message in told.sent if message.event.startswith('compute_task')} == {'ERROR'}

    # A move without a host.
    server = cloud.boot(one)
    told.sent.clear()
    cloud.action(server, 'resize', {'flavorRef': many})
    assert events(told) == [SCHED[0], 'compute_task.migrate_server.error']
    assert data(told, 'compute_task.migrate_server.error')['state'] == 'active'
    told.sent.clear()

    # A build that no host can do.
    def fail(*args, **kwargs):
        raise KilonovaError('no room')

    for manager in cloud.computes.values():
        manager.host.driver.guests.spawn = fail
    failed = cloud.boot(one)
    assert cloud.status(failed) == 'ERROR'
    per_host = [
        'instance.create.start',
        'instance.shutdown.start',
        'instance.shutdown.end',
        'instance.create.error',
        'compute.exception',
    ]
    assert [event for event in events(told) if event != 'instance.update'] == [
        *SCHED,
        *per_host,
        *per_host,
        'compute_task.build_instances.error',
    ]
    fault = data(told, 'instance.create.error')['fault']['nova_object.data']
    assert (fault['exception'], fault['exception_message']) == ('KilonovaError', 'no room')
    assert old(told, 'build_and_run_instance')['exception'] == 'no room'
    told.sent.clear()

    # A host that doesn't do what it is told.
    for manager in cloud.computes.values():
        manager.host.driver.power.power_off = manager.host.driver.power.reboot = fail
    cloud.action(server, 'os-stop')
    assert events(told) == ['instance.power_off.start']
    told.sent.clear()
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert events(told) == ['instance.reboot.start', 'instance.reboot.error', 'instance.reboot.end']


def test_soft_delete_restore_keys_and_services(telling):
    cloud, told = telling(reclaim_instance_interval=3600)
    server = cloud.boot(cloud.flavor())
    told.sent.clear()
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert events(told) == ['instance.soft_delete.start', 'instance.soft_delete.end']
    assert data(told, 'instance.soft_delete.end')['state'] == 'soft-delete'
    cloud.action(server, 'restore')
    assert events(told)[2:] == ['instance.restore.start', 'instance.restore.end']
    assert (data(told, 'instance.restore.end')['state'], data(told, 'instance.restore.end')['deleted_at']) == (
        'active',
        None,
    )
    told.sent.clear()
    cloud.ok(
        'POST',
        '/os-keypairs',
        {
            'keypair': {
                'name': 'k',
                'type': 'ssh',
                'public_key': ('ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHfRKMkGtWHoTUMgSVrrRPqBzs5X3GdN5gm0tYeNXJgk k'),
            }
        },
    )
    cloud.ok('DELETE', '/os-keypairs/k')
    assert events(told) == ['keypair.import.start', 'keypair.import.end', 'keypair.delete.start', 'keypair.delete.end']
    assert old(told, 'keypair.delete.end')['key_name'] == 'k'
    told.sent.clear()
    service = next(one for one in cloud.ok('GET', '/os-services')['services'] if one['host'] == 'gpu2')
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': 'disabled', 'disabled_reason': 'broken'})
    assert versioned(told) == [('service.update', 'nova-compute:gpu2')]
    assert data(told, 'service.update')['disabled_reason'] == 'broken'
    assert old_events(told) == []


def test_groups_and_aggregates(telling):
    """Published in the field's old form by the thing itself: aggregate.1, servergroup.<uuid>."""
    cloud, told = telling()
    flavor = cloud.flavor()
    told.sent.clear()
    group = cloud.ok('POST', '/os-server-groups', {'server_group': {'name': 'g', 'policy': 'affinity'}})['server_group']
    server = cloud.ok(
        'POST',
        '/servers',
        {
            'server': {'name': 's', 'flavorRef': flavor, 'imageRef': IMAGE_ID, 'networks': 'none'},
            'os:scheduler_hints': {'group': group['id']},
        },
    )['server']['id']
    cloud.settle()
    cloud.ok('DELETE', f'/os-server-groups/{group["id"]}')
    assert [event for event in events(told) if event.startswith('server_group')] == [
        'server_group.create',
        'server_group.add_member',
        'server_group.delete',
    ]
    assert data(told, 'server_group.add_member')['members'] == [server]
    assert {message.publisher for message in told.of(False) if message.event.startswith('servergroup')} == {
        f'servergroup.{group["id"]}'
    }
    told.sent.clear()
    number = cloud.ok('POST', '/os-aggregates', {'aggregate': {'name': 'a'}})['aggregate']['id']
    for body in (
        {'add_host': {'host': 'gpu1'}},
        {'set_metadata': {'metadata': {'ssd': 'true'}}},
        {'remove_host': {'host': 'gpu1'}},
    ):
        cloud.ok('POST', f'/os-aggregates/{number}/action', body)
    cloud.ok('PUT', f'/os-aggregates/{number}', {'aggregate': {'name': 'b'}})
    cloud.ok('DELETE', f'/os-aggregates/{number}')
    names = ('create', 'add_host', 'update_metadata', 'remove_host', 'update_prop', 'delete')
    assert events(told) == [f'aggregate.{name}.{phase}' for name in names for phase in ('start', 'end')]
    assert data(told, 'aggregate.add_host.end')['hosts'] == ['gpu1']
    assert {message.publisher for message in told.of(False)} == {'aggregate.a', f'aggregate.{number}'}


def test_the_audit_of_usage(telling):
    """Each server of the last period, deleted ones too, is reported once by an exists notification, and task_log
    has the counts."""
    cloud, told = telling(instance_usage_audit=True, instance_usage_audit_period='hour')
    flavor = cloud.flavor()
    servers = sorted(cloud.boot(flavor) for _ in range(2))
    cloud.request('DELETE', f'/servers/{servers[0]}')
    cloud.settle()
    with cloud.cell.write() as conn:
        conn.execute(usages.instances.update().values(launched_at=instances.utcnow() - dt.timedelta(hours=3)))
    told.sent.clear()
    for manager in cloud.computes.values():
        manager.audit_usage()
        manager.audit_usage()
    found = {
        message.payload['nova_object.data']['uuid']: message.payload['nova_object.data'] for message in told.of(True)
    }
    assert events(told) == ['instance.exists'] * 2 and sorted(found) == servers
    assert {one['state'] for one in found.values()} == {'deleted', 'active'}
    period = found[servers[1]]['audit_period']['nova_object.data']
    assert period['audit_period_beginning'].endswith(':00:00Z')
    log = cloud.ok('GET', '/os-instance_usage_audit_log')['instance_usage_audit_logs']
    assert (log['num_hosts_done'], log['total_instances'], log['total_errors']) == (2, 2, 0)


def test_nothing_is_built_when_nobody_asked(cloud, monkeypatch):
    """Without a driver no payload is made, and no statement more is run (tests/functional/test_costs.py)."""

    def refuse(*args, **kwargs):
        raise AssertionError('somebody made a payload')

    monkeypatch.setattr(Payload, 'made', refuse)
    monkeypatch.setattr('kilonova.objects.notifications.legacy.usage', refuse)
    server = cloud.boot(cloud.flavor())
    cloud.action(server, 'os-stop')
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    assert cloud.status(server) == 'GONE'


def test_an_abort_and_a_forced_end_are_told_by_the_source(telling, monkeypatch):
    cloud, recorder = telling()
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    live = cloud.computes[source].host.driver.live_migrations

    def migrate(instance, offer, told):
        (row,) = cloud.ok('GET', f'/servers/{server}/migrations')['migrations']
        path = f'/servers/{server}/migrations/{row["id"]}'
        assert cloud.request('POST', f'{path}/action', {'force_complete': None}).status_int == 202
        assert cloud.request('DELETE', path).status_int == 202
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told(
                dict.fromkeys(
                    (
                        'memory_total',
                        'memory_processed',
                        'memory_remaining',
                        'disk_total',
                        'disk_processed',
                        'disk_remaining',
                    ),
                    0,
                )
            )
            time.sleep(0.02)

    monkeypatch.setattr(live, 'migrate', migrate)
    monkeypatch.setattr(live, 'force_complete', lambda instance: None)
    recorder.sent.clear()
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    names = [f'live_migration_{what}.{phase}' for what in ('force_complete', 'abort') for phase in ('start', 'end')]
    told = [
        (event.removeprefix('instance.'), publisher.partition(':')[2])
        for event, publisher in versioned(recorder)
        if 'abort' in event or 'force' in event
    ]
    assert told == [(name, source) for name in names]
    assert [event for event in old_events(recorder) if 'abort' in event or 'force' in event] == [
        f'live.migration.{what}.{phase}' for what in ('force.complete', 'abort') for phase in ('start', 'end')
    ]
    assert cloud.status(server) == 'ACTIVE' and cloud.host_of(server) == source


def test_a_device_that_is_not_given_out_again_is_told_of_its_holder(telling):
    cloud, recorder = telling()
    server = cloud.boot(cloud.flavor(gpus=1))
    home, (address,) = cloud.host_of(server), cloud.hostdevs(server)
    for _ in range(2):
        cloud.compute_client.set_device_disabled(get_admin_context(), server=home, address=address, reason='ECC errors')
    assert versioned(recorder)[-1] == ('instance.device_barred', f'nova-compute:{home}')
    assert events(recorder).count('instance.device_barred') == old_events(recorder).count('device_barred') == 1
    told = data(recorder, 'instance.device_barred')
    assert told['uuid'] == server
    assert told['fault']['nova_object.data']['exception_message'] == f'Device {address} is disabled: ECC errors'


LIVE = [
    'live_migration_pre.start',
    'live_migration_pre.end',
    'live_migration_post.start',
    'live_migration_post_dest.start',
    'live_migration_post_dest.end',
    'live_migration_post.end',
]
OLD_LIVE = [
    'live_migration.pre.start',
    'live_migration.pre.end',
    'live_migration._post.start',
    'live_migration.post.dest.start',
    'live_migration.post.dest.end',
    'live_migration._post.end',
]


def test_a_live_migration_is_told_by_both_hosts(telling):
    cloud, recorder = telling()
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    dest = {'gpu1': 'gpu2', 'gpu2': 'gpu1'}[source]
    recorder.sent.clear()
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    told = [
        (event.removeprefix('instance.'), publisher.partition(':')[2])
        for event, publisher in versioned(recorder)
        if event.startswith('instance.live')
    ]
    assert told == list(zip(LIVE, (dest, dest, source, dest, dest, source), strict=True))
    assert [event for event in old_events(recorder) if event.startswith('live')] == OLD_LIVE
    assert data(recorder, 'instance.live_migration_post_dest.end')['host'] == dest


def test_a_live_migration_that_is_rolled_back_is_told(telling, monkeypatch):
    cloud, recorder = telling()
    server = cloud.boot(cloud.flavor())
    source = cloud.host_of(server)
    dest = {'gpu1': 'gpu2', 'gpu2': 'gpu1'}[source]

    def fail(*args):
        raise KilonovaError('boom')

    monkeypatch.setattr(cloud.computes[source].host.driver.live_migrations, 'migrate', fail)
    recorder.sent.clear()
    cloud.action(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
    told = dict.fromkeys(
        (event.removeprefix('instance.'), publisher.partition(':')[2])
        for event, publisher in versioned(recorder)
        if 'rollback' in event
    )
    assert list(told) == [
        ('live_migration_rollback.start', source),
        ('live_migration_rollback_dest.start', dest),
        ('live_migration_rollback_dest.end', dest),
        ('live_migration_rollback.end', source),
    ]
