"""Protocol for volumes of the volume service, on a host and in its guests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kilonova import errors, objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta

# The supported encryption format of volumes, and the supported place of decryption, as values of the volume service.
LUKS, FRONT_END = 'luks', 'front-end'


@dataclass(frozen=True)
class VolumeCounters:
    """Numbers of requests and bytes that a guest has read from and written to a volume since its start."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class VolumeUnsupported(errors.HostRejected):
    """A volume is attached to this host in a form that the host cannot use.

    On an alternate host the form may differ.
    """

    msg_fmt = 'Volume %(volume)s cannot be attached on host %(host)s: %(reason)s'


class VolumeFailed(errors.KilonovaError):
    """An action with a volume failed on this host, and the volume is unchanged."""

    msg_fmt = 'Host %(host)s could not %(act)s volume %(volume)s: %(reason)s'


def why_locked(volume: AttachedVolume) -> str:
    """Return the reason why no guest can use an encrypted volume, or '' if guests can use the volume.

    QEMU itself decrypts volumes, and supports LUKS version 1. The result is also '' if the volume is not encrypted.
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
    """Volumes of the volume service on this host and in its guests. The serial of a guest's disk is the volume's id."""

    def connector(self) -> dict[str, Any]:
        """Return the properties of this host that the volume service needs to attach volumes to it.

        The keys are platform, os_type, ip ([DEFAULT]my_block_storage_ip), host ([DEFAULT]host), multipath, initiator
        and others, as far as the host has these properties.
        """

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """Return device names such as '/dev/vdb' for the ``instance.volumes`` without a ``device``, in their order.

        The names are the next free ones after the guest's own disks and its other volumes, for the bus of each volume.
        If the guest is not on this host yet, its own disks are assumed to be those of its flavor. Nothing is changed.
        Raises ``disk_names.TooManyDiskDevices`` if there is no free name, and UnsupportedHardware if the bus does not
        exist.
        """

    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect a volume to this host, and plug it into the guest: at once if the guest runs, and at each start.

        Nothing is done if the volume is plugged already, or if there is no domain; the domain is built with
        ``instance.volumes`` later. ``detach`` is the undo. Raises VolumeUnsupported, UnsupportedHardware or
        GuestFailed; after an error neither the guest nor the host has the volume.
        """

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Ask the guest to release a volume, wait until it has released it, and disconnect the volume from this host.

        If the guest does not have the volume, the volume is only disconnected. ``attach`` is the undo. Raises
        GuestFailed if the guest keeps the volume. An exception of ``check()`` ends the waiting. The guest's definition
        is unchanged in these two cases. Raises VolumeFailed if this host cannot disconnect the volume.
        """

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Disconnect a volume from this host, for a server whose guest does not use the volume on this host.

        Called after an undo or a move. Other servers on this host keep their connections to the volume. Raises
        VolumeFailed if the volume cannot be disconnected.
        """

    def copy(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        volume: AttachedVolume,
        new: AttachedVolume,
        check: Check,
    ) -> None:
        """Connect ``new`` to this host, and copy the volume to ``new`` while the guest uses the volume.

        After this method has returned, data that the guest writes is written to both volumes, until ``swap`` or
        ``end_copy``. A copy that already runs is continued. ``end_copy`` is the undo. Raises VolumeUnsupported,
        GuestFailed (the guest does not run, or QEMU ended the copy) or the exception of ``check()``; after an error the
        copy may exist and still run.
        """

    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """End a ``copy``, and disconnect ``new``, which the guest does not use. Do nothing if there is no copy.

        Raises GuestFailed or VolumeFailed.
        """

    def swap(
        self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume
    ) -> bool:
        """Replace the volume by ``new`` in the guest, at once and at each start, and disconnect the old volume.

        The guest's disk keeps the volume's id and gets the size of ``new``. It is no error if the volume is replaced
        already. Return False if the guest still has the volume, because it was stopped or the copy failed before.
        """

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Extend the guest's disk to ``volume.size`` GiB. A guest that is off sees the new size after its next start.

        Raises GuestFailed or VolumeFailed.
        """

    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """Return {volume id: counters} for those ``instance.volumes`` that the guest has and the hypervisor counts.

        The dict is empty if the guest does not run. Raises GuestFailed if the guest was stopped meanwhile.
        """
