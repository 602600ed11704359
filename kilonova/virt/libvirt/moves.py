"""Resize, cold migration and evacuation of guests with their disks.

This module stops, defines and starts the guests. ``storage.move`` transfers their disks.
"""

from __future__ import annotations

from collections.abc import Iterable

from oslo_log import log as logging

from kilonova import objects
from kilonova.states import PowerState
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.power import LibvirtPower
from kilonova.virt.libvirt.storage.move import DiskMover
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes
from kilonova.virt.parts.disks import ImageMeta
from kilonova.virt.parts.guests import GuestFailed, Plugged
from kilonova.virt.parts.moves import DiskInfo, MoveOffer, Progress

LOG = logging.getLogger(__name__)


class LibvirtMoves:
    """The moves of servers from and to one host. Implements ``parts.moves.Moves``."""

    def __init__(
        self,
        connection: Connection,
        domains: Domains,
        disks: ServerDisks,
        volumes: HostVolumes,
        power: LibvirtPower,
        mover: DiskMover,
    ) -> None:
        self._libvirt, self._domains, self._disks, self._power = connection, domains, disks, power
        self._volumes, self._mover = volumes, mover

    def prepare_move(self) -> MoveOffer:
        """Return the description of where and how this host, the destination, receives the disks of a move."""
        return self._mover.offer()

    def check_move(self, instance: objects.Instance, dest: MoveOffer, flavor: objects.Flavor) -> None:
        """Check whether the server's disks can be moved to ``dest``. Called on the source.

        ``flavor`` is the new flavor. Raises errors.ResizeError if it would shrink a disk, and errors.DisksUnmovable if
        ``dest`` cannot receive the disks.
        """
        self._mover.check(instance, dest, flavor)

    @translated
    def migrate_disk_and_power_off(
        self,
        instance: objects.Instance,
        dest: MoveOffer,
        flavor: objects.Flavor,
        timeout: int = 0,
        retry_interval: int = 0,
        progress: Progress | None = None,
    ) -> DiskInfo:
        """Power the guest off, keep its disks as <uuid>_resize, copy them to ``dest``, and remove the domain.

        ``timeout`` and ``retry_interval`` are for the shutdown of the guest, in seconds. ``progress`` is called with
        the numbers of copied bytes and of all bytes.
        """
        self._mover.check(instance, dest, flavor)
        LOG.debug('Starting migrate_disk_and_power_off', instance_uuid=instance.uuid)
        self._power.power_off(instance, timeout, retry_interval)
        self._domains.hide(instance.uuid)
        disk_info = self._mover.carry(instance.uuid, dest, progress)
        with self._volumes.given_back(instance, instance.volumes):
            self._domains.forget(instance.uuid)
        return disk_info

    def discard_copy(self, instance: objects.Instance, dest: MoveOffer) -> None:
        """Delete the copy of the disks that this move has written to ``dest``. Called on the source."""
        self._mover.discard_copy(instance.uuid, dest)

    @translated
    def finish_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        disk_info: DiskInfo,
        plugged: Plugged | None = None,
    ) -> None:
        """Complete the move on the destination: grow the disks, define the domain, and start it if requested.

        ``disk_info`` is the result of ``migrate_disk_and_power_off`` on the source. Raises GuestFailed if the disks
        have not arrived.
        """
        LOG.debug('Starting finish_migration', instance_uuid=instance.uuid)
        directory = self._disks.directory(instance.uuid)
        if directory.move() != disk_info['move']:
            raise GuestFailed(act='move', uuid=instance.uuid, reason='the disks have not arrived on this host')
        self._disks.own(instance.uuid)
        self._disks.grow(instance, image_meta)
        self._build(instance, image_meta, pci_devices, power_on, plugged)

    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Take over the server's disks from the dead host ``source``.

        Return False if the disks are not on storage that this host uses, too.
        """
        return self._disks.take_over(instance, source)

    @translated
    def hand_back(self, instance: objects.Instance, source: str) -> bool:
        """Undo ``take_over``: remove the domain, and record ``source`` as the owner of the disks again.

        Return False, without a change, if the disks were not taken over from ``source``.
        """
        if self._disks.directory(instance.uuid).taken_from() != source:
            return False
        with self._volumes.given_back(instance, instance.volumes):
            self._domains.forget(instance.uuid)
        self._disks.hand_back(instance.uuid, source)
        return True

    @translated
    def confirm_migration(self, instance: objects.Instance, same_host: bool) -> None:
        """Delete the original disks that this source host kept, and the domain if the server moved to another host."""
        if not same_host:
            self._domains.forget(instance.uuid)
        self._mover.confirm(instance.uuid)

    @translated
    def cleanup_move_dest(self, instance: objects.Instance, same_host: bool) -> None:
        """Remove, on the destination, the domain and the copy of the disks.

        ``same_host`` is True if this host is also the source of the move. In this case, do nothing if the move has not
        yet renamed the directory of the original disks to <uuid>_resize: domain and disks are still the original ones.
        """
        # If the original disks are not in <uuid>_resize, domain and disks here are still the original ones: keep them.
        if same_host and not self._mover.is_aside(instance.uuid):
            return
        with self._volumes.given_back(instance, instance.volumes):
            self._domains.forget_if_made(instance.uuid)
        self._mover.discard(instance.uuid, same_host)

    @translated
    def finish_revert_migration(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None = None,
    ) -> None:
        """Restore the server on the source: the kept disks, the domain, and its power state."""
        if self._mover.is_aside(instance.uuid):
            self._volumes.check(instance.volumes)
            self._domains.forget(instance.uuid)
        else:
            guest = self._libvirt.find(instance.uuid)
            if guest is not None and guest.is_active() == power_on:
                self._mover.restore(instance.uuid)
                # This method starts the guest paused, and resumes it when its network interfaces are plugged.
                # An earlier call of this method may have failed between the start and the resume.
                # If the guest is still paused, resume it now.
                if plugged is not None and guest.power_state() == PowerState.PAUSED:
                    plugged()
                    guest.go_on()
                # The server's original domain is on this host, with the right power state: it need not be built again.
                return
        self._mover.restore(instance.uuid)
        self._disks.renew_swap(instance, image_meta)
        self._build(instance, image_meta, pci_devices, power_on, plugged)

    def _build(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice],
        power_on: bool,
        plugged: Plugged | None,
    ) -> None:
        self._domains.build(instance, image_meta, pci_devices, power_on, plugged)
        if power_on:
            LOG.info('Instance running successfully.', instance_uuid=instance.uuid)
