"""Volumes of the volume service, as a host and its guests have them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kilonova import errors, objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta

# How and where volumes are decrypted, in the words of the volume service.
LUKS, FRONT_END = 'luks', 'front-end'


@dataclass(frozen=True)
class VolumeCounters:
    """What a guest has done with a volume since it was started: requests, and bytes."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class VolumeUnsupported(errors.HostRejected):
    """A volume is attached to this host in a way that it can't have; on an alternate it may be another."""

    msg_fmt = 'Volume %(volume)s can not be had on host %(host)s: %(reason)s'


class VolumeFailed(errors.KilonovaError):
    """This host still has a volume, as it was."""

    msg_fmt = 'Host %(host)s could not %(act)s volume %(volume)s: %(reason)s'


def why_locked(volume: AttachedVolume) -> str:
    """Why no guest can have an encrypted volume: QEMU itself decrypts, and knows LUKS of version 1. '': it can, or it
    isn't encrypted."""
    encryption = volume.encryption
    if encryption is None:
        return ''
    provider, place = encryption.get('provider'), str(encryption.get('control_location')).lower()
    if not encryption.get('encryption_key_id'):
        return 'it is encrypted, and the volume service tells no key'
    if place != FRONT_END:
        return f"it is encrypted at '{place}'; accepted: {FRONT_END}"
    if provider != LUKS:
        return f"it is encrypted by '{provider}'; accepted: {LUKS}"
    return ''


class Volumes(Protocol):
    """Volumes of the volume service, as this host and its guests have them. A guest knows one by its id."""

    def connector(self) -> dict[str, Any]:
        """What the volume service must know of this host to attach volumes to it: platform, os_type, ip
        ([DEFAULT]my_block_storage_ip), host ([DEFAULT]host), multipath, initiator … as far as the host has them."""

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """'/dev/vdb' … for those of ``instance.volumes`` that have no ``device``, in their order: the next that are
        free behind the guest's own disks and its other volumes, for the bus that each will be on. Changes nothing.

        ``disk_names.TooManyDiskDevices``; UnsupportedHardware: there is no such bus. Of a guest that isn't here yet its
        own disks are those of its flavor.
        """

    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect it to this host and plug it into the guest, now if it runs and at its next start; nothing where it is
        plugged, or where there is no domain: that is made with ``instance.volumes``. Undo: ``detach``.

        VolumeUnsupported, UnsupportedHardware, GuestFailed: neither guest nor host have it.
        """

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Ask the guest to give it up, wait until it has, and disconnect it from this host; fine if the guest hasn't
        got it. Undo: ``attach``.

        GuestFailed when the guest keeps it; what ``check()`` raises ends the waiting. Its definition is as it was then.
        VolumeFailed: this host keeps it.
        """

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """This host lets go of it, for a server whose guest doesn't use it here: an undo, a move. Other servers keep
        what they have of it. VolumeFailed."""

    def copy(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume,
             check: Check) -> None:
        """Connect ``new`` to this host and copy the volume to it while the guest uses that; from when this returns what
        the guest writes is written to both, until ``swap`` or ``end_copy``. A copy under way goes on. Undo:
        ``end_copy``.

        VolumeUnsupported, GuestFailed (it doesn't run, or QEMU ended the copy), and what ``check()`` raises: the copy
        may be there, and going on.
        """

    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """What ``copy`` did is ended, and this host lets go of ``new``, which the guest hasn't; fine if there is no
        copy. GuestFailed, VolumeFailed."""

    def swap(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume,
             new: AttachedVolume) -> bool:
        """The guest has ``new`` in place of the volume, now and whenever it is started, under the volume's id, and sees
        its size; this host lets go of the volume. Fine if it has it already. False: it has the volume as before, for it
        was stopped or the copy failed before."""

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """It has ``volume.size`` GiB now: a guest that runs sees it, one that is off sees it at its start.
        GuestFailed, VolumeFailed."""

    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """{id: counters} of those of ``instance.volumes`` that its guest has now, as far as the hypervisor counts them;
        {} where it doesn't run. GuestFailed: it went meanwhile."""
