"""Power operations of guests: start, stop and reboot, and pause and suspend, which keep the guest's memory."""

from __future__ import annotations

from collections.abc import Iterable

from oslo_log import log as logging

from kilonova import objects
from kilonova.states import PowerState
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import functions
from kilonova.virt.libvirt.devices.hotplug import Hotplug
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)


class LibvirtPower:
    """Power operations on one host. Implements ``parts.power.Power``.

    ``soft_wait`` is the time in seconds that a guest has to shut down in a soft reboot.
    """

    def __init__(
        self, connection: Connection, domains: Domains, volumes: HostVolumes, hotplug: Hotplug, soft_wait: int
    ) -> None:
        self._libvirt, self._domains, self._hotplug, self._soft_wait = connection, domains, hotplug, soft_wait
        self._volumes = volumes

    @translated
    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Shut the guest down, or power it off if it is still on after ``timeout`` seconds.

        The shutdown request is repeated every ``retry_interval`` seconds. With ``timeout`` 0 the guest is powered off
        at once.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return
        if guest.is_active() and not (timeout and guest.shut_down(timeout, retry_interval)):
            guest.destroy()
            LOG.info('Instance destroyed successfully.', instance_uuid=instance.uuid)
        guest.forget_saved()
        self._domains.show(guest)

    @translated
    def define(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Define the domain again from the server's current data, and leave the guest off."""
        self._domains.build(instance, image_meta, pci_devices, power_on=False)

    @translated
    def power_on(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Define the domain again from the server's current data, and start the guest."""
        self._domains.build(instance, image_meta, pci_devices, power_on=True)

    @translated
    def reboot(
        self,
        instance: objects.Instance,
        reboot_type: str,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> None:
        """Restart the guest. A soft reboot becomes a hard one if the guest does not shut down in time."""
        guest, soft = self._libvirt.find(instance.uuid), False
        if reboot_type == 'SOFT' and guest is not None and guest.power_state() == PowerState.RUNNING:
            soft = guest.shut_down(self._soft_wait)
            if not soft:
                LOG.warning('Failed to soft reboot instance. Trying hard reboot.', instance_uuid=instance.uuid)
        self._domains.build(instance, image_meta, pci_devices, power_on=True)
        LOG.info(
            'Instance soft rebooted successfully.' if soft else 'Instance rebooted successfully.',
            instance_uuid=instance.uuid,
        )

    @translated
    def pause(self, instance: objects.Instance) -> None:
        """Pause the guest: stop its CPUs and keep its memory."""
        self._found(instance, 'pause').hold()

    @translated
    def unpause(self, instance: objects.Instance) -> None:
        """Resume a paused guest."""
        guest = self._found(instance, 'unpause')
        guest.go_on()
        if not guest.is_active():
            raise GuestFailed(act='unpause', uuid=instance.uuid, reason='it does not run')

    @translated
    def suspend(self, instance: objects.Instance, check: Check) -> None:
        """Unplug the passthrough devices from the guest, save the guest's memory, and stop the guest.

        ``check()`` is called while the guest releases the devices. If it raises an exception, the guest is not
        suspended.
        """
        guest = self._found(instance, 'suspend')
        if guest.is_active():
            try:
                self._hotplug.take(guest, check)
                guest.save()
            except Exception:
                self._hotplug.give_back(guest)
                raise
        elif not guest.is_saved():
            raise GuestFailed(act='suspend', uuid=instance.uuid, reason='it does not run')
        self._domains.show(guest)
        LOG.info('Instance suspended successfully', instance_uuid=instance.uuid)

    @translated
    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], check: Check) -> None:
        """Start a suspended guest from its saved memory, and plug its passthrough devices in again.

        If a device cannot be plugged in, unplug the devices and suspend the guest again. ``check()`` is called again
        and again while the guest releases the devices. An exception that ``check()`` raises ends this wait.
        """
        guest, devices = self._found(instance, 'resume'), list(pci_devices)
        if not guest.is_active():
            if not guest.is_saved():
                raise GuestFailed(act='resume', uuid=instance.uuid, reason='the guest has no saved memory')
            self._domains.prepare_devices(devices)
            for vif in instance.vifs:
                self._domains.plugs.add(instance, vif)
            self._volumes.unlock(instance)
            guest.start()
        try:
            guest.go_on()
            self._hotplug.give(guest, functions.names(instance.vifs, devices))
        except Exception:
            LOG.warning('Could not resume the instance; suspending it again', instance_uuid=instance.uuid)
            self._hotplug.take(guest, check)
            guest.save()
            raise
        self._domains.show(guest)
        LOG.info('Instance resumed successfully', instance_uuid=instance.uuid)

    @translated
    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        """Send the guest a non-maskable interrupt."""
        # ``call_once`` does not repeat the call: a second interrupt would disturb a guest that is dumping its memory.
        self._found(instance, 'send a non-maskable interrupt to').call_once('injectNMI', 0)

    def _found(self, instance: objects.Instance, act: str) -> Guest:
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            raise GuestFailed(act=act, uuid=instance.uuid, reason='the guest does not exist on this host')
        return guest
