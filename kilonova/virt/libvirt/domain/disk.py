"""The guest's disks and CDs: bus, name and cache of each file."""
from __future__ import annotations

import string
from collections import Counter
from typing import NamedTuple

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import X86, GuestDisk, GuestSpec
from kilonova.virt.libvirt.xml import Controller, Domain, FileDisk

_PREFIX = {'virtio': 'vd', 'scsi': 'sd', 'sata': 'sd', 'usb': 'sd', 'ide': 'hd', 'fdc': 'fd'}


class Place(NamedTuple):
    """Where a guest finds a disk: ``target`` such as 'vda'."""

    disk: GuestDisk
    bus: str
    target: str


def places(guest: GuestSpec) -> list[Place]:
    """The guest's disks with their names, in the order given; UnsupportedHardware for a bus that nobody knows."""
    names: Counter[str] = Counter()
    found = []
    for disk in guest.disks:
        bus = _bus(guest, disk)
        prefix = _PREFIX[bus]
        found.append(Place(disk, bus, prefix + _letters(names[prefix])))
        names[prefix] += 1
    return found


def _letters(number: int) -> str:
    """0 → 'a', 25 → 'z', 26 → 'aa'."""
    head, last = divmod(number, 26)
    return (_letters(head - 1) if head else '') + string.ascii_lowercase[last]


class DiskConfigurator:
    """In the order given: root, ephemeral, swap, config drive."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        found = places(guest)
        domain.devices.extend(self._device(guest, *place) for place in found)
        # Its model is libvirt's choice (on a PC no virtio) unless the image names one.
        model = guest.image_property('hw_scsi_model')
        if model and any(place.bus == 'scsi' for place in found):
            domain.devices.append(Controller('scsi', model=model, index=0,
                                             packed=model == 'virtio-scsi' and guest.tuning.packed_ring))

    def _device(self, guest: GuestSpec, disk: GuestDisk, bus: str, target: str) -> FileDisk:
        if disk.device == 'cdrom':
            return FileDisk(disk.path, disk.format, target, bus, device='cdrom', cache=guest.settings.disk_cache,
                            boots=disk.boots)
        # Direct I/O on a raw file is where the kernel's asynchronous I/O pays.
        native = disk.format == 'raw' and guest.settings.disk_cache in ('none', 'directsync')
        return FileDisk(disk.path, disk.format, target, bus, device=disk.device, cache=guest.settings.disk_cache,
                        io='native' if native else None, discard=guest.settings.disk_discard,
                        limits=guest.tuning.disk, boots=disk.boots, packed=bus == 'virtio' and guest.tuning.packed_ring)


def _bus(guest: GuestSpec, disk: GuestDisk) -> str:
    if disk.device == 'cdrom':
        default = 'sata' if guest.is_pcie and guest.settings.arch == 'x86_64' else (
            'ide' if guest.settings.arch in X86 else 'scsi')
        bus = disk.bus or guest.image_property('hw_cdrom_bus', default)
    elif disk.device == 'floppy':
        bus = disk.bus or guest.image_property('hw_floppy_bus', 'fdc')
    else:
        bus = disk.bus or guest.image_property('hw_disk_bus', 'virtio')
    if bus not in _PREFIX:
        raise UnsupportedHardware(model=bus, virt=guest.settings.virt_type)
    return bus
