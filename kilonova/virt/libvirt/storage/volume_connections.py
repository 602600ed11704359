"""Volumes of servers on this host. They are connected before a guest uses them, and disconnected after the guest's end.

    volumes.check(instance.volumes)                     # may raise VolumeUnsupported; changes nothing
    given = volumes.connected(instance)                 # for a domain that is built
    with volumes.given_back(instance, instance.volumes):
        domains.forget(instance.uuid)

os-brick makes the connections (``bricks``), and libvirt stores the secrets of encrypted volumes (``secrets``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from oslo_log import log as logging

from kilonova import objects
from kilonova.objects.volume import NFS, AttachedVolume
from kilonova.virt.libvirt.connection import Connection
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES
from kilonova.virt.libvirt.domain import volume_disk as volumes
from kilonova.virt.libvirt.domain.guest import GuestVolume
from kilonova.virt.libvirt.host import LibvirtHost
from kilonova.virt.libvirt.storage.secrets import LibvirtSecrets
from kilonova.virt.libvirt.storage.volume_connector import Bricks
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeFailed, VolumeUnsupported

LOG = logging.getLogger(__name__)


class HostVolumes:
    """The volumes that are connected to one host.

    The paths of the volumes and the servers that use them are recorded only in memory. After a restart of the compute
    service, they are read from libvirt's domains.
    """

    def __init__(self, connection: Connection, host: LibvirtHost, bricks: Bricks, secrets: LibvirtSecrets) -> None:
        self._libvirt, self._host, self._bricks, self._secrets = connection, host, bricks, secrets
        # A dict from volume id to the uuids of the servers for which the volume is connected.
        self._users: dict[str, set[str]] = defaultdict(set)
        # A dict from volume id to the path of the volume on this host.
        self._paths: dict[str, str | None] = {}
        # This lock is held while a multiattach volume is connected or disconnected for a server, one server at a time.
        self._shared = threading.Lock()

    def check(self, wanted: Iterable[AttachedVolume]) -> None:
        """Check whether this host can connect these volumes. Changes nothing. Raises VolumeUnsupported if it cannot."""
        for volume in _attached(wanted):
            volumes.check(volume, self._libvirt.name, self._host.settings)

    def connected(self, instance: objects.Instance) -> tuple[GuestVolume, ...]:
        """Connect all attached volumes of a server and return them.

        Raises VolumeUnsupported if a volume cannot be connected.
        """
        self.check(instance.volumes)
        return tuple(self.connect(instance, volume) for volume in _attached(instance.volumes))

    def unlock(self, instance: objects.Instance) -> None:
        """Store the secrets of the encrypted volumes of a guest with saved memory, so that QEMU can open them.

        Libvirt may have been restarted since the guest was saved. Raises VolumeUnsupported if a key cannot be read.
        """
        for volume in _attached(instance.volumes):
            self._secrets.keep(volume)

    def coming(self, instance: objects.Instance) -> list[AttachedVolume]:
        """Return a server's volumes with their attachments to this host, the destination of its live migration.

        During a live migration, each volume has one attachment for the source and one for the destination. Raises
        VolumeUnsupported if this host cannot connect one of the volumes.
        """
        found = [volume for one in instance.volumes if (volume := one.coming(self._libvirt.name)) is not None]
        self.check(found)
        return found

    def origins(self, instance: objects.Instance, which: Iterable[AttachedVolume]) -> dict[str, str]:
        """Connect the volumes ``which`` to this host, the destination of a live migration.

        Return a dict from volume id to a <disk> element, as XML, that has the volume's <source> on this host. The
        source host writes it into the guest's XML. Raises VolumeUnsupported if a volume cannot be connected.
        """
        return {
            volume.volume_id: volumes.origin(self.connect(instance, volume), self._host.settings) for volume in which
        }

    def connect(self, instance: objects.Instance, volume: AttachedVolume) -> GuestVolume:
        """Connect a volume to this host for a server. Repeated calls are safe.

        Raises VolumeUnsupported if this host cannot connect it.
        """
        with self._turn(volume):
            path = self._open(volume)
            self._users[volume.volume_id].add(instance.uuid)
            self._paths[volume.volume_id] = path
        return GuestVolume(volume, path)

    def _open(self, volume: AttachedVolume) -> str | None:
        """Connect a volume and store its secret for QEMU.

        Return the volume's path on this host, or None if QEMU itself connects to the volume over the network.
        """
        passphrase = self._secrets.keep(volume)
        try:
            path = None if volume.kind == volumes.RBD else self._bricks.connect(volume)
            if passphrase is not None and path is not None and volume.kind in volumes.BLOCK:
                self._bricks.lock(volume, path, passphrase)
        except VolumeUnsupported:
            if passphrase is not None:
                self._secrets.forget(volume.volume_id)
            raise
        return path

    def disconnect(
        self, instance: objects.Instance, volume: AttachedVolume, path: str | None = None, force: bool = False
    ) -> None:
        """Disconnect a volume that the server's guest does not use on this host any more.

        A multiattach volume stays connected as long as other servers use the volume on this host. ``path`` is the
        volume's path on this host, if it is known. With ``force``, data that cannot be flushed are lost. Raises
        VolumeFailed if the volume cannot be disconnected.
        """
        with self._turn(volume):
            users = self._users[volume.volume_id] - {instance.uuid}
            outside = volume.kind not in (None, volumes.RBD)
            if (outside or volume.encryption is not None) and not (
                volume.multiattach and (users or self._is_of_another(instance.uuid, volume.volume_id))
            ):
                if volume.encryption is not None:
                    self._secrets.forget(volume.volume_id)
                if outside:
                    self._bricks.disconnect(volume, self._paths.get(volume.volume_id) or path, force)
            self._users[volume.volume_id] = users
            if not users:
                del self._users[volume.volume_id]
                self._paths.pop(volume.volume_id, None)

    def replace(
        self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume, path: str | None
    ) -> None:
        """Record that the guest uses ``new`` instead of ``volume``, and disconnect ``volume`` from this host.

        ``path`` was the path of ``volume``. A failure to disconnect ``volume`` is only logged.
        """
        self._paths[volume.volume_id] = path
        try:
            self.disconnect(instance, volume, path)
        except VolumeFailed as error:
            LOG.error(
                'Could not disconnect a volume, so it stays connected to this host: %s',
                error,
                instance_uuid=instance.uuid,
            )
        self._users[volume.volume_id] = self._users.pop(new.volume_id, {instance.uuid})
        self._paths[volume.volume_id] = self._paths.pop(new.volume_id, None)

    @contextlib.contextmanager
    def given_back(
        self, instance: objects.Instance, which: Iterable[AttachedVolume], force: bool = False
    ) -> Iterator[None]:
        """Disconnect the volumes ``which`` from this host when the ``with`` block has ended without an exception.

        In the ``with`` block, the caller removes the guest, or detaches the volumes from the guest.

        A volume that is not attached to this host is ignored. Raises VolumeFailed if a volume cannot be disconnected.
        With ``force`` a failure is only logged, and data that were not flushed may be lost.
        """
        known = (volume.at(self._libvirt.name) for volume in which)
        mine = [volume for volume in known if volume is not None and volume.kind is not None]
        paths = self._sources(instance.uuid) if mine else {}
        yield
        for volume in mine:
            try:
                self.disconnect(instance, volume, paths.get(volume.volume_id), force)
            except VolumeFailed as error:
                if not force:
                    raise
                LOG.error(
                    'Could not disconnect a volume, so it stays connected to this host: %s',
                    error,
                    instance_uuid=instance.uuid,
                )

    def extend(self, volume: AttachedVolume, path: str | None = None) -> int:
        """Read the new size of a volume that has grown, and return the new size in bytes of the disk in the guest.

        ``path`` is the volume's path on this host, if it has one. For an encrypted block device, the result is the
        volume's size without its LUKS header. For all other volumes it is the full size: to the size of an encrypted
        file or Ceph image, QEMU itself adds its LUKS header. Raises VolumeFailed if the host sees a smaller size than
        the volume has.
        """
        wanted = volume.size << 30
        if volume.kind in (volumes.RBD, NFS):
            return wanted
        found = self._bricks.extend(volume)
        if found is not None and found < wanted:
            raise VolumeFailed(
                act='extend',
                volume=volume.volume_id,
                host=self._libvirt.name,
                reason=f'its device has {found} bytes, too few for the new size',
            )
        return wanted - (self._bricks.header(volume, path) if path and volume.encryption is not None else 0)

    def _turn(self, volume: AttachedVolume) -> contextlib.AbstractContextManager[object]:
        return self._shared if volume.multiattach else contextlib.nullcontext()

    def _is_of_another(self, uuid: str, volume_id: str) -> bool:
        return any(volume_id in sources(guest.xml()) for guest in self._libvirt.guests() if guest.uuid != uuid)

    def _sources(self, uuid: str) -> dict[str, str | None]:
        try:
            guest = self._libvirt.find(uuid)
        except HypervisorUnavailable:
            return {}
        return {} if guest is None else sources(guest.xml())


def _attached(wanted: Iterable[AttachedVolume]) -> list[AttachedVolume]:
    """Return the volumes that are attached to a host. Leave out volumes that are only reserved for a server."""
    return [volume for volume in wanted if volume.kind is not None]


def sources(xml: str) -> dict[str, str | None]:
    """Return a dict from volume id to its path on the host, read from a domain's XML."""
    found = {}
    for disk in ElementTree.fromstring(xml).iterfind('devices/disk'):
        name, source = VOLUMES.name(disk), disk.find('source')
        if name is not None and source is not None:
            found[name] = source.get('dev') or source.get('file')
    return found
