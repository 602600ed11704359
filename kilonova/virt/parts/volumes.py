"""Protocol for volumes of the volume service, on a host and in its guests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kilonova import errors, objects
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.parts.disks import Check, ImageMeta

# The supported values of a volume's encryption: provider 'luks', and control_location 'front-end' (QEMU decrypts).
LUKS, FRONT_END = 'luks', 'front-end'


@dataclass(frozen=True)
class VolumeCounters:
    """The numbers of read and write requests and bytes of a guest's volume since the guest's start."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0


class VolumeUnsupported(errors.HostRejected):
    """This host does not support the volume's kind of connection or encryption. Another host may support it."""

    msg_fmt = 'Volume %(volume)s cannot be attached on host %(host)s: %(reason)s'


class VolumeFailed(errors.KilonovaError):
    """An operation on a volume failed on this host. The volume is unchanged."""

    msg_fmt = 'Host %(host)s could not %(act)s volume %(volume)s: %(reason)s'


def why_locked(volume: AttachedVolume) -> str:
    """Return the reason why this driver cannot use a volume's encryption, or ''.

    The result is '' if the volume is not encrypted, or if QEMU can decrypt it: the provider must be LUKS (version 1),
    the control location front-end, and Cinder must return the id of the key.
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
    """The part of a driver for volumes of the volume service, on this host and in its guests.

    In the guest, the serial number of a volume's disk is the volume's id.
    """

    def connector(self) -> dict[str, Any]:
        """Return the properties of this host that the volume service needs to attach volumes to it.

        The keys are platform, os_type, ip ([DEFAULT]my_block_storage_ip), host ([DEFAULT]host), multipath, initiator
        and others, as far as the host has these properties.
        """

    def names(self, instance: objects.Instance, image_meta: ImageMeta) -> list[str]:
        """Return device names such as '/dev/vdb' for the ``instance.volumes`` without a ``device``, in their order.

        Each name is the next free name on the volume's bus, after the guest's own disks and its other volumes. If the
        guest is not on this host yet, it is assumed to have the disks that its flavor defines. Nothing is changed.
        Raises ``disk_names.TooManyDiskDevices`` if there is no free name, and UnsupportedHardware if the bus does not
        exist.
        """

    def attach(self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume) -> None:
        """Connect a volume to this host, and add it to the guest: now if the guest runs, and at each later start.

        Do nothing if the guest has the volume already. Also do nothing if there is no domain, because the domain will
        be made with all ``instance.volumes``. ``detach`` undoes this call. Raises VolumeUnsupported,
        UnsupportedHardware or GuestFailed. After an error neither the guest nor the host has the volume.
        """

    def detach(self, instance: objects.Instance, volume: AttachedVolume, check: Check) -> None:
        """Ask the guest to release a volume, wait until it has released it, and disconnect the volume from this host.

        If the guest does not have the volume, the volume is only disconnected. ``attach`` undoes this call. Raises
        GuestFailed if the guest does not release the volume, and whatever ``check()`` raises during the wait; the
        guest's definition is then unchanged. Raises VolumeFailed if this host cannot disconnect the volume.
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

        After this method has returned, the hypervisor writes the guest's data to both volumes, until ``swap`` or
        ``end_copy`` is called. A copy that already runs is continued. ``end_copy`` undoes this call. Raises
        VolumeUnsupported if this host cannot connect ``new``, GuestFailed if the guest does not run or QEMU ended the
        copy, and any exception of ``check``. After an error the copy may still run.
        """

    def end_copy(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume) -> None:
        """End a copy that ``copy`` has begun, and disconnect ``new`` from this host. Do nothing if there is no copy.

        Raises GuestFailed if the hypervisor fails, and VolumeFailed if the volume's connection on this host fails.
        """

    def swap(
        self, instance: objects.Instance, image_meta: ImageMeta, volume: AttachedVolume, new: AttachedVolume
    ) -> bool:
        """Make the guest use the volume ``new`` instead of ``volume``, now and at later starts. Disconnect ``volume``.

        The guest's disk keeps the id of the old volume and gets the size of ``new``. Repeated calls are safe. Return
        False if the guest still uses the old volume, because the guest was stopped or the copy failed.
        """

    def extend(self, instance: objects.Instance, volume: AttachedVolume) -> None:
        """Extend the guest's disk to ``volume.size`` GiB. A guest that is off sees the new size after its next start.

        Raises GuestFailed if the hypervisor fails, and VolumeFailed if the volume's connection on this host fails.
        """

    def usage(self, instance: objects.Instance) -> dict[str, VolumeCounters]:
        """Return {volume id: counters} for each of ``instance.volumes`` that the guest has.

        A volume is left out if the hypervisor has no counters for it. The dict is empty if the guest does not run.
        Raises GuestFailed if the guest was stopped meanwhile.
        """
