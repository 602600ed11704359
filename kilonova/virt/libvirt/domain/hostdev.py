"""Devices of the host that the guest gets: for GPUs, the point of it all."""
from __future__ import annotations

from kilonova import errors
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import PciHostDevice
from kilonova.virt.libvirt.xml.domain import Domain


class HostdevConfigurator:
    """One <hostdev> a PCI function (pci.md §10): no driver, alias or guest address, libvirt adds those.

    Raises PciDeviceUnsupportedHypervisor for guests that can't have any.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.hostdevs and not guest.settings.is_qemu:
            raise errors.PciDeviceUnsupportedHypervisor(type=guest.settings.virt_type)
        for device in guest.hostdevs:
            number, bus, rest = device.address.split(':')
            slot, function = rest.split('.')
            domain.devices.append(PciHostDevice(number, bus, slot, function, managed=device.managed))
