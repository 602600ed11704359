"""ImageMeta: the plain dict, the typed properties, and what a server keeps of its image."""

from __future__ import annotations

import tracemalloc
import uuid as uuids
from typing import Any

import pytest

from kilonova.objects import ImageMeta, ImageMetaProps
from kilonova.objects.image_meta import InvalidImageProperty, check_texts, system_metadata

UUID = str(uuids.UUID(int=1))


def image(**properties: Any) -> dict[str, Any]:
    return {
        'id': UUID,
        'name': 'cirros',
        'status': 'active',
        'disk_format': 'qcow2',
        'container_format': 'bare',
        'size': 13287936,
        'min_ram': 64,
        'min_disk': 1,
        'owner': None,
        'checksum': '',
        'visibility': 'public',
        'protected': False,
        'tags': [],
        'created_at': '2030-01-02T03:04:05Z',
        'is_public': True,
        'properties': properties,
    }


def test_known_members_are_taken_and_nulls_stay_unset() -> None:
    meta = ImageMeta.from_dict(image(hw_disk_bus='virtio', colour='blue'))
    assert (meta.id, meta.size, meta.min_disk, meta.tags, meta.protected) == (UUID, 13287936, 1, [], False)
    assert 'owner' not in meta
    assert 'checksum' not in meta
    assert meta.properties.get('hw_disk_bus') == 'virtio'
    assert meta.obj_what_changed() == set()


@pytest.mark.parametrize('empty', [None, {}])
def test_no_image_is_an_empty_one(empty: dict | None) -> None:
    assert ImageMeta.from_dict(empty).to_dict() == {'properties': {}}


@pytest.mark.parametrize(
    ('name', 'given', 'typed'),
    [
        ('hw_pmu', 'no', False),
        ('hw_firmware_stateless', 'True', True),
        ('hw_cpu_sockets', '2', 2),
        ('hw_architecture', 'amd64', 'x86_64'),
        ('hw_disk_bus', 'SCSI', 'scsi'),
        ('hw_machine_type', 'q35', 'q35'),
        ('hw_tpm_version', '2.0', '2.0'),
        ('os_secure_boot', 'required', 'required'),
        ('hw_video_model', 'VGA', 'vga'),
        ('hw_pci_numa_affinity_policy', 'socket', 'socket'),
        ('img_hv_requested_version', '>=8.0', '>=8.0'),
    ],
)
def test_properties_are_typed(name: str, given: str, typed: Any) -> None:
    assert ImageMetaProps.from_dict({name: given}).get(name) == typed


@pytest.mark.parametrize(
    ('name', 'given'),
    [
        ('hw_disk_bus', 'floppynet'),
        ('hw_cpu_sockets', 'two'),
        ('hw_pci_numa_affinity_policy', 'near'),
        ('hw_ephemeral_encryption_secret_uuid', 'secret'),
        ('img_hv_requested_version', 'new'),
    ],
)
def test_a_bad_value_names_its_property(name: str, given: str) -> None:
    with pytest.raises(InvalidImageProperty, match=f"Property '{name}'") as caught:
        ImageMetaProps.from_dict({name: given})
    assert caught.value.code == 400


def test_old_names_are_understood_and_the_new_one_wins() -> None:
    properties = ImageMetaProps.from_dict(
        {
            'architecture': 'i386',
            'vm_mode': 'hvm',
            'hypervisor_type': 'KVM',
            'hypervisor_version_requires': '>=8.0',
            'hw_architecture': 'x86_64',
        }
    )
    assert properties.primitive_data() == {
        'hw_architecture': 'x86_64',
        'hw_vm_mode': 'hvm',
        'img_hv_type': 'kvm',
        'img_hv_requested_version': '>=8.0',
    }


def test_numa_and_traits_have_a_spelling_of_their_own() -> None:
    given = {
        'hw_numa_nodes': '2',
        'hw_numa_cpus.0': '0-2,^1',
        'hw_numa_cpus.1': '1,3',
        'hw_numa_mem.0': '1024',
        'hw_numa_mem.1': '2048',
        'trait:HW_CPU_X86_AVX': 'required',
        'trait:CUSTOM_X': 'forbidden',
    }
    properties = ImageMetaProps.from_dict(given)
    assert properties.hw_numa_cpus == [{0, 2}, {1, 3}]
    assert properties.hw_numa_mem == [1024, 2048]
    assert properties.traits_required == ['HW_CPU_X86_AVX']
    assert properties.to_dict() == {
        'hw_numa_nodes': 2,
        'hw_numa_cpus.0': '0,2',
        'hw_numa_cpus.1': '1,3',
        'hw_numa_mem.0': '1024',
        'hw_numa_mem.1': '2048',
        'trait:HW_CPU_X86_AVX': 'required',
    }


@pytest.mark.parametrize('given', [{'hw_numa_mem.1': '1024'}, {'hw_numa_cpus.0': 'x-y'}, {'hw_numa_mem.0': 'much'}])
def test_numa_cells_are_numbered_without_a_gap_and_hold_numbers(given: dict[str, str]) -> None:
    with pytest.raises(InvalidImageProperty, match='hw_numa_'):
        ImageMetaProps.from_dict(given)


def test_reading_a_property_that_nobody_knows_is_a_mistake() -> None:
    with pytest.raises(AttributeError, match='hw_disk_buss'):
        ImageMetaProps().get('hw_disk_buss')
    assert ImageMetaProps().get('hw_disk_bus', 'virtio') == 'virtio'


def test_what_a_server_keeps_gives_its_image_again() -> None:
    kept = system_metadata(image(hw_disk_bus='scsi', hw_pmu=True, os_type=None))
    assert kept == {
        'image_min_ram': '64',
        'image_min_disk': '1',
        'image_disk_format': 'qcow2',
        'image_container_format': 'bare',
        'image_hw_disk_bus': 'scsi',
        'image_hw_pmu': 'True',
        'image_base_image_ref': UUID,
    }
    meta = ImageMeta.from_system_metadata({**kept, 'old_vm_state': 'active'})
    assert (meta.id, meta.min_ram, meta.disk_format) == (UUID, 64, 'qcow2')
    assert meta.properties.primitive_data() == {'hw_disk_bus': 'scsi', 'hw_pmu': True}
    assert ImageMeta.from_system_metadata({}, image_ref='').to_dict() == {'properties': {}}


def test_the_plain_dict_comes_back() -> None:
    meta = ImageMeta.from_dict(image(hw_disk_bus='virtio'))
    plain = meta.to_dict()
    assert plain['properties'] == {'hw_disk_bus': 'virtio'}
    assert plain['created_at'] == '2030-01-02T03:04:05Z'
    assert ImageMeta.from_dict(plain).to_dict() == plain


ATTACKS = [
    {'hw_numa_cpus.0': '0-99999999'},
    {'hw_numa_cpus.0': '0-65535,' * 50},
    {f'hw_numa_cpus.{number}': '0-65535' for number in range(100)},
    {'hw_numa_cpus.0': '9' * 5000},
    {'hw_numa_mem.0': '9' * 30},
    {'hw_numa_mem.0': '-1'},
    {'hw_cpu_sockets': '9' * 30},
    {'hw_cpu_sockets': -(2**40)},
    {f'hw_numa_mem.{number}': '1' for number in range(2000)},
    {'hw_machine_type': 'q35\x07'},
    {'os_distro': 'a\nb'},
    {'trait:NO TRAIT': 'required'},
    {'trait:' + 'A' * 300: 'required'},
]


@pytest.mark.parametrize('properties', ATTACKS, ids=lambda each: str(each)[:40])
def test_what_an_owner_writes_into_an_image_is_bounded(properties: dict[str, Any]) -> None:
    """An oversized image property is refused with 400 before anything large is built from it."""
    tracemalloc.start()
    try:
        with pytest.raises(InvalidImageProperty) as caught:
            ImageMetaProps.from_dict(properties)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.code == 400


@pytest.mark.parametrize(
    'properties',
    [
        {'mine': 'x' * 70000},
        {f'mine{number}': 'x' * 1000 for number in range(70)},
        {'x' * 256: ''},
        {'mine': 'a\x00b'},
        {'mi\x1bne': 'a'},
        {'mine': '\ud800'},
        {'mine': '\ufffe'},
    ],
)
def test_texts_that_nobody_knows_are_bounded_and_fit_into_a_domain(properties: dict[str, Any]) -> None:
    """An unknown image property is refused if it is too long or contains characters that XML forbids.

    Such a property is copied into the domain's metadata, and its build would fail on every host.
    """
    with pytest.raises(InvalidImageProperty):
        check_texts(properties)
    check_texts({'description': 'two lines\r\n\tand more, \u2014 \U0001f4a9'})
