"""A guest's power."""
from __future__ import annotations

from collections.abc import Iterable

from oslo_log import log as logging

from kilonova import objects
from kilonova.states import PowerState
from kilonova.virt import driver
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.domains import Domains

LOG = logging.getLogger(__name__)


class Power:
    """``driver.Power``. ``soft_wait``: seconds that a soft reboot gives the guest to shut down."""

    def __init__(self, connection: Connection, domains: Domains, soft_wait: int) -> None:
        self._libvirt, self._domains, self._soft_wait = connection, domains, soft_wait

    @translated
    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return
        if guest.is_active() and not (timeout and guest.shut_down(timeout, retry_interval)):
            guest.destroy()
            LOG.info('Instance destroyed successfully.', instance_uuid=instance.uuid)
        self._domains.show(guest)

    @translated
    def power_on(self, instance: objects.Instance, image_meta: driver.ImageMeta,
                 pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        self._domains.build(instance, image_meta, pci_devices, power_on=True)

    @translated
    def reboot(self, instance: objects.Instance, reboot_type: str, image_meta: driver.ImageMeta,
               pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        guest, soft = self._libvirt.find(instance.uuid), False
        if reboot_type == 'SOFT' and guest is not None and guest.power_state() == PowerState.RUNNING:
            soft = guest.shut_down(self._soft_wait)
            if not soft:
                LOG.warning('Failed to soft reboot instance. Trying hard reboot.', instance_uuid=instance.uuid)
        self._domains.build(instance, image_meta, pci_devices, power_on=True)
        LOG.info('Instance soft rebooted successfully.' if soft else 'Instance rebooted successfully.',
                 instance_uuid=instance.uuid)
