"""The machine and what it starts from."""
from __future__ import annotations

from kilonova.virt.driver import UnsupportedHardware
from kilonova.virt.hardware import tuning
from kilonova.virt.libvirt.domain.disk import places
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain, Kernel, Os
from kilonova.virt.libvirt.xml.element import node

# Wherever the guest's kernel looks for a console: a screen, a serial port, a paravirtual one.
_CONSOLES = 'console=tty0 console=ttyS0 console=hvc0'


class OsConfigurator:
    """hvm on the image's or host's machine type, from its disk or from the image's own kernel; BIOS or UEFI."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        firmware = self._firmware(guest)
        secure = firmware is not None and self._secure_boot(guest)
        if secure:
            # What guards the keys from the guest's own kernel.
            domain.features.append(node('smm', state='on'))
        domain.os = Os(arch=guest.settings.arch, machine=guest.machine, boot=['hd'],
                       bootmenu=guest.asks('hw:boot_menu', 'hw_boot_menu'), smbios=guest.settings.is_qemu,
                       firmware=firmware, secure_boot=secure, kernel=self._kernel(guest))

    def _firmware(self, guest: GuestSpec) -> str | None:
        """'efi' where the image asks for UEFI; arm's board has nothing else."""
        wanted = guest.tuning.firmware or (tuning.UEFI if guest.settings.arch == 'aarch64' else None)
        if wanted != tuning.UEFI or not guest.settings.is_qemu:
            return None
        if not guest.settings.has_uefi:
            raise UnsupportedHardware(model='firmware uefi', virt=guest.settings.virt_type)
        return 'efi'

    def _secure_boot(self, guest: GuestSpec) -> bool:
        if guest.tuning.secure_boot == tuning.DISABLED:
            return False
        can = guest.settings.has_secure_boot and 'q35' in (guest.machine or '')
        if not can and guest.tuning.secure_boot == tuning.REQUIRED:
            raise UnsupportedHardware(model=f'secure boot on machine type {guest.machine}',
                                      virt=guest.settings.virt_type)
        return can

    def _kernel(self, guest: GuestSpec) -> Kernel | None:
        if guest.kernel is None:
            return None
        root = next((place.target for place in places(guest)), 'vda')
        return Kernel(guest.kernel, guest.ramdisk,
                      guest.image_property('os_command_line') or f'root=/dev/{root} {_CONSOLES}')
