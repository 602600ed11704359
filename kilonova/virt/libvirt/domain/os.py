"""The machine and what it starts from."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain, Os


class OsConfigurator:
    """hvm on the image's or host's machine type, from its disk."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        domain.os = Os(arch=guest.settings.arch, machine=guest.machine, boot=['hd'],
                       bootmenu=guest.asks('hw:boot_menu', 'hw_boot_menu'), smbios=guest.settings.is_qemu)
