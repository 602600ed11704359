"""The SMBIOS texts by which a guest (cloud-init) knows what cloud it is in."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain

# cloud-init looks for this product before it searches for a config drive: the field's name, not ours.
_MANUFACTURER, _PRODUCT, _FAMILY = 'OpenStack Foundation', 'OpenStack Nova', 'Virtual Machine'


class SysinfoConfigurator:
    """Manufacturer, product, serial number and uuid."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if not guest.settings.is_qemu:
            return
        uuid = guest.instance.uuid
        number = uuid if guest.settings.serial_number == 'unique' else guest.settings.serial_number
        domain.sysinfo = {'manufacturer': _MANUFACTURER, 'product': _PRODUCT, 'uuid': uuid, 'family': _FAMILY}
        if number:
            domain.sysinfo['serial'] = number
