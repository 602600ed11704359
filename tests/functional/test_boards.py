"""Findings 3.3 and 3.6: what flavors and images ask of the board, from the request to the guest, and on a resize."""
from __future__ import annotations

import pytest
from lxml import etree

from tests.fixtures.cloud import IMAGE_ID

KERNEL, RAMDISK = '11111111-2222-3333-4444-555555555555', '11111111-2222-3333-4444-666666666666'


def domain(cloud, server):
    return etree.fromstring(cloud.xml(server).encode())


@pytest.fixture
def image(monkeypatch):
    """``image(cloud, hw_video_model='qxl')``: properties of the image that servers are made of."""
    def change(cloud, **properties):
        get = cloud.images.get
        monkeypatch.setattr(cloud.images, 'get', lambda image_id, ctxt=None: {
            **get(image_id, ctxt), **(properties if image_id == IMAGE_ID else {})})
    return change


@pytest.mark.parametrize('properties', [
    {'hw_video_model': 'qxl'}, {'hw_vif_model': 'e1000'}, {'hw_architecture': 'x86_64'}, {'architecture': 'x86_64'},
    {'hw_cdrom_bus': 'ide', 'hw_disk_bus': 'scsi'}])
def test_hosts_have_the_traits_that_image_properties_ask_for(make_cloud, image, properties):
    cloud = make_cloud(scheduler__image_metadata_prefilter=True)
    image(cloud, **properties)
    server = cloud.boot(cloud.flavor())
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    cloud.assert_clean()


def test_a_resize_gives_the_new_flavors_board(cloud, image):
    image(cloud, hw_firmware_type='uefi', hw_video_model='virtio', hw_serial_port_count='2')
    server = cloud.boot(cloud.flavor(**{'quota:cpu_shares': '512', 'hw:serial_port_count': '3'}))
    before = domain(cloud, server)
    assert before.findtext('cputune/shares') == '512' and before.find('devices/watchdog') is None
    assert before.find('os').get('firmware') == 'efi' and len(before.findall('devices/serial')) == 2
    assert before.find('devices/video/model').get('type') == 'virtio'
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(**{
        'hw:watchdog_action': 'reset', 'quota:disk_write_iops_sec': '100'})})
    after = domain(cloud, server)
    assert cloud.status(server) == 'VERIFY_RESIZE' and after.findtext('cputune/shares') is None
    assert after.find('devices/watchdog').get('action') == 'reset'
    assert after.findtext('devices/disk/iotune/write_iops_sec') == '100'
    assert after.find('os').get('firmware') == 'efi'
    cloud.action(server, 'revertResize')
    assert domain(cloud, server).findtext('cputune/shares') == '512'
    cloud.assert_clean()


def test_a_kernel_of_its_own_goes_with_the_server(cloud, image):
    for image_id, content in ((KERNEL, b'kernel'), (RAMDISK, b'ramdisk')):
        cloud.images.made[image_id] = {'id': image_id, 'status': 'active', 'size': len(content), 'disk_format': 'aki'}
        cloud.images.data[image_id] = content
    image(cloud, kernel_id=KERNEL, ramdisk_id=RAMDISK, os_command_line='root=/dev/vda quiet')
    server = cloud.boot(cloud.flavor())

    def check():
        os = domain(cloud, server).find('os')
        directory = cloud.directory / cloud.host_of(server) / 'instances' / server
        assert [os.findtext(name) for name in ('kernel', 'initrd', 'cmdline')] == [
            str(directory / 'kernel'), str(directory / 'ramdisk'), 'root=/dev/vda quiet']
        assert ((directory / 'kernel').read_bytes(), (directory / 'ramdisk').read_bytes()) == (b'kernel', b'ramdisk')
    check()
    source = cloud.host_of(server)
    # Whoever owned them deleted them meanwhile: the server has its own.
    del cloud.images.made[KERNEL], cloud.images.made[RAMDISK]
    cloud.action(server, 'resize', {'flavorRef': cloud.flavor(vcpus=2)})
    assert cloud.host_of(server) != source
    check()
    cloud.action(server, 'confirmResize')
    cloud.action(server, 'os-stop')
    cloud.action(server, 'os-start')
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    check()
    assert not (cloud.directory / source / 'instances' / server).exists()
    cloud.assert_clean()
