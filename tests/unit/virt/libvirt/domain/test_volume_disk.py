"""Volumes: as the field's guests have them, by each kind of connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova.virt.libvirt.domain import volume_disk as volumes
from kilonova.virt.libvirt.domain.builder import CONFIGURATORS
from kilonova.virt.libvirt.domain.disk import DiskConfigurator
from kilonova.virt.libvirt.domain.guest import GuestDisk, GuestSettings, GuestVolume
from kilonova.virt.parts.guests import UnsupportedHardware
from kilonova.virt.parts.volumes import VolumeUnsupported
from tests.unit.virt.builders import VOLUME, VOLUME2, new_locked_volume, new_volume
from tests.unit.virt.libvirt.domain.conftest import Configure, text

ROOT, SWAP = GuestDisk('/i/disk', 'qcow2'), GuestDisk('/i/disk.swap', 'qcow2')
CEPH = new_volume().connection
NFS = {'driver_volume_type': 'nfs', 'export': 'filer:/v', 'name': f'volume-{VOLUME}', 'format': 'raw'}
LOCAL = {'driver_volume_type': 'local', 'device_path': '/dev/loop0'}


def disks(configure: Configure, *given: GuestVolume, own: tuple[GuestDisk, ...] = (), **asked: Any) -> list[str]:
    domain = configure(DiskConfigurator(), disks=own, volumes=given, **asked)
    return [text(found) for found in domain.iterfind('devices/disk')]


def driver_of(configure: Configure, path: str, connection: dict[str, Any], **asked: Any) -> str:
    domain = configure(DiskConfigurator(), volumes=(GuestVolume(new_volume(connection=connection), path),), **asked)
    return text(domain.find('devices/disk/driver'))


def test_a_volume_in_ceph(configure: Configure) -> None:
    (found,) = disks(configure, GuestVolume(new_volume()))
    assert found == (
        '<disk type="network" device="disk"><driver name="qemu" type="raw" cache="none" discard="unmap"/>'
        '<auth username="cinder"><secret type="ceph" uuid="7c1a4b9e-5f0d-4f7e-8a7b-2f0f3a1b9c55"/></auth>'
        f'<source protocol="rbd" name="volumes/volume-{VOLUME}"><host name="192.0.2.1" port="6789"/>'
        '<host name="192.0.2.2" port="6789"/></source><target dev="vdb" bus="virtio"/>'
        f'<serial>{VOLUME}</serial><alias name="ua-{VOLUME}"/></disk>'
    )


@pytest.mark.parametrize(
    ('connection', 'auth'),
    [
        ({**CEPH, 'auth_enabled': False}, ''),
        (
            {**CEPH, 'secret_uuid': None, 'auth_username': None},
            '<auth username="nova"><secret type="ceph" uuid="s-1"/></auth>',
        ),
    ],
)
def test_who_a_guest_is_to_ceph(configure: Configure, connection: dict[str, Any], auth: str) -> None:
    settings = {'rbd_user': 'nova', 'rbd_secret_uuid': 's-1'}
    volumes.check(new_volume(connection=connection), 'gpu1', GuestSettings(**settings))  # type: ignore[arg-type]
    domain = configure(DiskConfigurator(), volumes=(GuestVolume(new_volume(connection=connection)),), settings=settings)
    assert text(domain.find('devices/disk/auth')) == auth


def test_monitors_of_ceph_with_addresses_of_version_6(configure: Configure) -> None:
    connection = {**CEPH, 'hosts': ['[2001:db8::1]'], 'ports': ['3300']}
    domain = configure(DiskConfigurator(), volumes=(GuestVolume(new_volume(connection=connection)),))
    assert text(domain.find('devices/disk/source/host')) == '<host name="2001:db8::1" port="3300"/>'


def test_files_and_block_devices(configure: Configure) -> None:
    file, block = disks(
        configure,
        GuestVolume(new_volume(connection=NFS), '/mnt/x/volume-1'),
        GuestVolume(new_volume(volume_id=VOLUME2, device='/dev/vdc', connection=LOCAL, multiattach=True), '/dev/loop0'),
    )
    assert file == (
        '<disk type="file" device="disk"><driver name="qemu" type="raw" cache="none" io="native"/>'
        '<source file="/mnt/x/volume-1"/><target dev="vdb" bus="virtio"/>'
        f'<serial>{VOLUME}</serial><alias name="ua-{VOLUME}"/></disk>'
    )
    assert block == (
        '<disk type="block" device="disk"><driver name="qemu" type="raw" cache="none"/><source dev="/dev/loop0"/>'
        f'<target dev="vdc" bus="virtio"/><shareable/><serial>{VOLUME2}</serial><alias name="ua-{VOLUME2}"/></disk>'
    )


@pytest.mark.parametrize(
    ('connection', 'settings', 'driver'),
    [
        ({**NFS, 'format': 'qcow2'}, {}, '<driver name="qemu" type="qcow2" cache="none"/>'),
        (NFS, {'volume_caches': {'file': 'writeback'}}, '<driver name="qemu" type="raw" cache="writeback"/>'),
        (
            LOCAL,
            {'volume_caches': {'block': 'directsync', 'network': 'unsafe'}},
            '<driver name="qemu" type="raw" cache="directsync"/>',
        ),
        (LOCAL, {'disk_cache': 'writeback', 'disk_discard': 'unmap'}, '<driver name="qemu" type="raw" cache="none"/>'),
    ],
)
def test_how_a_volume_is_read_and_written(
    configure: Configure, connection: dict[str, Any], settings: dict[str, Any], driver: str
) -> None:
    assert driver_of(configure, '/x', connection, settings=settings) == driver


def test_packed_rings_and_limits(configure: Configure) -> None:
    """The flavor's limits are those of the guest's own disks."""
    connection = {
        **LOCAL,
        'access_mode': 'ro',
        'qos_specs': {'read_iops_sec': '500', 'total_bytes_sec_max': 7, 'consumer': 'both', 'write_iops_sec': 'many'},
    }
    domain = configure(
        DiskConfigurator(),
        volumes=(GuestVolume(new_volume(connection=connection), '/dev/x'),),
        extra_specs={'hw:virtio_packed_ring': 'yes', 'quota:disk_write_iops_sec': '10'},
    )
    assert text(domain.find('devices/disk/iotune')) == (
        '<iotune><read_iops_sec>500</read_iops_sec><total_bytes_sec_max>7</total_bytes_sec_max></iotune>'
    )
    assert 'packed="on"' in text(domain.find('devices/disk/driver'))
    assert domain.find('devices/disk/readonly') is not None


@pytest.mark.parametrize(
    ('properties', 'wanted', 'places'),
    [
        (
            {},
            [{'device': '/dev/vdc'}, {'device': None}],
            [('vda', 'virtio'), ('vdb', 'virtio'), ('vdc', 'virtio'), ('vdd', 'virtio')],
        ),
        # A disk of the guest's own that came later gives way.
        ({}, [{'device': '/dev/vdb'}], [('vda', 'virtio'), ('vdc', 'virtio'), ('vdb', 'virtio')]),
        (
            {'hw_disk_bus': 'scsi'},
            [{'device': '/dev/vdb'}, {'device': '/dev/sdb'}],
            [('sda', 'scsi'), ('sdc', 'scsi'), ('sdd', 'scsi'), ('sdb', 'scsi')],
        ),
        (
            {},
            [{'device': '/dev/vdb', 'bus': 'sata'}, {'device': None, 'device_type': 'cdrom'}],
            [('vda', 'virtio'), ('vdb', 'virtio'), ('sda', 'sata'), ('hda', 'ide')],
        ),
    ],
)
def test_a_volume_keeps_its_name_where_its_bus_has_such(
    configure: Configure, properties: dict[str, str], wanted: list[dict[str, Any]], places: list[tuple[str, str]]
) -> None:
    given = tuple(
        GuestVolume(replace(new_volume(volume_id=str(number)), **values)) for number, values in enumerate(wanted)
    )
    domain = configure(DiskConfigurator(), disks=(ROOT, SWAP), volumes=given, properties=properties)
    assert [(found.get('dev'), found.get('bus')) for found in domain.iterfind('devices/disk/target')] == places


def test_the_controller_of_a_volume(configure: Configure) -> None:
    """Of SCSI the model that the image names; of USB one at all."""
    given = tuple(GuestVolume(new_volume(volume_id=bus, device=None, bus=bus)) for bus in ('scsi', 'usb'))
    domain = configure(*CONFIGURATORS, disks=(ROOT,), volumes=given, properties={'hw_scsi_model': 'virtio-scsi'})
    found = {one.get('type'): one.get('model') for one in domain.iterfind('devices/controller')}
    assert found == {'scsi': 'virtio-scsi', 'usb': None}


def test_an_unknown_bus(configure: Configure) -> None:
    with pytest.raises(UnsupportedHardware, match="'xen' is not supported"):
        disks(configure, GuestVolume(new_volume(bus='xen')))


def locked(connection: dict[str, Any], **encryption: str) -> dict[str, Any]:
    found = new_locked_volume(connection=connection).connection
    return {'connection': {**found, 'encryption': {**found['encryption'], **encryption}}}


@pytest.mark.parametrize(('connection', 'path'), [(CEPH, None), (NFS, '/mnt/v'), (LOCAL, '/dev/loop0')])
def test_qemu_itself_decrypts(configure: Configure, connection: dict[str, Any], path: str | None) -> None:
    given = GuestVolume(new_locked_volume(connection=connection), path)
    volumes.check(given.volume, 'gpu1', GuestSettings())
    domain = configure(DiskConfigurator(), volumes=(given,))
    lock = f'<encryption format="luks"><secret type="passphrase" uuid="{VOLUME}"/></encryption>'
    assert text(domain.find('devices/disk/source/encryption')) == lock
    # So it is for a guest that comes while it runs.
    assert lock in text(ElementTree.fromstring(volumes.origin(given, GuestSettings())))


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ({'host': 'gpu2'}, 'it is attached to host gpu2'),
        ({'connection': {'driver_volume_type': 'smbfs'}}, "its kind is 'smbfs'; accepted: .*iscsi.*nfs.*rbd"),
        ({'connection': {**LOCAL, 'encrypted': True}}, 'it is encrypted, and the volume service returned no key ID'),
        (locked(LOCAL, provider='luks2'), "its encryption has the provider 'luks2'; accepted: luks"),
        (locked(LOCAL, provider='plain'), "its encryption has the provider 'plain'; accepted: luks"),
        (
            locked(CEPH, control_location='back-end'),
            "its encryption has the control location 'back-end'; accepted: front-end",
        ),
        (locked({**NFS, 'format': 'qcow2'}), "it is encrypted, and its format is 'qcow2'; accepted: raw"),
        ({'connection': {**NFS, 'format': 'vmdk'}}, "its format is 'vmdk'; accepted: raw, qcow2"),
        (
            {'connection': {**CEPH, 'secret_uuid': None}},
            'neither its connection nor .*rbd_secret_uuid names the libvirt',
        ),
    ],
)
def test_volumes_that_guests_can_not_have(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(VolumeUnsupported, match=f'Volume {VOLUME} cannot be attached on host gpu1: {reason}'):
        volumes.check(new_volume(**values), 'gpu1', GuestSettings())
