"""Write a guest's disks and CDs into its domain XML, with bus, device name and cache mode.

The volume that the guest boots from is the first. Then come the server's own disks, and then its other volumes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kilonova.virt import disk_names
from kilonova.virt.libvirt.domain import volume_disk as volumes
from kilonova.virt.libvirt.domain.guest import X86, GuestDisk, GuestSpec, GuestVolume, PoolSource
from kilonova.virt.libvirt.xml.base import Domain, node
from kilonova.virt.libvirt.xml.devices import Controller
from kilonova.virt.libvirt.xml.disks import FileDisk, PoolDisk
from kilonova.virt.parts.guests import NotOnThisHost, UnsupportedHardware


class Place(NamedTuple):
    """A disk with its bus and its device name in the guest, such as 'vda'."""

    disk: GuestDisk
    bus: str
    target: str


class VolumePlace(NamedTuple):
    """A volume with its bus and its device name in the guest, such as 'vdb'."""

    volume: GuestVolume
    bus: str
    target: str


class Layout(NamedTuple):
    """All disks of a guest: its own disks, and its volumes."""

    own: list[Place]
    volumes: list[VolumePlace]

    def has(self, bus: str) -> bool:
        """Return True if one of the guest's disks or volumes is on this bus."""
        return bus in {place.bus for place in self.own} | {place.bus for place in self.volumes}


def places(guest: GuestSpec) -> list[Place]:
    """Return the bus and the device name of each disk of the guest that is not a volume.

    The disks are in the order of ``guest.disks``. Raises UnsupportedHardware for an unknown bus.
    """
    return layout(guest).own


def layout(guest: GuestSpec, others: Iterable[str] = ()) -> Layout:
    """Return the bus and the device name of all disks and volumes of a guest.

    ``others`` are device names that are in use already.

    Raises:
        disk_names.TooManyDiskDevices: if there are too many disks.
        UnsupportedHardware: if no host supports a requested bus.
        NotOnThisHost: if this host does not support a requested bus, but another host may.
    """
    own = [bus_of(guest, disk.device, disk.bus) for disk in guest.disks]
    roots = [given for given in guest.volumes if given.volume.is_root]
    rest = [given for given in guest.volumes if not given.volume.is_root]
    root_buses, buses = (
        [bus_of(guest, given.volume.device_type or 'disk', given.volume.bus) for given in some]
        for some in (roots, rest)
    )
    devices = [given.volume.device for given in rest]
    names, volume_names = disk_names.assign([*root_buses, *own], list(zip(buses, devices, strict=True)), others)
    return Layout(
        list(map(Place, guest.disks, own, names[len(roots) :])),
        [*map(VolumePlace, roots, root_buses, names), *map(VolumePlace, rest, buses, volume_names)],
    )


class DiskConfigurator:
    """Writes the guest's disks into the domain XML: root, ephemeral, swap, config drive and volumes."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the guest's disks and volumes, and a SCSI controller if the image names a model for it."""
        found = layout(guest)
        domain.devices.extend(volumes.disk(guest, *place) for place in found.volumes if place.volume.volume.is_root)
        domain.devices.extend(self._device(guest, *place) for place in found.own)
        domain.devices.extend(volumes.disk(guest, *place) for place in found.volumes if not place.volume.volume.is_root)
        # A SCSI controller is written only if the image names the controller's model.
        # Without a named model, libvirt adds a SCSI controller of its default model, which on a PC is not virtio-scsi.
        model = guest.image_property('hw_scsi_model')
        if model and found.has('scsi'):
            domain.devices.append(
                Controller('scsi', model=model, index=0, packed=model == 'virtio-scsi' and guest.tuning.packed_ring)
            )

    def _device(self, guest: GuestSpec, disk: GuestDisk, bus: str, target: str) -> FileDisk:
        if disk.pool is not None:
            return self._of_pool(guest, disk, disk.pool, bus, target)
        if disk.device == 'cdrom':
            return FileDisk(
                disk.path, disk.format, target, bus, device='cdrom', cache=guest.settings.disk_cache, boots=disk.boots
            )
        # Use the kernel's asynchronous I/O only for raw files with direct I/O, where it is faster.
        native = disk.format == 'raw' and guest.settings.disk_cache in ('none', 'directsync')
        return FileDisk(
            disk.path,
            disk.format,
            target,
            bus,
            device=disk.device,
            cache=guest.settings.disk_cache,
            io='native' if native else None,
            discard=guest.settings.disk_discard,
            limits=guest.tuning.disk,
            boots=disk.boots,
            packed=bus == 'virtio' and guest.tuning.packed_ring,
        )

    def _of_pool(self, guest: GuestSpec, disk: GuestDisk, pool: PoolSource, bus: str, target: str) -> PoolDisk:
        is_cd, auth = disk.device == 'cdrom', None
        if pool.secret is not None:
            auth = node('auth', node('secret', type='ceph', uuid=pool.secret), username=pool.user)
        monitors = [node('host', name=name, port=port) for name, port in pool.monitors]
        return PoolDisk(
            disk.path,
            disk.format,
            target,
            bus,
            device=disk.device,
            cache=guest.settings.volume_caches.get('network', 'none'),
            discard=None if is_cd else guest.settings.disk_discard,
            limits={} if is_cd else guest.tuning.disk,
            boots=disk.boots,
            packed=bus == 'virtio' and guest.tuning.packed_ring,
            source=node('source', *monitors, protocol='rbd', name=disk.path),
            auth=auth,
        )


def bus_of(guest: GuestSpec, device: str, asked: str | None) -> str:
    """Return the bus of a device that is a 'disk', 'cdrom', 'floppy' or 'lun'.

    ``asked`` is the bus that the user requested, or None. Raises UnsupportedHardware if no host supports the device on
    the bus. Raises NotOnThisHost if only the machine type lacks the bus, and the image does not name the machine type:
    another host may have another default machine type, which has the bus.
    """
    if device == 'cdrom':
        default = (
            'sata'
            if guest.is_pcie and guest.settings.arch == 'x86_64'
            else ('ide' if guest.settings.arch in X86 else 'scsi')
        )
        bus = asked or guest.image_property('hw_cdrom_bus', default)
    elif device == 'floppy':
        bus = asked or guest.image_property('hw_floppy_bus', 'fdc')
    else:
        bus = asked or guest.image_property('hw_disk_bus', 'virtio')
    if bus not in disk_names.PREFIX:
        raise UnsupportedHardware(model=bus, virt=guest.settings.virt_type)
    _check_bus(guest, device, bus)
    return bus


def _check_bus(guest: GuestSpec, device: str, bus: str) -> None:
    """Raise UnsupportedHardware or NotOnThisHost if the device cannot be on this bus.

    Without this check, libvirt would refuse the guest only after its disks were made.
    """
    # Only floppy disks can be on the bus fdc, and they cannot be on any other bus.
    if (device == 'floppy') != (bus == 'fdc'):
        raise UnsupportedHardware(model=f'{device} on bus {bus}', virt=guest.settings.virt_type)
    if bus == 'ide' and guest.is_pcie and guest.settings.is_qemu:
        if guest.image_property('hw_machine_type'):
            raise UnsupportedHardware(
                model=f'{device} on bus ide of machine type {guest.machine}', virt=guest.settings.virt_type
            )
        raise NotOnThisHost(
            name=f'hw_{"disk" if device == "lun" else device}_bus',
            value=bus,
            reason=f'its machine type {guest.machine} has no such bus',
        )
