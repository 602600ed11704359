"""A watchdog: what is done with a guest that hangs."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Watchdog
from kilonova.virt.libvirt.xml.domain import Domain


class WatchdogConfigurator:
    """Intel's 6300ESB, a PCI device that guests of both PC boards and of arm's have drivers for."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.tuning.watchdog and guest.settings.is_qemu:
            domain.devices.append(Watchdog('i6300esb', guest.tuning.watchdog))
