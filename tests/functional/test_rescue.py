"""Rescue and unrescue of servers with and without devices, through the front door."""

from __future__ import annotations

import json
import subprocess
from xml.etree import ElementTree

import pytest

from kilonova.virt.parts.guests import GuestFailed
from tests.fixtures.cloud import IMAGE_ID
from tests.fixtures.notifications import Recorder

REPAIR = '9a599e00-31e7-49b7-b260-868f441e862b'


def disks(cloud, server):
    """[(file, name in the guest, kind, boots)] of its domain."""
    return [
        (
            disk.find('source').get('file').rpartition('/')[2],
            disk.find('target').get('dev'),
            disk.get('device'),
            disk.find('boot') is not None,
        )
        for disk in ElementTree.fromstring(cloud.xml(server)).iterfind('devices/disk')
    ]


def rescue_image(cloud, **properties):
    """Another image, perhaps with properties."""
    record = {**cloud.images.get(IMAGE_ID), 'id': REPAIR, 'name': 'repair', **properties}
    cloud.images.made[REPAIR], cloud.images.data[REPAIR] = record, cloud.images.path.read_bytes()
    return {'rescue_image_ref': REPAIR}


@pytest.mark.parametrize('gpus', [0, 2])
@pytest.mark.parametrize('start', ['ACTIVE', 'SHUTOFF', 'ERROR'])
def test_there_and_back_with_the_same_devices(cloud, start, gpus):
    server = cloud.boot(cloud.flavor(gpus=gpus))
    devices, owned, held = cloud.hostdevs(server), cloud.owned(server), cloud.placement.allocations()[server]
    directory = cloud.directory / cloud.host_of(server) / 'instances' / server
    before, own = disks(cloud, server), sorted(path.name for path in directory.iterdir())
    if start == 'SHUTOFF':
        cloud.action(server, 'os-stop')
    elif start == 'ERROR':
        cloud.action(server, 'os-resetState', {'state': 'error'})
    answer = cloud.action(server, 'rescue', rescue_image(cloud), expect=200).json
    assert len(answer['adminPass']) == 12
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state'], shown['OS-EXT-STS:task_state']) == ('RESCUE', 1, None)
    # The other system is the first disk, the server's own ones follow.
    assert disks(cloud, server) == [('disk.rescue', 'vda', 'disk', False), ('disk', 'vdb', 'disk', False)]
    assert (cloud.hostdevs(server), cloud.owned(server)) == (devices, owned)
    assert cloud.placement.allocations()[server] == held
    cloud.assert_clean()
    cloud.action(server, 'unrescue', expect=202)
    assert (cloud.status(server), disks(cloud, server), cloud.hostdevs(server)) == ('ACTIVE', before, devices)
    assert sorted(path.name for path in directory.iterdir()) == own
    cloud.assert_clean()


@pytest.mark.parametrize(
    ('properties', 'last'),
    [
        ({'hw_rescue_device': 'cdrom'}, ('disk.rescue', 'hda', 'cdrom', True)),
        ({'hw_rescue_bus': 'usb'}, ('disk.rescue', 'sda', 'disk', True)),
        ({'hw_rescue_device': 'disk', 'hw_rescue_bus': 'virtio'}, ('disk.rescue', 'vdb', 'disk', True)),
        ({'hw_rescue_device': 'floppy'}, ('disk.rescue', 'fda', 'floppy', True)),
    ],
)
def test_a_stable_rescue_device_comes_last_and_boots(cloud, properties, last):
    """hw_rescue_device and hw_rescue_bus of the rescue image: the server's disks keep their names."""
    server = cloud.boot(cloud.flavor())
    (own,) = disks(cloud, server)
    cloud.action(server, 'rescue', rescue_image(cloud, **properties))
    assert disks(cloud, server) == [own, last]
    assert ElementTree.fromstring(cloud.xml(server)).find('os/boot') is None
    cloud.action(server, 'unrescue')
    assert disks(cloud, server) == [own]
    assert ElementTree.fromstring(cloud.xml(server)).find('os/boot').get('dev') == 'hd'


def test_the_hosts_image_and_kernel_where_the_request_names_none(make_cloud):
    cloud = make_cloud(libvirt__rescue_image_id=REPAIR, libvirt__rescue_kernel_id=IMAGE_ID)
    rescue_image(cloud, hw_rescue_bus='sata')
    server = cloud.boot(cloud.flavor())
    cloud.action(server, 'rescue')
    assert disks(cloud, server)[-1] == ('disk.rescue', 'sda', 'disk', True)
    assert cloud.xml(server).count('kernel.rescue') == 1
    cloud.action(server, 'unrescue')
    assert 'kernel' not in cloud.xml(server)
    cloud.assert_clean()


def test_the_password_is_in_the_rescue_systems_config_drive_alone(cloud, tmp_path):
    server = cloud.boot(cloud.flavor(), config_drive=True, adminPass='the-first-one')
    directory = cloud.directory / cloud.host_of(server) / 'instances' / server

    def passwords():
        found = {}
        for drive in directory.glob('disk.config*'):
            text = subprocess.run(
                ['isoinfo', '-R', '-x', '/openstack/latest/meta_data.json', '-i', str(drive)],
                check=True,
                capture_output=True,
            ).stdout
            found[drive.name] = json.loads(text)['admin_pass']
        return found

    answer = cloud.action(server, 'rescue', {'adminPass': 'only-for-the-repair'})
    assert answer.json == {'adminPass': 'only-for-the-repair'}
    assert passwords() == {'disk.config': 'the-first-one', 'disk.config.rescue': 'only-for-the-repair'}
    names = [name for name, *_ in disks(cloud, server)]
    assert names == ['disk.rescue', 'disk', 'disk.config.rescue']
    with cloud.cell.read() as conn:
        assert 'only-for-the-repair' not in str([list(row) for row in conn.exec_driver_sql('SELECT * FROM operations')])
    cloud.action(server, 'unrescue')
    assert passwords() == {'disk.config': 'the-first-one'}


def test_what_else_can_be_done_with_one(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    cloud.action(server, 'rescue')
    for action, body in (
        ('rescue', None),
        ('os-stop', None),
        ('os-start', None),
        ('reboot', {'type': 'SOFT'}),
        ('reboot', {'type': 'HARD'}),
        ('resize', {'flavorRef': cloud.flavor(gpus=2)}),
        ('pause', None),
        ('suspend', None),
        ('migrate', None),
        ('createImage', {'name': 'x'}),
    ):
        response = cloud.action(server, action, body, expect=409)
        assert 'while it is in vm_state rescued' in response.json['conflictingRequest']['message'], action
    cloud.action(server, 'trigger_crash_dump')
    assert cloud.status(server) == 'RESCUE'
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle()
    cloud.assert_empty()


def test_a_reset_server_leaves_the_rescue_by_a_hard_reboot(cloud):
    server = cloud.boot(cloud.flavor(gpus=1))
    before, devices = disks(cloud, server), cloud.hostdevs(server)
    cloud.action(server, 'rescue')
    cloud.action(server, 'os-resetState', {'state': 'active'})
    cloud.action(server, 'reboot', {'type': 'HARD'})
    assert (cloud.status(server), disks(cloud, server), cloud.hostdevs(server)) == ('ACTIVE', before, devices)
    cloud.assert_clean()


@pytest.mark.parametrize('resume', [True, False])
def test_a_rebooted_host_goes_on_with_the_rescue(cloud, resume):
    server = cloud.boot(cloud.flavor(gpus=1))
    host, devices, before = cloud.host_of(server), cloud.hostdevs(server), disks(cloud, server)
    cloud.action(server, 'rescue')
    rescued = disks(cloud, server)
    cloud.crash_compute(host)
    cloud.start_compute(host, resume_guests_state_on_host_boot=resume)
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('RESCUE', 1 if resume else 4)
    if resume:
        assert (disks(cloud, server), cloud.hostdevs(server)) == (rescued, devices)
    cloud.assert_clean()
    cloud.action(server, 'unrescue')
    assert (cloud.status(server), disks(cloud, server), cloud.hostdevs(server)) == ('ACTIVE', before, devices)
    cloud.assert_clean()


@pytest.mark.parametrize('stopped', [False, True])
def test_a_rescue_that_fails_leaves_the_server_as_it_was(cloud, monkeypatch, stopped):
    server = cloud.boot(cloud.flavor(gpus=1))
    directory = cloud.directory / cloud.host_of(server) / 'instances' / server
    before, own = disks(cloud, server), sorted(path.name for path in directory.iterdir())
    if stopped:
        cloud.action(server, 'os-stop')
    from kilonova.virt.libvirt.guest import Guest

    start, failures = Guest.start, [1]

    def fail(guest, *, paused=False):
        if failures:
            failures.pop()
            raise GuestFailed(act='start', uuid=guest.uuid, reason='QEMU is stuck')
        start(guest, paused=paused)

    monkeypatch.setattr(Guest, 'start', fail)
    cloud.action(server, 'rescue')
    ((name, message, events), *_) = cloud.story(server)
    assert name == 'rescue' and events[0][0] == 'compute_rescue_instance'
    assert f'Instance {server} cannot be rescued: Driver Error: The hypervisor could not start' in message
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == (('SHUTOFF', 4) if stopped else ('ACTIVE', 1))
    assert disks(cloud, server) == before and sorted(path.name for path in directory.iterdir()) == own
    cloud.assert_clean()


def test_an_image_that_can_not_be_had(cloud):
    server = cloud.boot(cloud.flavor(disk=1))
    ref = rescue_image(cloud)
    for values, message in (
        ({'min_disk': 2}, 'Flavor disk is smaller than the minimum size specified in image metadata.'),
        ({'min_disk': 0, 'min_ram': 1 << 20}, "Flavor's memory is too small for requested image."),
        ({'min_ram': 0, 'status': 'queued'}, f'Image {REPAIR} is not active.'),
        ({'status': 'active', 'hw_rescue_device': 'tape'}, 'hw_rescue_device'),
    ):
        cloud.images.made[REPAIR].update(values)
        response = cloud.action(server, 'rescue', ref, expect=400)
        assert message in response.json['badRequest']['message']
    response = cloud.action(server, 'rescue', {'rescue_image_ref': '11111111-2222-3333-4444-555555555555'}, expect=400)
    assert response.json['badRequest']['message'] == 'Can not find requested image'
    assert cloud.status(server) == 'ACTIVE' and cloud.rows() == []


def test_a_rescued_server_on_a_dead_host_stays_so(cloud):
    """Nothing but a delete is accepted there, and moves are refused by its state."""
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    cloud.action(server, 'rescue')
    cloud.crash_compute(host)
    assert cloud.action(server, 'migrate', expect=409).status_int == 409
    assert cloud.status(server) == 'RESCUE'
    cloud.start_compute(host)
    cloud.assert_clean()


def test_events_and_notifications(make_cloud):
    told = Recorder()
    cloud = make_cloud(
        sender=told, oslo_messaging_notifications__driver=['messagingv2'], notifications__notification_format='both'
    )
    server = cloud.boot(cloud.flavor(gpus=1))
    told.sent.clear()
    cloud.action(server, 'rescue', rescue_image(cloud))
    assert [message.event for message in told.of(True)] == [
        'instance.rescue.start',
        'instance.exists',
        'instance.rescue.end',
    ]
    start, _, end = (message.payload['nova_object.data'] for message in told.of(True))
    assert start['rescue_image_ref'] == end['rescue_image_ref'] == REPAIR
    assert (end['state'], end['power_state']) == ('rescued', 'running')
    assert [message.payload.get('rescue_image_name') for message in told.of(False)] == ['repair', None, 'repair']
    told.sent.clear()
    cloud.action(server, 'unrescue')
    assert [message.event for message in told.of(True)] == ['instance.unrescue.start', 'instance.unrescue.end']
    story = cloud.story(server)
    assert [(name, events[0][:2]) for name, _, events in story[:2]] == [
        ('unrescue', ('compute_unrescue_instance', 'Success')),
        ('rescue', ('compute_rescue_instance', 'Success')),
    ]
