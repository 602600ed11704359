"""Controllers: USB (switched off unless a disk needs it) and PCI Express root ports."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.disk import places
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Controller
from kilonova.virt.libvirt.xml.domain import Domain


class ControllerConfigurator:
    """No USB bus unless a disk is on it, and [libvirt]num_pcie_ports free ports for devices plugged in later."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        settings = guest.settings
        if settings.is_qemu and settings.arch in ('x86_64', 'i686'):
            used = any(place.bus == 'usb' for place in places(guest))
            domain.devices.append(Controller('usb', model=None if used else 'none', index=0))
        if guest.is_pcie and settings.pcie_ports:
            domain.devices.append(Controller('pci', model='pcie-root'))
            domain.devices.extend(Controller('pci', model='pcie-root-port') for _port in range(settings.pcie_ports))
