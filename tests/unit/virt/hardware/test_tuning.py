"""What flavor and image ask of the guest's board."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova import errors
from kilonova.objects.image_meta import ImageMetaProps
from kilonova.virt.hardware import tuning


def read(extra_specs: dict[str, str] | None = None, **properties: Any) -> tuning.Tuning:
    return tuning.of(extra_specs or {}, ImageMetaProps.from_dict(properties))


def test_nothing_asked() -> None:
    assert tuning.of({}) == read() == tuning.Tuning()


def test_cpu() -> None:
    assert read({'quota:cpu_shares': '512', 'quota:cpu_period': '10000', 'quota:cpu_quota': '-1'}).cpu == {
        'shares': 512,
        'period': 10000,
        'quota': -1,
    }


def test_disk() -> None:
    asked = {
        'quota:disk_read_bytes_sec': '1000',
        'quota:disk_read_bytes_sec_max': '2000',
        'quota:disk_read_bytes_sec_max_length': '5',
        'quota:disk_total_iops_sec': '100',
    }
    assert read(asked).disk == {
        'read_bytes_sec': 1000,
        'read_bytes_sec_max': 2000,
        'read_bytes_sec_max_length': 5,
        'total_iops_sec': 100,
    }


@pytest.mark.parametrize(
    ('flavor', 'image', 'count'),
    [(None, None, 1), ('0', None, 1), ('3', None, 3), (None, 2, 2), ('3', 2, 2), ('2', 2, 2), ('2', 0, 2)],
)
def test_serial_ports(flavor: str | None, image: int | None, count: int) -> None:
    """The image's number, as far as the flavor allows it."""
    asked = {} if image is None else {'hw_serial_port_count': image}
    assert read({'hw:serial_port_count': flavor} if flavor else {}, **asked).serial_ports == count


@pytest.mark.parametrize(
    ('flavor', 'image', 'action'),
    [
        (None, None, None),
        ('reset', None, 'reset'),
        ('reset', 'none', 'none'),
        ('disabled', 'pause', 'pause'),
        ('reset', 'disabled', None),
    ],
)
def test_the_watchdog_of_the_image_counts_before_the_flavors(
    flavor: str | None, image: str | None, action: str | None
) -> None:
    asked = {} if image is None else {'hw_watchdog_action': image}
    assert read({'hw:watchdog_action': flavor} if flavor else {}, **asked).watchdog == action


@pytest.mark.parametrize(
    ('flavor', 'image', 'secure'),
    [
        (None, None, 'disabled'),
        (None, 'optional', 'optional'),
        ('required', 'optional', 'required'),
        ('disabled', 'optional', 'disabled'),
        ('required', None, 'required'),
        (None, 'required', 'required'),
    ],
)
def test_secure_boot(flavor: str | None, image: str | None, secure: str) -> None:
    asked = {} if image is None else {'os_secure_boot': image}
    found = read({'os:secure_boot': flavor} if flavor else {}, hw_firmware_type='uefi', **asked)
    assert (found.firmware, found.secure_boot) == ('uefi', secure)


def test_video() -> None:
    found = read({'hw_video:ram_max_mb': '64'}, hw_video_model='qxl', hw_video_ram=32)
    assert (found.video_model, found.video_ram) == ('qxl', 32)


@pytest.mark.parametrize(
    ('name', 'value'), [('sound_model', 'ich9'), ('viommu_model', 'virtio'), ('usb_model', 'qemu-xhci')]
)
def test_models_by_flavor_image_or_both(name: str, value: str) -> None:
    """hw:sound_model hw_sound_model hw:viommu_model hw_viommu_model hw:usb_model hw_usb_model"""
    flavor, image = {f'hw:{name}': value}, {f'hw_{name}': value}
    found = read(flavor)
    assert found == read({}, **image) == read(flavor, **image) != tuning.Tuning()
    assert value in (found.sound, found.iommu, found.usb)


@pytest.mark.parametrize(
    ('flavor', 'image', 'packed'),
    [
        ({}, {}, False),
        ({'hw:virtio_packed_ring': 'true'}, {}, True),
        ({}, {'hw_virtio_packed_ring': 'yes'}, True),
        ({'hw:virtio_packed_ring': 'false'}, {'hw_virtio_packed_ring': 'no'}, False),
    ],
)
def test_packed_rings(flavor: dict[str, str], image: dict[str, str], packed: bool) -> None:
    assert read(flavor, **image).packed_ring is packed


@pytest.mark.parametrize(
    ('flavor', 'image', 'space'),
    [
        ({'hw:maxphysaddr_mode': 'passthrough'}, {}, ('passthrough', None)),
        ({'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '42'}, {}, ('emulate', 42)),
        ({}, {'hw_maxphysaddr_mode': 'emulate', 'hw_maxphysaddr_bits': '52'}, ('emulate', 52)),
        ({'hw:maxphysaddr_mode': 'emulate'}, {'hw_maxphysaddr_bits': '32'}, ('emulate', 32)),
    ],
)
def test_address_spaces(flavor: dict[str, str], image: dict[str, str], space: tuple[str, int | None]) -> None:
    assert read(flavor, **image).address_space == space


@pytest.mark.parametrize(
    ('flavor', 'random'),
    [
        ({}, (None, None)),
        ({'hw_rng:allowed': 'no'}, None),
        ({'hw_rng:allowed': 'true'}, (None, None)),
        ({'hw_rng:rate_bytes': '10', 'hw_rng:rate_period': '0'}, (10, None)),
        ({'hw_rng:rate_bytes': '0'}, (None, None)),
    ],
)
def test_random_numbers(flavor: dict[str, str], random: tuple[int | None, int | None] | None) -> None:
    assert read(flavor).random == random


@pytest.mark.parametrize(
    ('extra_specs', 'properties', 'said'),
    [
        ({'quota:cpu_shares': 'many'}, {}, "'many' of 'quota:cpu_shares'"),
        ({'quota:cpu_shares': '0'}, {}, 'from 1 to 262144'),
        ({'quota:cpu_period': '999'}, {}, 'from 1000 to 1000000'),
        ({'quota:cpu_quota': '5'}, {}, "'5' of 'quota:cpu_quota'"),
        ({'quota:disk_read_iops_sec': '-1'}, {}, 'quota:disk_read_iops_sec'),
        ({'quota:disk_read_iops_sec': '1', 'quota:disk_total_iops_sec': '1'}, {}, 'a quota:disk_total_'),
        ({'quota:disk_read_iops_sec_max': '1'}, {}, 'also requires quota:disk_read_iops_sec'),
        (
            {'quota:disk_read_iops_sec': '1', 'quota:disk_read_iops_sec_max_length': '1'},
            {},
            'also requires quota:disk_read_iops_sec_max',
        ),
        (
            {'quota:disk_read_iops_sec': '9', 'quota:disk_read_iops_sec_max': '8'},
            {},
            'must be from 1 to this burst limit',
        ),
        (
            {'quota:disk_read_iops_sec': '0', 'quota:disk_read_iops_sec_max': '8'},
            {},
            'must be from 1 to this burst limit',
        ),
        ({'hw:serial_port_count': '2'}, {'hw_serial_port_count': 3}, 'Forbidden to exceed'),
        ({'hw:serial_port_count': '5'}, {}, "'5' of 'hw:serial_port_count'"),
        ({}, {'hw_serial_port_count': 5}, "'5' of 'hw_serial_port_count'"),
        ({'hw:watchdog_action': 'bark'}, {}, "'bark' of 'hw:watchdog_action'"),
        ({'os:secure_boot': 'optional'}, {}, "'optional' of 'os:secure_boot'"),
        ({'os:secure_boot': 'required'}, {'hw_firmware_type': 'uefi', 'os_secure_boot': 'disabled'}, 'Conflicting'),
        ({'os:secure_boot': 'required'}, {}, 'hw_firmware_type=uefi'),
        ({}, {'os_secure_boot': 'required', 'hw_firmware_type': 'bios'}, 'hw_firmware_type=uefi'),
        ({'hw:pmu': 'yes'}, {'hw_pmu': 'no'}, "'hw:pmu' (yes)"),
        ({'hw:pmu': 'no'}, {'hw_pmu': 'yes'}, "'hw:pmu' (no)"),
        ({}, {'hw_video_ram': 1}, 'hw_video:ram_max_mb'),
        ({'hw_video:ram_max_mb': '16'}, {'hw_video_ram': 16, 'hw_video_model': 'virtio'}, 'only that of vga, qxl'),
        (
            {'hw:sound_model': 'gus'},
            {},
            "'gus' of 'hw:sound_model': it must be one of sb16, es1370, pcspk, ac97, ich6, ich9, usb, virtio",
        ),
        (
            {'hw:sound_model': 'ich6'},
            {'hw_sound_model': 'ich9'},
            "'hw:sound_model' (ich6) and the image's 'hw_sound_model'",
        ),
        ({'hw:viommu_model': 'amd'}, {}, 'it must be one of intel, smmuv3, virtio, auto'),
        ({'hw:viommu_model': 'auto'}, {'hw_viommu_model': 'intel'}, "'hw_viommu_model' (intel)"),
        ({'hw:usb_model': 'usb4'}, {}, 'it must be one of piix3-uhci, piix4-uhci, ehci'),
        ({'hw:usb_model': 'nec-xhci'}, {'hw_usb_model': 'qemu-xhci'}, "'hw_usb_model' (qemu-xhci)"),
        ({'hw:virtio_packed_ring': 'true'}, {'hw_virtio_packed_ring': 'false'}, "'hw_virtio_packed_ring' (False)"),
        (
            {'hw:vif_multiqueue_enabled': 'no'},
            {'hw_vif_multiqueue_enabled': True},
            "'hw_vif_multiqueue_enabled' (True)",
        ),
        ({'hw:maxphysaddr_mode': 'wide'}, {}, 'it must be one of passthrough, emulate'),
        ({'hw:maxphysaddr_mode': 'emulate'}, {}, 'requires hw:maxphysaddr_bits'),
        (
            {'hw:maxphysaddr_mode': 'emulate'},
            {'hw_maxphysaddr_mode': 'passthrough'},
            "'hw_maxphysaddr_mode' (passthrough)",
        ),
        (
            {'hw:maxphysaddr_mode': 'passthrough', 'hw:maxphysaddr_bits': '42'},
            {},
            'requires hw:maxphysaddr_mode=emulate',
        ),
        ({'hw:maxphysaddr_bits': '42'}, {}, 'requires hw:maxphysaddr_mode=emulate'),
        ({'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': 'all'}, {}, "'all' of 'hw:maxphysaddr_bits'"),
        ({'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '31'}, {}, 'from 32 to 52'),
        ({'hw:maxphysaddr_mode': 'emulate'}, {'hw_maxphysaddr_bits': 53}, 'from 32 to 52'),
        (
            {'hw:maxphysaddr_mode': 'emulate', 'hw:maxphysaddr_bits': '40'},
            {'hw_maxphysaddr_bits': 41},
            "'hw:maxphysaddr_bits' (40)",
        ),
        ({'hw_rng:rate_bytes': 'ten'}, {}, "'ten' of 'hw_rng:rate_bytes'"),
        ({'hw_rng:rate_bytes': '-1'}, {}, 'from 0 to 4294967295'),
        ({'hw_rng:rate_period': '10'}, {}, 'hw_rng:rate_bytes'),
        ({'hw_rng:rate_bytes': '0', 'hw_rng:rate_period': '10'}, {}, 'hw_rng:rate_bytes'),
        ({'hw_video:ram_max_mb': '16'}, {'hw_video_ram': 17}, 'maximum allowed by flavor 16'),
    ],
)
def test_what_cannot_be_is_refused(extra_specs: dict[str, str], properties: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        read(extra_specs, **properties)
    assert said in caught.value.message
