"""Rescue: start a guest from another system, with the server's own disks as additional disks."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace

from oslo_log import log as logging

from kilonova import objects
from kilonova.errors import Cause
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.power import LibvirtPower
from kilonova.virt.libvirt.storage import rescue
from kilonova.virt.libvirt.storage.rescue import RescueFiles, RescueSystem
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)


class LibvirtRescues:
    """Rescues of servers on one host. Implements ``parts.power.Rescues``."""

    def __init__(
        self, connection: Connection, domains: Domains, disks: ServerDisks, power: LibvirtPower, files: RescueFiles
    ) -> None:
        self._libvirt, self._domains, self._disks, self._power, self._files = connection, domains, disks, power, files

    @translated
    def rescue(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        image: ImageMeta | None,
        pci_devices: Iterable[objects.PciDevice],
        *,
        admin_password: str | None = None,
        timeout: int = 0,
        retry_interval: int = 0,
    ) -> None:
        """Stop the guest and start it from a rescue image. If this fails, start it from its own disks again."""
        directory, devices = self._disks.directory(instance.uuid), list(pci_devices)
        # 1. Refuse an impossible request while the guest still runs.
        prepared = self._files.prepare(instance, image_meta, image)
        spec = self._spec(instance, image_meta, devices, prepared.rescue)
        xml = self._domains.prepare(spec)
        # 2. Stop the server's own system.
        guest = self._libvirt.find(instance.uuid)
        was_on = guest is not None and guest.is_active()
        self._power.power_off(instance, timeout, retry_interval)
        try:
            # 3. Start the rescue system.
            self._files.make(instance, directory, prepared, admin_password)
            self._domains.note(instance, spec, self._domains.replace(instance, xml, power_on=True))
        except Exception:
            LOG.warning(
                'Could not start the rescue system; restoring the instance with its own disks',
                instance_uuid=instance.uuid,
            )
            self._domains.build(instance, image_meta, devices, power_on=was_on)
            raise
        LOG.info('Instance is rescued', instance_uuid=instance.uuid)

    @translated
    def restart(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Start a rescued guest again from its rescue system."""
        found = rescue.read(self._disks.directory(instance.uuid))
        if found is None:
            # An unrescue was interrupted after it had deleted the rescue system, so only another unrescue is possible.
            raise GuestFailed(
                act='rescue',
                uuid=instance.uuid,
                cause=Cause.REQUEST,
                reason=(
                    'its rescue system is no longer on this host; unrescue the server to start it from its own disk'
                ),
            )
        self._disks.ensure_bases(instance, image_meta)
        spec = self._spec(instance, image_meta, pci_devices, found)
        self._domains.note(instance, spec, self._domains.replace(instance, self._domains.prepare(spec), power_on=True))

    def _spec(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        found: RescueSystem,
    ) -> GuestSpec:
        directory = self._disks.directory(instance.uuid)
        kernel, ramdisk = found.kernel(directory)
        at = functools.partial(self._disks.at, instance.uuid)
        guest = self._domains.spec(instance, image_meta, found.disks(at, self._disks.present(instance)), pci_devices)
        return replace(guest, kernel=kernel, ramdisk=ramdisk, command_line=found.command_line)
