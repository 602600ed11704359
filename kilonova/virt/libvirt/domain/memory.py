"""How much memory the guest has, and what it lies in."""
from __future__ import annotations

from kilonova.virt.hardware import constraints
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain
from kilonova.virt.libvirt.xml.numa import MemoryBacking


class MemoryConfigurator:
    """The flavor's memory, in KiB; large pages and locked memory where the guest was given them."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        domain.memory_kib = guest.flavor.memory_mb * 1024
        cells = guest.topology.cells if guest.topology is not None else ()
        pages = {number: cell.pagesize for number, cell in enumerate(cells)
                 if cell.pagesize is not None and cell.pagesize > guest.settings.small_page}
        locked = constraints.locked_memory(guest.extra_specs, guest.properties)
        if pages or locked:
            domain.memory_backing = MemoryBacking(pages, locked)
