"""Machine properties that flavors and images ask for, from the API request to the domain, and after a resize.

Such properties are the video model, firmware, sound, IOMMU, USB, CPU models and the guest's own kernel.
"""

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
        monkeypatch.setattr(
            cloud.images,
            'get',
            lambda image_id, ctxt=None: {**get(image_id, ctxt), **(properties if image_id == IMAGE_ID else {})},
        )

    return change


@pytest.mark.parametrize(
    'properties',
    [
        {'hw_video_model': 'qxl'},
        {'hw_vif_model': 'e1000'},
        {'hw_architecture': 'x86_64'},
        {'architecture': 'x86_64'},
        {'hw_cdrom_bus': 'ide', 'hw_disk_bus': 'scsi'},
    ],
)
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
    cloud.action(
        server,
        'resize',
        {'flavorRef': cloud.flavor(**{'hw:watchdog_action': 'reset', 'quota:disk_write_iops_sec': '100'})},
    )
    after = domain(cloud, server)
    assert cloud.status(server) == 'VERIFY_RESIZE' and after.findtext('cputune/shares') is None
    assert after.find('devices/watchdog').get('action') == 'reset'
    assert after.findtext('devices/disk/iotune/write_iops_sec') == '100'
    assert after.find('os').get('firmware') == 'efi'
    cloud.action(server, 'revertResize')
    assert domain(cloud, server).findtext('cputune/shares') == '512'
    cloud.assert_clean()


def of(cloud, specs):
    """A flavor with extra specs that are not checked: before 2.86 they are set as they come."""
    flavor = cloud.flavor()
    if specs:
        cloud.ok('POST', f'/flavors/{flavor}/os-extra_specs', {'extra_specs': specs}, version='2.85')
    return flavor


def devices(cloud, server):
    """Sound, IOMMU, USB, width of addresses and packed rings of a domain."""
    found = domain(cloud, server)
    return [
        found.find('devices/sound').get('model'),
        found.find('devices/iommu').get('model'),
        found.find('devices/controller[@type="usb"]').get('model'),
        found.find('cpu/maxphysaddr').get('bits'),
        found.find('devices/disk/driver').get('packed'),
    ]


def test_devices_of_flavor_and_image_come_with_each_new_domain(cloud, image):
    """hw:sound_model, hw:viommu_model, hw:usb_model, hw:maxphysaddr_mode, hw:virtio_packed_ring, or the image's word:
    they are there after a hard reboot, a rescue, a rebuild and a resize."""
    image(cloud, hw_machine_type='q35', hw_viommu_model='auto', hw_sound_model='ich9', hw_virtio_packed_ring='yes')
    server = cloud.boot(
        of(cloud, {'hw:usb_model': 'qemu-xhci', 'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '42'})
    )
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    first = ['ich9', 'intel', 'qemu-xhci', '42', 'on']
    assert devices(cloud, server) == first
    for name, body in (('reboot', {'type': 'HARD'}), ('rescue', {}), ('unrescue', None)):
        cloud.action(server, name, body)
        assert devices(cloud, server) == first, name
    image(cloud, hw_sound_model='usb')
    cloud.action(server, 'rebuild', {'imageRef': IMAGE_ID})
    assert cloud.status(server) == 'ACTIVE', cloud.story(server)
    assert devices(cloud, server) == ['usb', *first[1:]]
    cloud.action(
        server,
        'resize',
        {
            'flavorRef': of(
                cloud,
                {
                    'hw:viommu_model': 'auto',
                    'hw:usb_model': 'nec-xhci',
                    'hw:maxphysaddr_mode': 'emulate',
                    'hw:maxphysaddr_bits': '44',
                },
            )
        },
    )
    assert devices(cloud, server) == ['usb', 'intel', 'nec-xhci', '44', 'on']
    cloud.action(server, 'revertResize')
    assert devices(cloud, server) == ['usb', *first[1:]]
    cloud.assert_clean()


REFUSED = [
    ({'hw:sound_model': 'gus'}, {}, 'it must be one of sb16, es1370'),
    ({'hw:sound_model': 'ich6'}, {'hw_sound_model': 'ich9'}, "the image's 'hw_sound_model' (ich9)"),
    ({}, {'hw_sound_model': 'gus'}, 'hw_sound_model'),
    ({}, {'hw_viommu_model': 'amd'}, 'hw_viommu_model'),
    ({'hw:viommu_model': 'virtio'}, {'hw_viommu_model': 'intel'}, "the image's 'hw_viommu_model' (intel)"),
    ({'hw:usb_model': 'usb4'}, {}, 'it must be one of piix3-uhci'),
    ({}, {'hw_usb_model': 'ehci'}, 'hw_usb_model'),
    ({'hw:virtio_packed_ring': 'no'}, {'hw_virtio_packed_ring': 'yes'}, "'hw_virtio_packed_ring' (True)"),
    ({'hw:maxphysaddr_mode': 'emulate'}, {}, 'requires hw:maxphysaddr_bits'),
    ({'hw_rng:rate_bytes': 'ten'}, {}, "'ten' of 'hw_rng:rate_bytes'"),
]


def test_devices_that_cannot_be_are_refused_with_what_can(cloud, image):
    for specs, properties, said in REFUSED:
        image(cloud, **properties)
        body = {'server': {'name': 's', 'flavorRef': of(cloud, specs), 'imageRef': IMAGE_ID, 'networks': 'none'}}
        response = cloud.request('POST', '/servers', body)
        assert response.status_int == 400 and said in response.json['badRequest']['message'], said
        image(cloud, **dict.fromkeys(properties))


def test_hosts_that_lack_a_device_are_left_out(make_cloud, image):
    """By their traits; where none stands for it, by what they answer."""
    cloud = make_cloud(scheduler__image_metadata_prefilter=True)
    traits = cloud.placement.client.get_traits(cloud.computes['gpu1'].host.tracker.node.uuid)[0]
    assert {
        'COMPUTE_SOUND_MODEL_ICH9',
        'COMPUTE_VIOMMU_MODEL_INTEL',
        'COMPUTE_VIOMMU_MODEL_AUTO',
        'COMPUTE_USB_MODEL_QEMU_XHCI',
        'COMPUTE_NET_VIRTIO_PACKED',
        'COMPUTE_ADDRESS_SPACE_EMULATED',
    } <= traits
    assert not traits & {'COMPUTE_VIOMMU_MODEL_SMMUV3', 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH'}
    wide = cloud.boot(of(cloud, {'hw:maxphysaddr_mode': 'passthrough'}))
    assert cloud.show(wide)['fault']['message'].startswith('No valid host was found')
    board = cloud.boot(cloud.flavor(**{'hw:viommu_model': 'intel'}))
    assert "'intel' of 'hw:viommu_model' is not supported by this host" in cloud.show(board)['fault']['message']
    image(cloud, hw_machine_type='q35', hw_viommu_model='smmuv3')
    assert cloud.show(cloud.boot(cloud.flavor()))['fault']['message'].startswith('No valid host was found')
    image(cloud, hw_viommu_model='auto')
    assert cloud.status(cloud.boot(cloud.flavor(**{'hw:virtio_packed_ring': 'true'}))) == 'ACTIVE'


def test_hosts_have_the_traits_of_their_guests_cpus(make_cloud):
    """[libvirt]cpu_models and cpu_model_extra_flags; servers that require a feature come where one has it."""
    cloud = make_cloud(
        libvirt__cpu_mode='custom',
        libvirt__cpu_models=['Nehalem', 'Haswell-noTSX'],
        libvirt__cpu_model_extra_flags=['+sha-ni', '-pcid'],
    )
    traits = cloud.placement.client.get_traits(cloud.computes['gpu1'].host.tracker.node.uuid)[0]
    assert {'HW_CPU_X86_SSE42', 'HW_CPU_X86_AVX2', 'HW_CPU_X86_SHA'} <= traits
    assert not traits & {'HW_CPU_X86_AVX512F', 'HW_CPU_X86_INTEL_PCID'}
    assert cloud.status(cloud.boot(cloud.flavor(**{'trait:HW_CPU_X86_AVX2': 'required'}))) == 'ACTIVE'
    assert cloud.status(cloud.boot(cloud.flavor(**{'trait:HW_CPU_X86_AVX512F': 'required'}))) == 'ERROR'


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
            str(directory / 'kernel'),
            str(directory / 'ramdisk'),
            'root=/dev/vda quiet',
        ]
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
