"""The serial ports; the first one's output is kept in a file."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Serial
from kilonova.virt.libvirt.xml.domain import Domain


class SerialConfigurator:
    """hw:serial_port_count, hw_serial_port_count; one where nobody says a number. libvirt logs the first."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.console_log:
            domain.devices.append(Serial(guest.console_log))
            domain.devices.extend(Serial(None, port) for port in range(1, guest.tuning.serial_ports))
