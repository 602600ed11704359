"""Boot and delete of GPU servers through the front door."""

from __future__ import annotations

import subprocess
import threading

import pytest
import sqlalchemy as sa

from kilonova.db.models import api
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import Unanswered
from kilonova.objects.image_meta import InvalidImageProperty
from kilonova.virt.libvirt.guests import LibvirtGuests
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware


def test_boot_with_one_gpu(cloud):
    """A boot with one GPU gives the guest exactly one hostdev. The device matches the alias, is allocated to the
    server, and belongs to no other server."""
    server = cloud.boot(cloud.flavor(gpus=1))
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('ACTIVE', 1)
    (owned,) = cloud.owned(server)
    host, address = owned.split()
    assert cloud.hostdevs(server) == [address] and host == shown['OS-EXT-SRV-ATTR:host']
    assert cloud.devices()[owned] == ('allocated', server)
    assert "managed='yes'" in cloud.xml(server) or 'managed="yes"' in cloud.xml(server)
    assert f'{host}_{address.upper()}' in cloud.placement.allocations()[server]
    cloud.assert_clean()


def test_boot_with_two_gpus(cloud):
    """A boot with two GPUs has two different hostdevs and two allocated device rows."""
    server = cloud.boot(cloud.flavor(gpus=2))
    assert len(set(cloud.hostdevs(server))) == 2
    assert [name.split()[1] for name in cloud.owned(server)] == cloud.hostdevs(server)
    cloud.assert_clean()


def test_delete_gives_everything_back_at_once(cloud):
    server = cloud.boot(cloud.flavor(gpus=2))
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()


def test_a_server_without_gpus_has_no_hostdev_and_no_requests(cloud):
    server = cloud.boot(cloud.flavor())
    assert cloud.hostdevs(server) == [] and cloud.owned(server) == []
    assert set(cloud.placement.allocations()[server]) == {cloud.host_of(server)}
    cloud.assert_clean()


def test_what_fits_nowhere_is_buried_in_cell0_with_a_reason(cloud):
    """A server that no host can take is ERROR in cell0 with "No valid host was found." and can be deleted. Nothing
    is allocated."""
    server = cloud.boot(cloud.flavor(gpus=5))
    shown = cloud.show(server)
    assert shown['status'] == 'ERROR'
    assert shown['fault']['message'].startswith('No valid host was found.')
    assert cloud.placement.allocations() == {}
    with cloud.cell0.read() as conn:
        from kilonova.db.queries import instances

        assert instances.get(conn, server)['vm_state'] == 'error'
    cloud.assert_clean()
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()


def test_more_creates_than_devices(cloud):
    """Exactly as many ACTIVE as there are devices, the rest ERROR with the field's text; no device twice."""
    flavor = cloud.flavor(gpus=1)
    servers: list[str] = []

    def create():
        servers.append(cloud.create(flavor)['server']['id'])

    threads = [threading.Thread(target=create) for _ in range(14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cloud.settle()
    shown = [cloud.show(server) for server in servers]
    assert sorted(server['status'] for server in shown) == ['ACTIVE'] * 8 + ['ERROR'] * 6
    for server in shown:
        if server['status'] == 'ERROR':
            assert server['fault']['message'].startswith('No valid host was found.'), server['fault']
    assert len({owner for _, owner in cloud.devices().values()}) == 8
    cloud.assert_clean()


def test_a_create_of_several_is_one_select(cloud):
    """A create of several servers is one select: one conductor takes their operations together (operations.md rule
    3), and the scheduler sees what the earlier servers took."""
    body = cloud.create(cloud.flavor(gpus=1), min_count=3, max_count=3, return_reservation_id=True)
    assert body['reservation_id'].startswith('r-')
    cloud.settle()
    listed = cloud.ok('GET', '/servers/detail')['servers']
    assert [server['status'] for server in listed] == ['ACTIVE'] * 3
    assert len([message for message in cloud.messages if message[3] == 'select_destinations']) == 1
    assert len({device for server in listed for device in cloud.owned(server['id'])}) == 3
    cloud.assert_clean()


def test_the_list_shows_a_server_from_the_first_moment(cloud):
    """GET shows a new server as BUILD from its build request, before a conductor runs."""
    cloud.on_message = lambda kind, topic, server, method, args, deliver: None if kind == 'cast' else deliver()
    for conductor in cloud.conductors:
        conductor.runner.workers.stopping = True
    server = cloud.create(cloud.flavor())['server']['id']
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:vm_state']) == ('BUILD', 'building')
    assert [listed['id'] for listed in cloud.ok('GET', '/servers')['servers']] == [server]


def test_early_delete_while_scheduling(cloud):
    """A server that is deleted while its host is chosen leaves no server, no allocation and no mapping."""
    asked = threading.Event()

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'select_destinations':
            asked.set()
            reply = deliver()
            deleted.wait(10)
            return reply
        return deliver()

    deleted = threading.Event()
    cloud.on_message = on_message
    server = cloud.create(cloud.flavor(gpus=1))['server']['id']
    assert asked.wait(10)
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    assert cloud.status(server) == 'GONE'
    deleted.set()
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()


def test_early_delete_at_the_very_moment_of_the_hand_over(cloud, monkeypatch):
    """A delete and the hand-over to the cell at the same moment delete the server, whichever transaction commits
    first. A database with snapshot reads once lost the delete."""
    end_owned, deletes, answers = operation_leases.end_owned, [], []

    def slowly(conn, uuid, owner, cancelled, at=None):
        if cancelled and not deletes:
            deletes.append(
                threading.Thread(
                    target=lambda: answers.append(
                        cloud.request('DELETE', f'/servers/{made["server"]["id"]}').status_int
                    )
                )
            )
            deletes[0].start()
            # It gets as far as it can; where it waits for our transaction it goes on afterwards.
            deletes[0].join(0.5)
        return end_owned(conn, uuid, owner, cancelled, at)

    monkeypatch.setattr(operation_leases, 'end_owned', slowly)
    flavor = cloud.flavor(gpus=1)
    # Not before the request's answer told its id.
    cloud.on_message = lambda kind, topic, host, method, args, deliver: None if kind == 'cast' else deliver()
    made = cloud.create(flavor)
    cloud.on_message = None
    for conductor in cloud.conductors:
        conductor.runner.sweep()
    cloud.settle()
    deletes[0].join(10)
    cloud.settle()
    assert answers == [204] and cloud.status(made['server']['id']) == 'GONE'
    cloud.assert_empty()


def test_devices_chosen_for_a_server_that_never_reached_its_cell_are_free_at_once(make_cloud):
    """Its delete comes between the scheduler's choice and the hand-over: who asks next needs the same devices. Nobody
    but the scheduler counts them where Placement doesn't know devices."""
    cloud = make_cloud(filter_scheduler__pci_in_placement=False, pci__report_in_placement=False)
    flavor, gone = cloud.flavor(gpus=4), []

    def on_message(kind, topic, host, method, args, deliver):
        found = deliver()
        if method == 'select_destinations' and len(gone) < len(cloud.gpus):
            gone.extend(args['instance_uuids'])
            assert cloud.request('DELETE', f'/servers/{gone[-1]}').status_int == 204
        return found

    cloud.on_message = on_message
    for _ in cloud.gpus:
        cloud.boot(flavor)
    assert [cloud.status(server) for server in gone] == ['GONE'] * len(cloud.gpus)
    server = cloud.boot(flavor)
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.assert_clean()


def test_a_delete_does_not_wait_for_what_ends_at_the_same_moment(cloud):
    """What runs looks who waits, finds nobody, and its end is committed while the delete is accepted."""
    server = cloud.boot(cloud.flavor(gpus=1))
    row = operations.OperationRow(
        uuid='e' * 8,
        kind='stop',
        instance_uuid=server,
        request_id='req-1',
        owner=cloud.conductors[0].runner.leases.owner_in(cloud.cell),
    )
    with cloud.cell.write() as conn:
        operations.insert(conn, [row])
    delete = threading.Thread(target=lambda: cloud.request('DELETE', f'/servers/{server}'))
    with cloud.cell.write() as conn:
        assert operations.end(conn, row.uuid, server) is None
        delete.start()
        delete.join(0.5)
    delete.join(10)
    cloud.settle()
    assert cloud.status(server) == 'GONE'
    cloud.assert_empty()


def test_a_host_that_refuses_sends_the_server_to_the_next(cloud):
    """When the first host refuses the claim (HostRejected, "Claim pci failed"), the alternate builds the server.
    The scheduler is asked once."""
    refused = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'claim_instance' and not refused:
            refused.append(args['claim'].values['host'])
            from kilonova.errors import ClaimConflict

            raise ClaimConflict(devices='injected')
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    shown = cloud.show(server)
    assert shown['status'] == 'ACTIVE'
    assert shown['OS-EXT-SRV-ATTR:host'] != refused[0]
    assert len([message for message in cloud.messages if message[3] == 'select_destinations']) == 1
    cloud.assert_clean()


def test_when_all_hosts_refuse_the_fault_says_why(cloud):
    """When all hosts refuse the claim, the server is ERROR, its fault says that the retries are used up and why the
    hosts refused, and its allocation is gone."""

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'claim_instance':
            from kilonova.errors import ClaimConflict

            raise ClaimConflict(devices='injected')
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    shown = cloud.show(server)
    assert shown['status'] == 'ERROR'
    assert 'Exceeded maximum number of retries' in shown['fault']['message']
    assert 'Claim pci failed' in shown['fault']['message']
    assert cloud.placement.allocations() == {}
    cloud.assert_clean()


def builds(cloud):
    return [message for message in cloud.messages if message[3] == 'build_and_run_instance']


def test_an_image_that_is_larger_than_the_flavors_disk(cloud, monkeypatch, tmp_path):
    """An image that is larger than the flavor's disk fits on no host: only one host is asked, and the fault names
    both sizes."""
    path = tmp_path / 'large.qcow2'
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', str(path), '2G'], check=True)
    monkeypatch.setattr(cloud.images, 'path', path)
    server = cloud.boot(cloud.flavor(gpus=1, disk=1))
    shown = cloud.show(server)
    assert (shown['status'], shown['fault']['code']) == ('ERROR', 500)
    assert shown['fault']['message'] == (
        f"Build of instance {server} aborted: Flavor's disk is too small for requested image. "
        f'Flavor disk is {1 << 30} bytes, image is {2 << 30} bytes.'
    )
    assert len(builds(cloud)) == 1
    cloud.assert_clean()
    assert cloud.owned(server) == [] and cloud.placement.allocations() == {}


@pytest.mark.parametrize(
    'error',
    [UnsupportedHardware(model='floppy', virt='kvm'), InvalidImageProperty(name='hw_disk_bus', reason='no such bus')],
)
def test_what_no_host_can_build_is_not_tried_on_others(cloud, monkeypatch, error):
    """An error that every host would repeat aborts the build after one host. The fault has the error's text."""

    def spawn(*args, **kwargs):
        raise error

    monkeypatch.setattr(LibvirtGuests, 'spawn', spawn)
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.show(server)['fault']['message'] == f'Build of instance {server} aborted: {error}'
    assert len(builds(cloud)) == 1
    cloud.assert_clean()


def test_guests_that_no_hypervisor_starts(cloud, monkeypatch):
    """A guest that the hypervisor cannot start is tried on each host. The fault contains the hypervisor's message
    within 255 characters."""

    def spawn(self, instance, *args, **kwargs):
        raise GuestFailed(act='start', uuid=instance.uuid, reason='device is in use')

    monkeypatch.setattr(LibvirtGuests, 'spawn', spawn)
    server = cloud.boot(cloud.flavor(gpus=1))
    message = cloud.show(server)['fault']['message']
    assert message.startswith(
        'Hosts said: The hypervisor could not start guest: device is in use (Exceeded maximum number of retries. '
    )
    assert len(builds(cloud)) == len(cloud.gpus)
    cloud.assert_clean()
    assert cloud.placement.allocations() == {}


def test_a_lost_cast_is_found_by_the_sweep(cloud):
    def on_message(kind, topic, server, method, args, deliver):
        return None if kind == 'cast' and topic == 'conductor' else deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE'
    cloud.assert_clean()


def test_a_scheduler_that_does_not_answer_is_asked_again(cloud, monkeypatch):
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    asked = []

    def on_message(kind, topic, server, method, args, deliver):
        if method == 'select_destinations':
            asked.append(1)
            if len(asked) < 3:
                raise Unanswered(who='scheduler', reason='injected')
        return deliver()

    cloud.on_message = on_message
    server = cloud.boot(cloud.flavor(gpus=1))
    assert cloud.status(server) == 'ACTIVE' and len(asked) == 3
    cloud.assert_clean()


def test_the_events_tell_the_story(cloud):
    """After a boot the create action has its events, the mapping names the cell, and the build request is gone."""
    server = cloud.boot(cloud.flavor(gpus=1))
    with cloud.databases.api().read() as conn:
        (mapping,) = conn.execute(sa.select(api.InstanceMapping.__table__)).mappings().all()
        assert conn.execute(sa.select(api.BuildRequest.__table__)).all() == []
    assert mapping['instance_uuid'] == server and mapping['cell_id'] is not None
    (action,) = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    assert action['action'] == 'create' and action['message'] is None
    shown = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{action["request_id"]}')['instanceAction']
    assert [(event['event'], event['result'], event['host']) for event in shown['events']] == [
        ('compute__do_build_and_run_instance', 'Success', cloud.host_of(server))
    ]


def choice_of(cloud, server, **who):
    """The select_destinations events of a server's newest action."""
    (action,) = cloud.ok('GET', f'/servers/{server}/os-instance-actions')['instanceActions']
    shown = cloud.ok('GET', f'/servers/{server}/os-instance-actions/{action["request_id"]}', **who)['instanceAction']
    return [event for event in shown['events'] if event['event'] == 'select_destinations']


def test_the_schedulers_choice_is_an_event_for_administrators(cloud):
    flavor = cloud.flavor(gpus=1)
    server = cloud.boot(flavor)
    refused = cloud.boot(cloud.flavor(gpus=64))
    cloud.scheduler._decisions.flush()
    (event,) = choice_of(cloud, server)
    asked, choice, *why = event['details'].splitlines()
    assert (event['result'], event['host'], event['traceback']) == ('Success', None, None)
    assert event['start_time'] < event['finish_time']
    assert asked.startswith('asked for: flavor ') and 'vcpus ' in asked and ': 1' in asked
    assert choice.startswith(f'2 hosts considered; chosen: {cloud.host_of(server)}')
    assert any(line.startswith('ComputeFilter: ') for line in why) and any(line.startswith('weight ') for line in why)
    (event,) = choice_of(cloud, refused)
    asked, choice, failure, *why = event['details'].splitlines()
    assert (event['result'], choice) == ('Error', '2 hosts considered; chosen: none')
    assert failure.startswith('No valid host was found. 2 hosts considered: 2 have fewer than 64 free ')
    assert sorted(line.partition(':')[0] for line in why[:2]) == sorted(cloud.hosts_of['cell1'])
    assert choice_of(cloud, server, version='2.83') == choice_of(cloud, server, user='anna') == []


def test_system_metadata_keeps_the_boot_roles(cloud):
    """The roles of the user who created the server are stored as boot_roles in its system metadata."""
    server = cloud.boot(cloud.flavor(), user='anna')
    with cloud.cell.read() as conn:
        from kilonova.db.queries import instances

        assert instances.get_system_metadata(conn, server)['boot_roles'] == 'member,reader'


@pytest.mark.parametrize(
    ('what', 'needle'),
    [
        ({'networks': [{'uuid': '3c1a5b3e-0000-4000-8000-000000000001'}]}, 'network'),
        ({'networks': [{'port': '3c1a5b3e-0000-4000-8000-000000000001'}]}, 'network'),
        (
            {
                'block_device_mapping_v2': [
                    {
                        'uuid': '3c1a5b3e-0000-4000-8000-000000000001',
                        'source_type': 'volume',
                        'destination_type': 'volume',
                        'boot_index': 0,
                    }
                ]
            },
            'volume',
        ),
    ],
)
def test_what_needs_a_service_that_is_not_there_is_refused(cloud, what, needle):
    body = {
        'name': 's',
        'flavorRef': cloud.flavor(),
        'imageRef': '70a599e0-31e7-49b7-b260-868f441e862b',
        'networks': 'none',
        **what,
    }
    response = cloud.request('POST', '/servers', {'server': body})
    assert response.status_int == 400
    assert needle in response.json['badRequest']['message'].lower()
    assert cloud.rows() == []


@pytest.mark.parametrize('networks', ['none', 'auto'])
def test_no_network_service_means_no_ports(cloud, networks):
    server = cloud.boot(cloud.flavor(), networks=networks)
    assert cloud.show(server)['addresses'] == {}
