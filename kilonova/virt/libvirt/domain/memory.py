"""How much memory the guest has."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain


class MemoryConfigurator:
    """The flavor's memory, in KiB."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        domain.memory_kib = guest.flavor.memory_mb * 1024
