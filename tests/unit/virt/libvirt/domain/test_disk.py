from __future__ import annotations

from typing import Any

import pytest

from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.disk import DiskConfigurator
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware
from tests.unit.virt.libvirt.domain.conftest import Configure, text

ROOT, SWAP, CD = (
    GuestDisk('/i/disk', 'qcow2'),
    GuestDisk('/i/disk.swap', 'qcow2'),
    GuestDisk('/i/disk.config', 'raw', 'cdrom'),
)


def targets(configure: Configure, **asked: Any) -> list[tuple[str | None, str | None]]:
    domain = configure(DiskConfigurator(), disks=(ROOT, SWAP, CD), **asked)
    return [(target.get('dev'), target.get('bus')) for target in domain.findall('devices/disk/target')]


def test_root_disk(configure: Configure) -> None:
    domain = configure(DiskConfigurator(), disks=(ROOT,), settings={'disk_cache': 'none', 'disk_discard': 'unmap'})
    assert text(domain.find('devices')) == (
        '<devices><disk type="file" device="disk"><driver name="qemu" type="qcow2" cache="none" discard="unmap"/>'
        '<source file="/i/disk"/><target dev="vda" bus="virtio"/></disk></devices>'
    )


@pytest.mark.parametrize(
    ('asked', 'expected'),
    [
        ({}, [('vda', 'virtio'), ('vdb', 'virtio'), ('hda', 'ide')]),
        ({'settings': {'machines': {'x86_64': 'q35'}}}, [('vda', 'virtio'), ('vdb', 'virtio'), ('sda', 'sata')]),
        ({'settings': {'arch': 'aarch64'}}, [('vda', 'virtio'), ('vdb', 'virtio'), ('sda', 'scsi')]),
        (
            {'properties': {'hw_disk_bus': 'scsi', 'hw_cdrom_bus': 'sata'}},
            [('sda', 'scsi'), ('sdb', 'scsi'), ('sdc', 'sata')],
        ),
    ],
)
def test_names_count_by_prefix(configure: Configure, asked: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert targets(configure, **asked) == expected


def test_scsi_controller(configure: Configure) -> None:
    domain = configure(
        DiskConfigurator(), disks=(ROOT,), properties={'hw_disk_bus': 'scsi', 'hw_scsi_model': 'virtio-scsi'}
    )
    assert text(domain.find('devices/controller')) == '<controller type="scsi" index="0" model="virtio-scsi"/>'


@pytest.mark.parametrize(
    'asked', [{'extra_specs': {'hw:virtio_packed_ring': 'true'}}, {'properties': {'hw_virtio_packed_ring': 'true'}}]
)
def test_packed_rings(configure: Configure, asked: dict[str, Any]) -> None:
    """Of disks and controllers that are virtio's."""
    disks = (ROOT, GuestDisk('/i/disk.eph0', 'qcow2', bus='scsi'), GuestDisk('/i/disk.eph1', 'qcow2', bus='sata'), CD)
    properties = {'hw_scsi_model': 'virtio-scsi', **asked.pop('properties', {})}
    domain = configure(DiskConfigurator(), disks=disks, properties=properties, **asked)
    assert [driver.get('packed') for driver in domain.findall('devices/disk/driver')] == ['on', None, None, None]
    assert text(domain.find('devices/controller')) == (
        '<controller type="scsi" index="0" model="virtio-scsi"><driver packed="on"/></controller>'
    )
    other = configure(DiskConfigurator(), disks=disks, properties={**properties, 'hw_scsi_model': 'lsilogic'}, **asked)
    assert text(other.find('devices/controller')) == '<controller type="scsi" index="0" model="lsilogic"/>'


def test_raw_with_direct_io_uses_native_aio(configure: Configure) -> None:
    domain = configure(DiskConfigurator(), disks=(GuestDisk('/i/disk', 'raw'),), settings={'disk_cache': 'none'})
    assert text(domain.find('devices/disk/driver')) == '<driver name="qemu" type="raw" cache="none" io="native"/>'


def test_cds_are_read_only(configure: Configure) -> None:
    domain = configure(DiskConfigurator(), disks=(CD,))
    assert domain.find('devices/disk[@device="cdrom"]/readonly') is not None


def test_an_unknown_bus(configure: Configure) -> None:
    with pytest.raises(UnsupportedHardware, match="'lxc' is not supported by the 'kvm'"):
        targets(configure, properties={'hw_disk_bus': 'lxc'})


@pytest.mark.parametrize(
    ('properties', 'said'),
    [
        ({'hw_disk_bus': 'fdc'}, 'disk on bus fdc'),
        ({'hw_cdrom_bus': 'fdc'}, 'cdrom on bus fdc'),
        ({'hw_cdrom_bus': 'ide', 'hw_machine_type': 'pc-q35-7.2'}, 'cdrom on bus ide of machine type pc-q35-7.2'),
    ],
)
def test_a_bus_that_no_such_device_can_be_on(configure: Configure, properties: dict[str, Any], said: str) -> None:
    """libvirt refuses them on each host, after the disks were made."""
    with pytest.raises(UnsupportedHardware, match=f"'{said}' is not supported by the 'kvm'"):
        targets(configure, properties=properties)


def test_a_bus_that_the_machine_type_of_this_host_lacks(configure: Configure) -> None:
    """The guests of another host may have another machine type."""
    with pytest.raises(NotOnThisHost, match="'ide' of 'hw_disk_bus' is not supported by this host: its machine type"):
        targets(configure, properties={'hw_disk_bus': 'ide'}, settings={'machines': {'x86_64': 'q35'}})


def test_a_bus_and_a_kind_that_were_asked_for(configure: Configure) -> None:
    disks = (GuestDisk('/i/disk', 'qcow2', 'cdrom', bus='sata'), GuestDisk('/i/disk.eph0', 'qcow2', bus='scsi'), SWAP)
    domain = configure(
        DiskConfigurator(), disks=disks, properties={'hw_scsi_model': 'virtio-scsi', 'hw_disk_bus': 'virtio'}
    )
    assert [disk.get('device') for disk in domain.findall('devices/disk')] == ['cdrom', 'disk', 'disk']
    assert [(target.get('dev'), target.get('bus')) for target in domain.findall('devices/disk/target')] == [
        ('sda', 'sata'),
        ('sdb', 'scsi'),
        ('vda', 'virtio'),
    ]
    assert domain.find('devices/controller[@type="scsi"]') is not None


def test_more_disks_than_letters(configure: Configure) -> None:
    domain = configure(
        DiskConfigurator(), disks=tuple(GuestDisk(f'/i/disk.eph{number}', 'qcow2') for number in range(28))
    )
    names = [target.get('dev') for target in domain.findall('devices/disk/target')]
    assert names[24:] == ['vdy', 'vdz', 'vdaa', 'vdab'] and len(set(names)) == 28


@pytest.mark.parametrize('properties', [{}, {'hw_floppy_bus': 'fdc'}])
def test_floppy_disks(configure: Configure, properties: dict[str, str]) -> None:
    """libvirt has them on no other bus."""
    disks = (GuestDisk('/i/floppy', 'raw', 'floppy'),)
    target = configure(DiskConfigurator(), disks=disks, properties=properties).find(
        'devices/disk[@device="floppy"]/target'
    )
    assert target is not None and (target.get('dev'), target.get('bus')) == ('fda', 'fdc')
    with pytest.raises(UnsupportedHardware, match="'floppy on bus usb' is not supported"):
        configure(DiskConfigurator(), disks=disks, properties={'hw_floppy_bus': 'usb'})


@pytest.mark.parametrize(
    'names',
    [
        ('quota:disk_read_bytes_sec', 'quota:disk_read_bytes_sec_max', 'quota:disk_read_bytes_sec_max_length'),
        ('quota:disk_write_bytes_sec', 'quota:disk_write_bytes_sec_max', 'quota:disk_write_bytes_sec_max_length'),
        ('quota:disk_total_bytes_sec', 'quota:disk_total_bytes_sec_max', 'quota:disk_total_bytes_sec_max_length'),
        ('quota:disk_read_iops_sec', 'quota:disk_read_iops_sec_max', 'quota:disk_read_iops_sec_max_length'),
        ('quota:disk_write_iops_sec', 'quota:disk_write_iops_sec_max', 'quota:disk_write_iops_sec_max_length'),
        ('quota:disk_total_iops_sec', 'quota:disk_total_iops_sec_max', 'quota:disk_total_iops_sec_max_length'),
    ],
)
def test_each_limit_of_disks(configure: Configure, names: tuple[str, ...]) -> None:
    asked = {name: str(1000 + number) for number, name in enumerate(names)}
    domain = configure(DiskConfigurator(), disks=(ROOT,), extra_specs=asked)
    tune = domain.find('devices/disk/iotune')
    assert tune is not None
    assert {f'quota:disk_{limit.tag}': limit.text for limit in tune} == asked


def test_limits_of_disks(configure: Configure) -> None:
    domain = configure(
        *CONFIGURATORS,
        disks=(ROOT, CD),
        extra_specs={'quota:disk_write_bytes_sec': '1048576', 'quota:disk_total_iops_sec': '500'},
    )
    root, drive = domain.findall('devices/disk')
    assert text(root.find('iotune')) == (
        '<iotune><write_bytes_sec>1048576</write_bytes_sec><total_iops_sec>500</total_iops_sec></iotune>'
    )
    assert drive.find('iotune') is None
