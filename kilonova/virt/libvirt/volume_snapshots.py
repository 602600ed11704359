"""Snapshots of volumes that are files on a share (NFS).

When a snapshot is made, the guest is switched to a new file, which the volume service has created. When a snapshot is
deleted, two files of the volume are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import libvirt
from oslo_log import log as logging
from oslo_utils import strutils

from kilonova import objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt import command
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import block_chain
from kilonova.virt.libvirt.devices.hotplug_xml import relocated, targets
from kilonova.virt.libvirt.domains import Domains
from kilonova.virt.libvirt.guest import Guest
from kilonova.virt.libvirt.storage import backing
from kilonova.virt.libvirt.storage.volume_connections import HostVolumes, sources
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.volume_snapshots import Merge
from kilonova.virt.parts.volumes import VolumeUnsupported

LOG = logging.getLogger(__name__)


class LibvirtVolumeSnapshots:
    """Volume snapshots on one host. Implements ``parts.volume_snapshots.VolumeSnapshots``.

    libvirt's test driver has no disk files. With it, only the definitions of guests are changed.
    """

    def __init__(self, connection: Connection, domains: Domains, volumes: HostVolumes) -> None:
        self._libvirt, self._domains, self._volumes = connection, domains, volumes

    @translated
    def take(self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume) -> None:
        """Make the guest write to the file of ``new`` instead of the file of ``old``.

        ``old`` and ``new`` are the volume before and after the snapshot.
        """
        guest, path = self._libvirt.find(instance.uuid), self._path(instance, new)
        with _said(instance, f'take a snapshot of volume {old.volume_id} of'):
            if guest is not None and self._runs(guest):
                if self._source(guest, new) != path:
                    asked = (image_meta.get('properties') or {}).get('os_require_quiesce', False)
                    block_chain.switch(guest, self._target(guest, old), path, strutils.bool_from_string(asked))
            elif [link.name for link in backing.look(path, new.file[1])][1:2] != [old.file[0]]:
                raise GuestFailed(
                    f'The hypervisor could not take a snapshot of volume {old.volume_id} of guest {instance.uuid}: '
                    f'the backing file of the new file {new.file[0]} is not the old file, {old.file[0]}'
                )
        self._relocate(instance, image_meta, guest, new)
        LOG.info('Volume %s now uses file %s', new.volume_id, new.file[0], instance_uuid=instance.uuid)

    @translated
    def has(self, instance: objects.Instance, new: AttachedVolume) -> bool:
        """Return True if ``take`` has already switched the guest to the file of ``new``.

        ``new`` is the volume after the snapshot. For a guest that is off, the file for its next start counts.
        """
        guest = self._libvirt.find(instance.uuid)
        return guest is not None and self._source(guest, new) == self._path(instance, new)

    @translated
    def withdraw(
        self, instance: objects.Instance, image_meta: ImageMeta, old: AttachedVolume, new: AttachedVolume, check: Check
    ) -> None:
        """Undo ``take``: merge the file of ``new`` into the file of ``old``, and make the guest use the old file again.

        No data of the guest are lost, because the file of ``new`` contains all that the guest has written since the
        snapshot. ``check()`` is called during the merge. If it raises an exception, the method raises it, too.
        """
        guest, path = self._libvirt.find(instance.uuid), self._path(instance, new)
        if guest is None or self._source(guest, new) != path:
            return
        with _said(instance, f'undo the snapshot of volume {old.volume_id} of'):
            if self._runs(guest):
                block_chain.take_back(guest, self._target(guest, old), self._path(instance, old), check)
            elif not guest.is_active():
                backing.commit(backing.look(path, new.file[1])[0], check)
        self._relocate(instance, image_meta, guest, old)
        LOG.info('Volume %s uses file %s again', old.volume_id, old.file[0], instance_uuid=instance.uuid)

    @translated
    def merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge, check: Check) -> None:
        """Merge files of the volume's backing chain, as ``merge`` describes. Do nothing if they are merged already.

        ``check()`` is called during the merge. If it raises an exception, the method raises it, too.
        """
        guest = self._libvirt.find(instance.uuid)
        with _said(instance, f'merge files of volume {volume.volume_id} of'):
            if guest is not None and guest.is_active():
                if self._runs(guest):
                    block_chain.merge(guest, self._target(guest, volume), merge, check)
            else:
                links = backing.look(self._path(instance, volume), volume.file[1])
                names = [link.name for link in links]
                if not merge.is_done(names):
                    if reason := merge.why_not(names):
                        raise GuestFailed(
                            f'Files of volume {volume.volume_id} of guest {instance.uuid} cannot be merged: {reason}'
                        )
                    backing.merge(links, merge, check)
        LOG.info('Files of volume %s are merged: %s', volume.volume_id, merge, instance_uuid=instance.uuid)

    @translated
    def end_merge(self, instance: objects.Instance, volume: AttachedVolume, merge: Merge) -> bool:
        """Abort the merge ``merge`` of the volume's files, if it is still running.

        Return True if the volume's backing chain shows that the merge is complete. Return False if it is not complete,
        or if this is not known.
        """
        guest = self._libvirt.find(instance.uuid)
        if guest is None:
            # Without a guest on this host, the state of the merge is unknown: another host may have the files open.
            return False
        if guest.is_active():
            if not self._runs(guest):
                return True
            target = targets(guest.xml()).get(volume.volume_id)
            if target is None:
                return False
            block_chain.end_work(guest, target)
            return merge.is_done(block_chain.names(guest.xml(), target))
        try:
            links = backing.look(self._path(instance, volume), volume.file[1])
        except (command.CommandFailed, VolumeUnsupported) as error:
            # Only log that the files cannot be read: no merge is running, and the NFS share may never come back.
            LOG.warning(
                'Cannot determine whether the files of volume %s are merged (%s): %s',
                volume.volume_id,
                merge,
                error,
                instance_uuid=instance.uuid,
            )
            return False
        return merge.is_done([link.name for link in links])

    def _runs(self, guest: Guest) -> bool:
        """Return True if the guest runs under QEMU.

        Return False for guests of libvirt's test driver, because they have no disk files.
        """
        return guest.is_active() and not self._libvirt.is_test

    def _path(self, instance: objects.Instance, volume: AttachedVolume) -> str:
        """Return the path of the volume's file on this host.

        Raises VolumeUnsupported if the volume cannot be connected to this host.
        """
        self._volumes.check([volume])
        return self._volumes.connect(instance, volume).path or ''

    def _source(self, guest: Guest, volume: AttachedVolume) -> str | None:
        """Return the path of the volume's file that the guest uses, or None if the guest does not have the volume.

        If the guest is off, this is the file that the guest will use at its next start.
        """
        xml = guest.xml() if self._runs(guest) else guest.call('XMLDesc', libvirt.VIR_DOMAIN_XML_INACTIVE)
        return sources(xml).get(volume.volume_id)

    def _target(self, guest: Guest, volume: AttachedVolume) -> str:
        """Return the volume's device name in the guest. Raises GuestFailed if the guest does not have the volume."""
        found = targets(guest.xml()).get(volume.volume_id)
        if found is None:
            raise GuestFailed(f'The running guest {guest.uuid} does not have volume {volume.volume_id}')
        return found

    def _relocate(
        self, instance: objects.Instance, image_meta: ImageMeta, guest: Guest | None, volume: AttachedVolume
    ) -> None:
        """Change the guest's definition, so that its next start uses the file that ``volume`` names."""
        if guest is not None:
            given = self._volumes.connect(instance, volume)
            disk = self._domains.volume_disk(instance, image_meta, given, guest)
            self._domains.change(guest, lambda definition: relocated(definition, volume.volume_id, disk))


@contextmanager
def _said(instance: objects.Instance, act: str) -> Iterator[None]:
    """Raise GuestFailed instead of CommandFailed if qemu-img fails in the ``with`` block.

    ``act`` is a part of the error's text: 'merge files of volume <id> of', for example.
    """
    try:
        yield
    except command.CommandFailed as error:
        raise GuestFailed(act=act, uuid=instance.uuid, reason=str(error)) from error
