"""The serial console, kept in a file."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Serial
from kilonova.virt.libvirt.xml.domain import Domain


class SerialConfigurator:
    """One port whose output libvirt logs."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.console_log:
            domain.devices.append(Serial(guest.console_log))
