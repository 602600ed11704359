"""Volumes of the volume service: attached to guests, detached, copied, swapped and extended."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import libvirt
from oslo_log import log as logging

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import block_copy
from kilonova.virt.libvirt.devices.hotplug import Hotplug
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES, place, relocated, targets
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.storage.server import ServerDisks
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes, sources
from kilonova.virt.libvirt.storage.volume_connector import Bricks
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed, UnsupportedHardware
from kilonova.virt.parts.volumes import VolumeCounters, VolumeFailed

LOG = logging.getLogger(__name__)

# Seconds between two checks whether a volume is copied.
_LOOK = 0.5


class LibvirtVolumes:
    """Volumes of guests on one host. Implements ``parts.volumes.Volumes``."""

    def __init__(
        self,
        connection: Connection,
        domains: Domains,
        disks: ServerDisks,
        volumes: HostVolumes,
        bricks: Bricks,
        hotplug: Hotplug,
    ) -> None:
        self._libvirt, self._domains, self._disks = connection, domains, disks
        self._volumes, self._bricks, self._hotplug = volumes, bricks, hotplug

    def connector(self) -> dict[str, Any]:
        """Return the properties of this host that the volume service needs to attach volumes."""
        return self._bricks.connector()

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """Return new device names, such as '/dev/vdb', for the server's volumes that have no device name yet."""
        try:
            own = self._disks.present(instance)
        except GuestFailed:
            own = self._disks.plan(instance, image_meta)
        places = self._domains.volume_places(instance, image_meta, own)
        targets = {place.volume.volume.uuid: place.target for place in places}
        return [f'/dev/{targets[volume.uuid]}' for volume in instance.volumes if not volume.device]

    @translated
    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect a volume to this host and plug it into the guest."""
        self._volumes.check([volume])
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return
        given = self._volumes.connect(instance, volume)
        try:
            disk = self._domains.volume_disk(instance, image_meta, given, guest)
            # Change the persistent definition first: libvirt refuses an invalid disk before the guest sees the volume.
            self._domains.change(guest, lambda definition: VOLUMES.put(definition, disk))
            if guest.is_active():
                self._hotplug.plug(guest, VOLUMES, disk, volume.volume_id)
                self._domains.show(guest)
        except (GuestFailed, UnsupportedHardware, libvirt.libvirtError):
            self._domains.change(guest, lambda definition: VOLUMES.without(definition, volume.volume_id))
            self._volumes.disconnect(instance, volume, given.path)
            raise
        self._domains.note_volume(instance, volume, guest)
        LOG.info('Volume %s is plugged into the guest', volume.volume_id, instance_uuid=instance.uuid)

    @translated
    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Unplug a volume from the guest, wait until the guest has released it, and disconnect it from this host.

        ``check()`` is called again and again during the wait. If it raises an exception, the wait ends.
        """
        with self._volumes.given_back(instance, [volume]):
            guest = self._libvirt.find(instance.uuid)
            if guest is not None:
                self._take(instance, guest, volume, check)

    def _take(self, instance: objects.Instance, guest: Guest, volume: AttachedVolume, check: Check) -> None:
        if guest.is_active():
            self._hotplug.unplug(guest, VOLUMES, volume.volume_id, check)
        self._domains.change(guest, lambda definition: VOLUMES.without(definition, volume.volume_id))
        self._domains.note_volume(instance, volume, guest)
        LOG.info('Volume %s is no longer plugged into the guest', volume.volume_id, instance_uuid=instance.uuid)

    @translated
    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Disconnect a volume from this host. The guest on this host, if there is one, must not use the volume."""
        self._volumes.disconnect(instance, volume)

    @translated
    def copy(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        volume: AttachedVolume,
        new: AttachedVolume,
        check: Check,
    ) -> None:
        """Connect ``new``, copy ``volume`` to it while the guest runs, and return when the copy is complete.

        ``check()`` is called again and again during the wait. If it raises an exception, the wait ends, and the copy
        runs on until ``end_copy`` is called.
        """
        self._volumes.check([new])
        guest = self._libvirt.find(instance.uuid)
        target = None if guest is None or not guest.is_active() else targets(guest.xml()).get(volume.volume_id)
        if guest is None or target is None:
            raise GuestFailed(
                act=f'copy volume {volume.volume_id} of',
                uuid=instance.uuid,
                reason='the guest is off, or does not have this volume',
            )
        disk = self._copy_of(instance, image_meta, volume, new, guest)
        if not block_copy.begin(guest, target, disk):
            LOG.debug('This hypervisor does not support copying the disks of a guest', instance_uuid=instance.uuid)
            return
        while (state := block_copy.state(guest.xml(), target)) != block_copy.READY:
            if state is None:
                raise GuestFailed(
                    act=f'copy volume {volume.volume_id} of',
                    uuid=instance.uuid,
                    reason='QEMU ended the copy, or the guest stopped',
                )
            check()
            time.sleep(_LOOK)
        LOG.info('Volume %s has been copied to volume %s', volume.volume_id, new.volume_id, instance_uuid=instance.uuid)

    def _copy_of(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        volume: AttachedVolume,
        new: AttachedVolume,
        guest: Guest,
    ) -> str:
        """Connect the volume ``new`` to this host, and return a <disk> element, as XML, for a copy of ``volume``.

        The disk has the storage of ``new``, but the id and the device name of ``volume``, which it will replace.
        """
        given = self._volumes.connect(instance, new)
        return self._domains.volume_disk(
            instance, image_meta, replace(given, volume=replace(new, volume_id=volume.volume_id)), guest
        )

    @translated
    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """End the copy of a volume to ``new``, if one is running, and disconnect ``new``."""
        guest, path = self._libvirt.find(instance.uuid), None
        if guest is not None and guest.is_active():
            xml = guest.xml()
            target = targets(xml).get(volume.volume_id)
            if target is not None:
                path = block_copy.path(xml, target)
                block_copy.end(guest, target)
        self._volumes.disconnect(instance, new, path)

    @translated
    def swap(
        self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume
    ) -> bool:
        """Make the guest use the volume ``new`` instead of ``volume``, and disconnect ``volume`` from this host.

        Return False, with ``volume`` still connected, if the guest still uses ``volume`` or does not exist.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            return False
        disk = self._copy_of(instance, image_meta, volume, new, guest)
        is_active, path = guest.is_active(), None
        was = guest.xml() if is_active else guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        had = VOLUMES.found(was, volume.volume_id).get(volume.volume_id)
        if had is None:
            return False
        if place(had) != place(disk):
            if not is_active or not self._pivot(guest, volume, had, disk):
                return False
            path = next(filter(None, place(had)[-2:]), None)
        self._domains.change(guest, lambda definition: relocated(definition, volume.volume_id, disk))
        self._volumes.replace(instance, volume, new, path)
        if is_active and new.size > volume.size:
            self._show_size(guest, replace(new, volume_id=volume.volume_id))
        LOG.info(
            'Volume %s has been replaced by volume %s', volume.volume_id, new.volume_id, instance_uuid=instance.uuid
        )
        return True

    def _pivot(self, guest: Guest, volume: AttachedVolume, had: str, disk: str) -> bool:
        """Pivot the running guest from its disk to the complete copy of the disk. Return False if the pivot fails.

        ``disk`` is the <disk> element, as XML, with the source of the copy, and ``had`` the one with the original
        source. ``disk`` is written into the guest's persistent definition before the pivot: a guest that stops during
        the pivot then starts from the copy. If the pivot fails, ``had`` is written back.
        """
        if self._libvirt.is_test:
            return True
        xml = guest.xml()
        target = targets(xml).get(volume.volume_id) or ''
        if block_copy.state(xml, target) == block_copy.READY:
            self._domains.change(guest, lambda definition: relocated(definition, volume.volume_id, disk))
            try:
                block_copy.pivot(guest, target)
            except libvirt.libvirtError as error:
                LOG.warning(
                    'Could not switch the guest to the copy of volume %s: %s',
                    volume.volume_id,
                    error,
                    instance_uuid=guest.uuid,
                )
            else:
                return True
        self._domains.change(guest, lambda definition: relocated(definition, volume.volume_id, had))
        return False

    def _show_size(self, guest: Guest, volume: AttachedVolume) -> None:
        """Make the running guest see the full size of a larger volume that has replaced its volume.

        A failure is only logged, because the guest sees the size at its next start.
        """
        try:
            grow(guest, targets(guest.xml()).get(volume.volume_id) or '', self._volumes.extend(volume))
        except (GuestFailed, VolumeFailed) as error:
            LOG.warning(
                'Could not resize volume %s in the guest, which sees the new size at its next start: %s',
                volume.volume_id,
                error,
                instance_uuid=guest.uuid,
            )

    @translated
    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Make the guest see the new size of a volume."""
        guest = self._libvirt.find(instance.uuid)
        target = None if guest is None else targets(guest.xml()).get(volume.volume_id)
        if guest is None or target is None:
            return
        if guest.is_active():
            grow(guest, target, self._volumes.extend(volume, sources(guest.xml()).get(volume.volume_id)))
        else:
            # Ignore an error, because the guest's next start connects the volume again, and then sees the new size.
            with contextlib.suppress(VolumeFailed):
                self._volumes.extend(volume)
        LOG.info('Volume %s now has %d GiB', volume.volume_id, volume.size, instance_uuid=instance.uuid)

    @translated
    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """Return a dict from volume id to I/O counters, for the volumes that the running guest has."""
        guest = self._libvirt.find(instance.uuid)
        if guest is None or not guest.is_active():
            return {}
        names = targets(guest.xml())
        found = {}
        for volume in instance.volumes:
            target = names.get(volume.volume_id)
            counters = None if target is None else guest.measured('blockStats', target)
            if counters:
                # blockStats begins with read requests, read bytes, write requests and written bytes; -1 means unknown.
                found[volume.volume_id] = VolumeCounters(*(max(0, one) for one in counters[:4]))
        return found


def grow(guest: Guest, target: str, size: int) -> None:
    """Make a running guest see that its disk ``target`` has ``size`` bytes. Raises GuestFailed if QEMU refuses."""
    try:
        guest.call('blockResize', target, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES)
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise GuestFailed(act=f'grow disk {target} of', uuid=guest.uuid, reason=str(error)) from error
        LOG.debug('This hypervisor does not support resizing the disks of a running guest', instance_uuid=guest.uuid)
