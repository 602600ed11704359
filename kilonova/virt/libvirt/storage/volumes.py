"""Volumes of servers on this host: connected before a guest has them, let go when it has gone.

    volumes.check(instance.volumes)                     # VolumeUnsupported: nothing was done
    given = volumes.connected(instance)                 # for a domain that is built
    with volumes.given_back(instance, instance.volumes):
        domains.forget(instance.uuid)
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
from kilonova.virt.libvirt.devices.elements import VOLUMES
from kilonova.virt.libvirt.domain import volume as volumes
from kilonova.virt.libvirt.domain.guest import GuestVolume
from kilonova.virt.libvirt.host import Host
from kilonova.virt.libvirt.storage.bricks import Bricks
from kilonova.virt.libvirt.storage.secrets import Secrets
from kilonova.virt.parts.host import HypervisorUnavailable
from kilonova.virt.parts.volumes import VolumeFailed, VolumeUnsupported

LOG = logging.getLogger(__name__)


class HostVolumes:
    """Of one host. What it doesn't know any more, after a restart, libvirt's domains say."""

    def __init__(self, connection: Connection, host: Host, bricks: Bricks, secrets: Secrets) -> None:
        self._libvirt, self._host, self._bricks, self._secrets = connection, host, bricks, secrets
        # Servers that a volume is connected for, and its path.
        self._users: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, str | None] = {}
        # One server's last look and another's connect of the same volume don't meet.
        self._shared = threading.Lock()

    def check(self, wanted: Iterable[AttachedVolume]) -> None:
        """VolumeUnsupported, before anything is done."""
        for volume in _attached(wanted):
            volumes.check(volume, self._libvirt.name, self._host.settings)

    def connected(self, instance: objects.Instance) -> tuple[GuestVolume, ...]:
        """All that the server has, connected. VolumeUnsupported."""
        self.check(instance.volumes)
        return tuple(self.connect(instance, volume) for volume in _attached(instance.volumes))

    def unlock(self, instance: objects.Instance) -> None:
        """QEMU can open the encrypted ones that a guest with saved memory has: libvirt may have been started again
        since. VolumeUnsupported."""
        for volume in _attached(instance.volumes):
            self._secrets.keep(volume)

    def coming(self, instance: objects.Instance) -> list[AttachedVolume]:
        """Those that are attached to this host for a guest that is on its way here. VolumeUnsupported."""
        found = [volume for one in instance.volumes if (volume := one.coming(self._libvirt.name)) is not None]
        self.check(found)
        return found

    def origins(self, instance: objects.Instance, which: Iterable[AttachedVolume]) -> dict[str, str]:
        """These, connected: {id: where QEMU finds it here}. VolumeUnsupported."""
        return {volume.volume_id: volumes.origin(self.connect(instance, volume), self._host.settings)
                for volume in which}

    def connect(self, instance: objects.Instance, volume: AttachedVolume) -> GuestVolume:
        """Once more: the same. VolumeUnsupported: this host doesn't get to it."""
        with self._turn(volume):
            path = self._open(volume)
            self._users[volume.volume_id].add(instance.uuid)
            self._paths[volume.volume_id] = path
        return GuestVolume(volume, path)

    def _open(self, volume: AttachedVolume) -> str | None:
        """Its path here, if it has any; QEMU can open it."""
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

    def disconnect(self, instance: objects.Instance, volume: AttachedVolume, path: str | None = None,
                   force: bool = False) -> None:
        """The server has no guest here that uses it; others may have, and keep it. ``path``: on this host, if it is
        known. VolumeFailed."""
        with self._turn(volume):
            users = self._users[volume.volume_id] - {instance.uuid}
            outside = volume.kind not in (None, volumes.RBD)
            if (outside or volume.encryption is not None) and not (volume.multiattach and (
                    users or self._is_of_another(instance.uuid, volume.volume_id))):
                if volume.encryption is not None:
                    self._secrets.forget(volume.volume_id)
                if outside:
                    self._bricks.disconnect(volume, self._paths.get(volume.volume_id) or path, force)
            self._users[volume.volume_id] = users
            if not users:
                del self._users[volume.volume_id]
                self._paths.pop(volume.volume_id, None)

    def replace(self, instance: objects.Instance, volume: AttachedVolume, new: AttachedVolume,
                path: str | None) -> None:
        """The guest has ``new`` in the place of the volume, which this host lets go of; ``path``: it was there."""
        self._paths[volume.volume_id] = path
        try:
            self.disconnect(instance, volume, path)
        except VolumeFailed as error:
            LOG.error('A volume stays connected to this host: %s', error, instance_uuid=instance.uuid)
        self._users[volume.volume_id] = self._users.pop(new.volume_id, {instance.uuid})
        self._paths[volume.volume_id] = self._paths.pop(new.volume_id, None)

    @contextlib.contextmanager
    def given_back(self, instance: objects.Instance, which: Iterable[AttachedVolume],
                   force: bool = False) -> Iterator[None]:
        """The server's guest, or these volumes of it, go inside; then those that are, or were last known to be,
        attached to this host are disconnected. VolumeFailed; ``force``: whatever becomes of what was written."""
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
                LOG.error('A volume stays connected to this host: %s', error, instance_uuid=instance.uuid)

    def extend(self, volume: AttachedVolume, path: str | None = None) -> int:
        """Bytes that guests can see of it now; ``path``: on this host, where it has any. QEMU makes a file or an image
        of Ceph as much larger as the header of an encrypted one. VolumeFailed: the host sees less than it has."""
        wanted = volume.size << 30
        if volume.kind in (volumes.RBD, NFS):
            return wanted
        found = self._bricks.extend(volume)
        if found is not None and found < wanted:
            raise VolumeFailed(act='extend', volume=volume.volume_id, host=self._libvirt.name,
                               reason=f'its device has {found} bytes')
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
    """Those that are attached to a host; the others are only reserved."""
    return [volume for volume in wanted if volume.kind is not None]


def sources(xml: str) -> dict[str, str | None]:
    """Id of a volume → its path on the host, of a domain."""
    found = {}
    for disk in ElementTree.fromstring(xml).iterfind('devices/disk'):
        name, source = VOLUMES.name(disk), disk.find('source')
        if name is not None and source is not None:
            found[name] = source.get('dev') or source.get('file')
    return found
