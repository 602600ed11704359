"""Protocol for volumes of the volume service, on a host and in its guests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kilonova import errors, objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta

# The supported encryption of volumes, and where they are decrypted, as values of the volume service.
LUKS, FRONT_END = 'luks', 'front-end'


@dataclass(frozen=True)
class VolumeCounters:
    """Numbers of requests and bytes that a guest has read from and written to a volume since its start."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class VolumeUnsupported(errors.HostRejected):
    """A volume is attached to this host in a form that the host cannot use; on an alternate host it may differ."""

    msg_fmt = 'Volume %(volume)s cannot be attached on host %(host)s: %(reason)s'


class VolumeFailed(errors.KilonovaError):
    """An act on a volume failed on this host, and the volume is unchanged."""

    msg_fmt = 'Host %(host)s could not %(act)s volume %(volume)s: %(reason)s'


def why_locked(volume: AttachedVolume) -> str:
    """Return the reason why no guest can have an encrypted volume, or '' if it can or the volume is not encrypted.

    QEMU itself decrypts volumes, and supports LUKS version 1.
    """
    encryption = volume.encryption
    if encryption is None:
        return ''
    provider, place = encryption.get('provider'), str(encryption.get('control_location')).lower()
    if not encryption.get('encryption_key_id'):
        return 'it is encrypted, and the volume service returned no key ID'
    if place != FRONT_END:
        return f"its encryption has the control location '{place}'; accepted: {FRONT_END}"
    if provider != LUKS:
        return f"its encryption has the provider '{provider}'; accepted: {LUKS}"
    return ''


class Volumes(Protocol):
    """Volumes of the volume service on this host and in its guests. A guest's disk has the volume's id."""

    def connector(self) -> dict[str, Any]:
        """Return the properties of this host that the volume service needs to attach volumes to it.

        The keys are platform, os_type, ip ([DEFAULT]my_block_storage_ip), host ([DEFAULT]host), multipath, initiator
        and others, as far as the host has them.
        """

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """Return device names such as '/dev/vdb' for those of ``instance.volumes`` without ``device``, in their order.

        They are the next free names after the guest's own disks and its other volumes, for the bus of each volume. For
        a guest that is not on this host yet, its own disks are those of its flavor. Nothing is changed. Raises
        ``disk_names.TooManyDiskDevices`` if there is no free name, and UnsupportedHardware if the bus does not exist.
        """

    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect a volume to this host, and plug it into the guest, now if it runs and at its next start.

        Nothing is done if it is plugged already, or if there is no domain, which is built with ``instance.volumes``
        later. ``detach`` is the undo. Raises VolumeUnsupported, UnsupportedHardware or GuestFailed; then neither the
        guest nor the host has the volume.
        """

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Ask the guest to release a volume, wait until it has, and disconnect the volume from this host.

        If the guest does not have it, it is only disconnected. ``attach`` is the undo. Raises GuestFailed if the guest
        keeps the volume. An exception of ``check()`` ends the waiting. The guest's definition is unchanged in both
        cases. Raises VolumeFailed if this host cannot disconnect the volume.
        """

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Disconnect a volume from this host, for a server whose guest does not use it here, after an undo or a move.

        Other servers keep their connections to it. Raises VolumeFailed if this is impossible.
        """

    def copy(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        volume: AttachedVolume,
        new: AttachedVolume,
        check: Check,
    ) -> None:
        """Connect ``new`` to this host, and copy the volume to it while the guest uses the volume.

        After this returns, data that the guest writes is written to both volumes, until ``swap`` or ``end_copy``. A
        copy under way is continued. ``end_copy`` is the undo. Raises VolumeUnsupported, GuestFailed (the guest does not
        run, or QEMU ended the copy) or the exception of ``check()``; the copy may exist and still be running then.
        """

    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """End a ``copy``, and disconnect ``new``, which the guest does not use; do nothing if there is no copy.

        Raises GuestFailed or VolumeFailed.
        """

    def swap(
        self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume
    ) -> bool:
        """Replace the volume by ``new`` in the guest, now and at each start, and disconnect the volume from this host.

        The guest's disk keeps the volume's id and gets the size of ``new``. It is no error if this is done already.
        Return False if the guest still has the volume, because it was stopped or the copy failed before.
        """

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Extend the guest's disk to ``volume.size`` GiB. A guest that is off gets the new size at its start.

        Raises GuestFailed or VolumeFailed.
        """

    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """Return {volume id: counters} for those of ``instance.volumes`` that the guest has and the hypervisor counts.

        The dict is empty if the guest does not run. Raises GuestFailed if it was stopped meanwhile.
        """
