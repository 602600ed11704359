"""The guest's disks and CDs: bus, name and cache of each file."""
from __future__ import annotations

import string
from collections import Counter

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.libvirt.domain.guest import GuestDisk, GuestSpec
from kilonova.virt.libvirt.xml.devices import Controller, FileDisk
from kilonova.virt.libvirt.xml.domain import Domain

_PREFIX = {'virtio': 'vd', 'scsi': 'sd', 'sata': 'sd', 'usb': 'sd', 'ide': 'hd', 'fdc': 'fd'}


class DiskConfigurator:
    """In the order given: root, ephemeral, swap, config drive."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        names: Counter[str] = Counter()
        buses = set()
        for disk in guest.disks:
            bus = self._bus(guest, disk)
            prefix = _PREFIX[bus]
            letter = string.ascii_lowercase[names[prefix]]
            names[prefix] += 1
            buses.add(bus)
            domain.devices.append(self._device(guest, disk, bus, prefix + letter))
        model = guest.image_property('hw_scsi_model')
        if 'scsi' in buses and model:
            domain.devices.append(Controller('scsi', model=model, index=0))

    def _device(self, guest: GuestSpec, disk: GuestDisk, bus: str, target: str) -> FileDisk:
        if disk.device == 'cdrom':
            return FileDisk(disk.path, disk.format, target, bus, device='cdrom', cache=guest.settings.disk_cache)
        # Direct I/O on a raw file is where the kernel's asynchronous I/O pays.
        native = disk.format == 'raw' and guest.settings.disk_cache in ('none', 'directsync')
        return FileDisk(disk.path, disk.format, target, bus, cache=guest.settings.disk_cache,
                        io='native' if native else None, discard=guest.settings.disk_discard)

    def _bus(self, guest: GuestSpec, disk: GuestDisk) -> str:
        if disk.device == 'cdrom':
            default = 'sata' if guest.is_pcie and guest.settings.arch == 'x86_64' else (
                'ide' if guest.settings.arch in ('x86_64', 'i686') else 'scsi')
            bus = guest.image_property('hw_cdrom_bus', default)
        else:
            bus = guest.image_property('hw_disk_bus', 'virtio')
        if bus not in _PREFIX:
            raise UnsupportedHardware(model=bus, virt=guest.settings.virt_type)
        return bus
