"""Tests of stop, start and reboot, of hosts that restart or die, and of disks that move with their server."""

from __future__ import annotations

import json
import subprocess

import pytest

from kilonova.errors import Unanswered
from tests.fixtures.hosts import sriov_gpu


def test_stop_and_start_keep_the_devices(cloud):
    server = cloud.boot(cloud.flavor(gpus=2))
    before = cloud.hostdevs(server)
    cloud.action(server, 'os-stop')
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('SHUTOFF', 4)
    cloud.assert_clean()
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == before
    cloud.assert_clean()


@pytest.mark.parametrize('kind', ['SOFT', 'HARD'])
def test_reboot_keeps_the_devices(cloud, kind):
    server = cloud.boot(cloud.flavor(gpus=1))
    before = cloud.hostdevs(server)
    cloud.action(server, 'reboot', {'type': kind})
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == before
    cloud.assert_clean()


def test_wrong_states_are_refused_with_the_fields_text(cloud):
    server = cloud.boot(cloud.flavor())
    response = cloud.action(server, 'os-start', expect=409)
    assert (
        response.json['conflictingRequest']['message']
        == f"Cannot 'start' instance {server} while it is in vm_state active"
    )
    assert cloud.action(server, 'confirmResize', expect=409).status_int == 409


def test_a_rebooted_host_brings_its_servers_back_with_their_devices(cloud):
    servers = [cloud.boot(cloud.flavor(gpus=1)) for _ in range(3)]
    before = {server: (cloud.host_of(server), cloud.hostdevs(server)) for server in servers}
    for host in cloud.gpus:
        cloud.crash_compute(host)
        cloud.start_compute(host)
    assert {server: (cloud.host_of(server), cloud.hostdevs(server)) for server in servers} == before
    assert {cloud.status(server) for server in servers} == {'ACTIVE'}
    cloud.assert_clean()


def test_without_resuming_they_are_off_and_the_next_start_brings_the_same_devices(cloud):
    """Never ACTIVE without the guest."""
    server = cloud.boot(cloud.flavor(gpus=1))
    host, before = cloud.host_of(server), cloud.hostdevs(server)
    cloud.crash_compute(host)
    cloud.start_compute(host, resume_guests_state_on_host_boot=False)
    shown = cloud.show(server)
    assert (shown['status'], shown['OS-EXT-STS:power_state']) == ('SHUTOFF', 4)
    cloud.assert_clean()
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == before
    cloud.assert_clean()


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
def test_hosts_reboot_while_verify_resize(cloud, finish):
    """Rule 22 of operations."""
    server = cloud.boot(cloud.flavor(gpus=1))
    old = cloud.hostdevs(server)
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=2)})
    new = cloud.hostdevs(server)
    for host in cloud.gpus:
        cloud.crash_compute(host)
        cloud.start_compute(host)
    assert cloud.status(server) == 'VERIFY_RESIZE' and cloud.hostdevs(server) == new
    cloud.assert_clean()
    cloud.action(server, finish)
    assert cloud.status(server) == 'ACTIVE'
    assert cloud.hostdevs(server) == (new if finish == 'confirmResize' else old)
    cloud.assert_clean()


def force_down(cloud, host, down):
    (service,) = [
        one
        for one in cloud.ok('GET', '/os-services')['services']
        if one['host'] == host and one['binary'] == 'nova-compute'
    ]
    cloud.ok('PUT', f'/os-services/{service["id"]}', {'forced_down': down})


def test_delete_on_a_dead_host_leaves_a_pending_release(cloud, monkeypatch):
    """Rule 23: the server is gone at once, its devices stay claimed until the host gave them back."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    force_down(cloud, host, True)
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle(kinds_left=('release',))
    assert cloud.status(server) == 'GONE'
    assert server not in cloud.placement.allocations()
    assert len(cloud.owned(server)) == 1
    assert [row['kind'] for row in cloud.rows()] == ['release']
    force_down(cloud, host, False)
    cloud.start_compute(host)
    cloud.settle()
    cloud.assert_empty()


def test_deleting_a_dead_hosts_service_ends_its_pending_releases(cloud, monkeypatch):
    """Rule 23: nobody is left to give anything back."""
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    force_down(cloud, host, True)
    assert cloud.request('DELETE', f'/servers/{server}').status_int == 204
    cloud.settle(kinds_left=('release',))
    assert [row['kind'] for row in cloud.rows()] == ['release']
    (service,) = [one for one in cloud.ok('GET', '/os-services')['services'] if one['host'] == host]
    cloud.ok('DELETE', f'/os-services/{service["id"]}')
    assert cloud.rows() == []
    cloud.settle()
    assert {name.split()[0] for name in cloud.devices()} == set(cloud.gpus) - {host}
    cloud.assert_clean()


def test_a_compute_reports_up_before_its_pending_releases_are_done(cloud, monkeypatch):
    monkeypatch.setattr('kilonova.conductor.work.PAUSE', 0.05)
    server = cloud.boot(cloud.flavor(gpus=1))
    host = cloud.host_of(server)
    cloud.crash_compute(host)
    force_down(cloud, host, True)
    cloud.request('DELETE', f'/servers/{server}')
    cloud.settle(kinds_left=('release',))
    # Forced down it gets no release yet, however long it is up.
    manager = cloud.start_compute(host)
    assert manager.heartbeat is not None and not manager.heartbeat.lost
    assert [row['kind'] for row in cloud.rows()] == ['release']
    force_down(cloud, host, False)
    cloud.settle()
    cloud.assert_empty()


def marker(cloud, server, write=None, host=None):
    disk = cloud.directory / (host or cloud.host_of(server)) / 'instances' / server / 'disk'
    command = f'write -P {write} 1M 64k' if write is not None else 'read -v 1M 16'
    return subprocess.run(
        ['qemu-io', '-f', 'qcow2', '-c', command, str(disk)], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize('finish', ['confirmResize', 'revertResize'])
def test_what_a_guest_wrote_is_there_after_a_move(cloud, finish):
    """A move carries the disk and grows it to the new flavor. What the guest wrote is still there, and the old disk
    is kept until the move is confirmed."""
    server = cloud.boot(cloud.flavor(gpus=1, disk=1))
    marker(cloud, server, write='0x5a')
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, disk=2)})
    assert '5a 5a 5a 5a' in marker(cloud, server)
    info = json.loads(
        subprocess.run(
            [
                'qemu-img',
                'info',
                '-U',
                '--output=json',
                str(cloud.directory / cloud.host_of(server) / 'instances' / server / 'disk'),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert info['virtual-size'] == 2 << 30 and info['actual-size'] < 16 << 20
    cloud.action(server, finish)
    assert '5a 5a 5a 5a' in marker(cloud, server)
    cloud.assert_clean()


def test_the_image_is_fetched_once_a_host(cloud):
    before = cloud.images.downloads
    cloud.create(cloud.flavor(), min_count=6, max_count=6)
    cloud.settle()
    assert 1 <= cloud.images.downloads - before <= 2


def test_pf_and_vf_of_one_card_exclude_each_other(make_cloud):
    """While a VF is in use its PF isn't there for others, and the other way round; by pools, not
    Placement."""
    vfs = ['0000:3b:00.4', '0000:3b:00.5']
    pf_alias = json.dumps({'name': 'pf', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-PF'})
    vf_alias = json.dumps({'name': 'vf', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-VF'})
    cloud = make_cloud(
        {'gpu1': []},
        devices={'gpu1': sriov_gpu('0000:3b:00.0', vfs)},
        specs={'gpu1': [json.dumps({'vendor_id': '10de', 'product_id': '2330'})]},
        pci__alias=[pf_alias, vf_alias],
        pci__report_in_placement=False,
        filter_scheduler__pci_in_placement=False,
    )
    one = cloud.boot(cloud.flavor(gpus=1, alias='vf'))
    assert cloud.status(one) == 'ACTIVE' and cloud.hostdevs(one)[0] in vfs
    refused = cloud.boot(cloud.flavor(gpus=1, alias='pf'))
    assert cloud.status(refused) == 'ERROR'
    cloud.assert_clean()
    for server in (one, refused):
        cloud.request('DELETE', f'/servers/{server}')
    cloud.settle()
    whole = cloud.boot(cloud.flavor(gpus=1, alias='pf'))
    assert cloud.hostdevs(whole) == ['0000:3b:00.0']
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1, alias='vf'))) == 'ERROR'


def test_vfs_in_placement_count_on_their_pf(make_cloud):
    vfs = ['0000:3b:00.4', '0000:3b:00.5']
    vf_alias = json.dumps({'name': 'vf', 'vendor_id': '10de', 'product_id': '2330', 'device_type': 'type-VF'})
    specs = [json.dumps({'vendor_id': '10de', 'product_id': '2330', 'address': vf}) for vf in vfs]
    cloud = make_cloud(
        {'gpu1': []}, devices={'gpu1': sriov_gpu('0000:3b:00.0', vfs)}, specs={'gpu1': specs}, pci__alias=[vf_alias]
    )
    server = cloud.boot(cloud.flavor(gpus=2, alias='vf'))
    assert cloud.hostdevs(server) == vfs
    assert cloud.placement.allocations()[server]['gpu1_0000:3B:00.0'] == {'CUSTOM_PCI_10DE_2330': 2}
    assert cloud.status(cloud.boot(cloud.flavor(gpus=1, alias='vf'))) == 'ERROR'
    cloud.assert_clean()


def test_a_device_that_is_pulled_while_free_goes(cloud):
    """The row of a free device that was removed from its host is gone after the next update of the host."""
    path = cloud.directory / 'gpu1.xml'
    cloud.crash_compute('gpu1')
    text = path.read_text()
    start = text.index('  <device><name>pci_0000_0b_00_0<')
    path.write_text(text[:start] + text[text.index('</device>', start) + len('</device>') :])
    cloud.start_compute('gpu1')
    assert 'gpu1 0000:0b:00.0' not in cloud.devices() and len(cloud.devices()) == 7
    cloud.assert_clean()


def provider_of(cloud, address):
    (row,) = [row for row in cloud.placement.client.list_providers() if row['name'].endswith(address.upper())]
    return row['uuid']


def reserved(cloud, address):
    (inventory,) = cloud.placement.client.get_inventory(provider_of(cloud, address))[0].values()
    return inventory['reserved']


def offer_again(cloud, address):
    """What an operator does once the device was cleaned."""
    inventory, generation = cloud.placement.client.get_inventory(provider_of(cloud, address))
    cloud.placement.client.set_inventory(
        provider_of(cloud, address), generation, {name: {**value, 'reserved': 0} for name, value in inventory.items()}
    )


ONE, TWO = '0000:08:00.0', '0000:09:00.0'


@pytest.fixture
def once(make_cloud):
    """One host with two devices; that at ONE is given away once."""
    specs = [
        json.dumps({'vendor_id': '10de', 'product_id': '13f1', 'address': ONE, 'one_time_use': 'true'}),
        json.dumps({'vendor_id': '10de', 'product_id': '13f1', 'address': TWO}),
    ]
    return make_cloud({'gpu1': [ONE, TWO]}, specs={'gpu1': specs})


def test_a_one_time_use_device_is_not_offered_again(once):
    """Reserved = total from its first use on, and nothing of ours sets it back."""
    assert (reserved(once, ONE), reserved(once, TWO)) == (0, 0)
    server = once.boot(once.flavor(gpus=2))
    once.computes['gpu1'].node.update()
    assert (reserved(once, ONE), reserved(once, TWO)) == (1, 0)
    once.request('DELETE', f'/servers/{server}')
    once.settle()
    once.computes['gpu1'].node.update()
    assert (reserved(once, ONE), reserved(once, TWO)) == (1, 0)
    assert once.hostdevs(once.boot(once.flavor(gpus=1))) == [TWO]
    assert once.status(once.boot(once.flavor(gpus=1))) == 'ERROR'
    once.crash_compute('gpu1')
    once.start_compute('gpu1')
    assert (reserved(once, ONE), reserved(once, TWO)) == (1, 0)
    offer_again(once, ONE)
    once.computes['gpu1'].node.update()
    assert reserved(once, ONE) == 0
    assert once.hostdevs(once.boot(once.flavor(gpus=1))) == [ONE]


def test_a_server_that_goes_before_the_next_look_has_used_its_device_up(once):
    """Also when an operator set ``reserved`` back since this compute last read Placement."""
    for _ in range(2):
        server = once.boot(once.flavor(gpus=2))
        assert reserved(once, ONE) == 0
        once.request('DELETE', f'/servers/{server}')
        once.settle()
        assert (reserved(once, ONE), reserved(once, TWO)) == (1, 0)
        offer_again(once, ONE)


def test_a_used_device_is_reserved_at_the_next_start(once):
    server = once.boot(once.flavor(gpus=2))
    once.crash_compute('gpu1')
    once.start_compute('gpu1')
    assert (reserved(once, ONE), reserved(once, TWO)) == (1, 0)
    assert once.status(server) == 'ACTIVE'
    once.assert_clean()


def test_servers_with_used_devices_can_still_move(make_cloud):
    specs = [json.dumps({'vendor_id': '10de', 'product_id': '13f1', 'one_time_use': 'true'})]
    gpus = {'gpu1': [ONE, TWO], 'gpu2': ['0000:85:00.0', '0000:86:00.0']}
    cloud = make_cloud(gpus, specs=dict.fromkeys(gpus, specs))
    server = cloud.boot(cloud.flavor(gpus=1))
    (first,) = cloud.hostdevs(server)
    for host in gpus:
        cloud.computes[host].node.update()
    assert reserved(cloud, first) == 1
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(gpus=1, ram=1024)})
    (second,) = cloud.hostdevs(server)
    assert cloud.status(server) == 'VERIFY_RESIZE' and second != first
    for host in gpus:
        cloud.computes[host].node.update()
    cloud.action(server, 'revertResize')
    assert cloud.status(server) == 'ACTIVE' and cloud.hostdevs(server) == [first]
    assert (reserved(cloud, first), reserved(cloud, second)) == (1, 1)
    cloud.assert_clean()


def test_a_host_that_missed_being_disabled_follows_its_record(cloud):
    """It is told again by nobody; what it reads in its own time must do."""

    def on_message(kind, topic, host, method, args, deliver):
        if method == 'set_host_enabled':
            raise Unanswered(who=host, reason='lost')
        return deliver()

    cloud.on_message = on_message
    node = cloud.computes['gpu1'].node
    (service,) = [one for one in cloud.ok('GET', '/os-services')['services'] if one['host'] == 'gpu1']
    for status in ('disabled', 'enabled'):
        cloud.ok('PUT', f'/os-services/{service["id"]}', {'status': status})
        before = 'COMPUTE_STATUS_DISABLED' in cloud.placement.client.get_traits(node.record.uuid)[0]
        node.update()
        assert before == ('COMPUTE_STATUS_DISABLED' in cloud.placement.client.get_traits(node.record.uuid)[0])
        assert before == (status == 'enabled')
        node._refreshed -= 1000
        node.update()
        assert before != ('COMPUTE_STATUS_DISABLED' in cloud.placement.client.get_traits(node.record.uuid)[0])
