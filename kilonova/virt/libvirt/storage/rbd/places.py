"""Locations and owners of servers' disks. A disk is a file in its server's directory or an image in a Ceph pool.

    places.at(uuid, 'disk.swap', 'rbd')         # GuestDisk
    places.remove(uuid)                         # delete all disks and files of a server on this host

The file disk.info in the server's directory records for each disk whether it is a file or an image. Other parts of the
driver use the class ``ServerDisks``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.virt import identity
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.storage import disk
from kilonova.virt.libvirt.storage import requested_disks as wishes
from kilonova.virt.libvirt.storage.files import remove, remove_tree
from kilonova.virt.libvirt.storage.instance import COMING, CONFIG, DISK, KEPT, RBD, InstanceDirectory
from kilonova.virt.libvirt.storage.rbd.ceph import PoolSpace
from kilonova.virt.libvirt.storage.rbd.pool import Parent, RbdImageOwner, RbdPool, image_of
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)

_SERVER_DIRECTORY = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_\w+)?')


class DiskPlaces:
    """The locations of all servers' disks on one host. ``format`` is the format of new disks."""

    def __init__(self, conf: cfg.ConfigOpts, format_: str, pool: RbdPool) -> None:
        self._conf, self.format, self.pool = conf, format_, pool

    def room(self) -> PoolSpace:
        """Return the total, used and free space for servers' disks, in the pool or in the file system."""
        if self.format == RBD:
            return self.pool.room()
        found = shutil.disk_usage(self._conf.instances_path)
        return PoolSpace(found.total, found.used, found.free)

    def directory(self, uuid: str) -> InstanceDirectory:
        """Return the directory of a server, which need not exist."""
        return InstanceDirectory(self._conf.instances_path, uuid)

    def begin(self, uuid: str) -> None:
        """Create the server's directory and record this host as its owner.

        This must be done before the server's domain is defined.
        """
        directory = self.directory(uuid)
        directory.create()
        directory.own(self._conf.host)

    def list_directories(self) -> list[str]:
        """Return the names of the server directories that belong to this host, sorted."""
        path = self._conf.instances_path
        with os.scandir(path) as entries:
            return sorted(
                entry.name
                for entry in entries
                if _SERVER_DIRECTORY.fullmatch(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and InstanceDirectory(path, entry.name).is_of(self._conf.host)
            )

    def own_directories(self, uuid: str) -> list[str]:
        """Return the paths of the directories on this host in which a server may have files, even if they don't exist.

        On shared storage, a directory that records another host as its owner is left out.
        """
        found = (InstanceDirectory(self._conf.instances_path, uuid, suffix) for suffix in ('', KEPT, COMING))
        return [each.path for each in found if each.is_of(self._conf.host)]

    def remove(self, uuid: str) -> None:
        """Delete all disks and files that a server has on this host. Do nothing if it has none."""
        pooled = {
            name
            for path in self.own_directories(uuid)
            for name in InstanceDirectory(self._conf.instances_path, os.path.basename(path)).pooled()
        }
        for name in sorted(pooled):
            image = image_of(uuid, name)
            owner = self.pool.owner(image)
            if owner is None or owner.host == self._conf.host:
                self.pool.remove(image)
        self.remove_directories(uuid)

    def remove_directories(self, uuid: str) -> None:
        """Delete a server's directories on this host, but not its images in the pool, which another host uses now."""
        for path in self.own_directories(uuid):
            LOG.debug('Deleting instance files %s', path, instance_uuid=uuid)
            if remove_tree(path):
                LOG.info('Deletion of %s complete', path, instance_uuid=uuid)

    def own(self, uuid: str, host: str | None = None) -> None:
        """Record ``host`` (default: this host) as the owner of a server's directory and of its images in the pool."""
        directory = self.directory(uuid)
        directory.own(host or self._conf.host)
        asked = directory.asked()
        for name in directory.pooled():
            self.pool.own(image_of(uuid, name), host or self._conf.host, asked.get(name, RequestedDisk()))

    def there(self, uuid: str) -> tuple[GuestDisk, ...]:
        """Return the disks of a server that exist on this host, possibly none."""
        directory = self.directory(uuid)
        formats = {
            name: format_
            for name, format_ in directory.formats().items()
            if format_ == RBD or os.path.exists(directory.file(name))
        }
        return self.guest_disks(uuid, formats, directory.asked())

    def present(self, instance: objects.Instance) -> tuple[GuestDisk, ...]:
        """Return the disks of a server that exist on this host, and check that the server can be started with them.

        Raises GuestFailed if the root disk is missing and the server does not boot from a volume.
        """
        found = self.there(instance.uuid)
        if not instance.is_from_volume and (not found or found[0].name != DISK):
            raise GuestFailed(act='define', uuid=instance.uuid, reason='the root disk is not on this host')
        return found

    def at(
        self, uuid: str, name: str, format_: str, device: str = 'disk', bus: str | None = None, tag: str | None = None
    ) -> GuestDisk:
        """Return a server's disk with this name and format as a GuestDisk. Does not check that the disk exists."""
        if format_ == RBD:
            return GuestDisk(self.pool.path(image_of(uuid, name)), 'raw', device, bus, tag, pool=self.pool.source())
        return GuestDisk(self.directory(uuid).file(name), format_, device, bus, tag)

    def guest_disks(
        self, uuid: str, formats: Mapping[str, str], asked: Mapping[str, RequestedDisk]
    ) -> tuple[GuestDisk, ...]:
        """Return the disks that ``formats`` names, in the order in which the guest sees them.

        ``asked`` gives the requested device type, bus and tag of each disk.
        """
        ranked = {name: rank for name in formats if (rank := wishes.rank(name)) is not None}
        found = []
        for name in sorted(ranked, key=ranked.__getitem__):
            wish = asked.get(name, RequestedDisk())
            found.append(
                self.at(
                    uuid,
                    name,
                    formats[name],
                    wish.device or ('cdrom' if name == CONFIG else 'disk'),
                    wish.bus,
                    wish.tag,
                )
            )
        return tuple(found)

    def drop(self, uuid: str, name: str) -> None:
        """Delete a server's disk and its record in disk.info. Do nothing if there is no such disk."""
        directory = self.directory(uuid)
        if name in directory.pooled():
            self.pool.remove(image_of(uuid, name))
        remove(directory.file(name))
        directory.forget(name)

    def put(self, uuid: str, name: str, base: disk.BaseFile | Parent, size: int) -> None:
        """Create a disk as an image in the pool, from a file or as a clone of a snapshot.

        The disk is recorded before the image is made, so that a later deletion of the server finds it.
        """
        directory, image = self.directory(uuid), image_of(uuid, name)
        directory.record(name, RBD)
        if isinstance(base, Parent):
            self.pool.clone(image, base, size)
        else:
            self.pool.put(image, base.path, size)
        self.pool.own(image, self._conf.host, directory.asked().get(name, RequestedDisk()))

    # -- taking over the disks of a dead host -------------------------------------------------------------------------
    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """Take over a server's disks from the dead host ``source``: record this host as their owner.

        Return False, without a change, if the disks are not on storage that this host can use.
        """
        directory = self.directory(instance.uuid)
        if directory.exists() and source in (directory.owner(), directory.taken_from()):
            directory.take_from(source)
            self.own(instance.uuid)
            return True
        if self.format != RBD:
            return False
        found = self._of_host(instance.uuid, source)
        if not found or not (instance.is_from_volume or DISK in found):
            return False
        directory.create()
        directory.keep_asked({name: owner.wish for name, owner in found.items() if owner.wish != RequestedDisk()})
        for name in found:
            directory.record(name, RBD)
        directory.take_from(source)
        self.own(instance.uuid)
        return True

    def hand_back(self, uuid: str, source: str) -> None:
        """Undo ``take_over`` on this host: record ``source`` as the owner of the disks again.

        If the server's directory is on shared storage, ``source`` uses it again. If only the Ceph pool is shared,
        ``take_over`` made the directory on this host, and it is deleted.
        """
        self.own(uuid, source)
        directory = self.directory(uuid)
        directory.take_from(None)
        if not identity.run_of(self._conf.instances_path, source):
            remove_tree(directory.path)

    def _of_host(self, uuid: str, host: str) -> dict[str, RbdImageOwner]:
        """Return a dict from disk name to owner record, for those images of a server whose recorded owner is ``host``.

        An image without an owner record is incomplete, so it is left out.
        """
        owners = {name: self.pool.owner(image_of(uuid, name)) for name in self.pool.images_of(uuid)}
        return {name: owner for name, owner in owners.items() if owner is not None and owner.host == host}
