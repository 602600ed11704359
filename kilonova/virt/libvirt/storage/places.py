"""Where servers' disks are, and whose: files of their directories, or images in a pool; disk.info there says which.

    places.at(uuid, 'disk.swap', 'rbd')         # GuestDisk
    places.remove(uuid)                         # all that this host has of a server
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
from kilonova.virt.libvirt.storage import asked as wishes
from kilonova.virt.libvirt.storage import disk
from kilonova.virt.libvirt.storage.asked import Wish
from kilonova.virt.libvirt.storage.ceph import Room
from kilonova.virt.libvirt.storage.files import remove, remove_tree
from kilonova.virt.libvirt.storage.instance import COMING, CONFIG, DISK, KEPT, RBD, InstanceDirectory
from kilonova.virt.libvirt.storage.pool import Owner, Parent, Pool, image_of
from kilonova.virt.parts.guests import GuestFailed

LOG = logging.getLogger(__name__)

_SERVER_DIRECTORY = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_\w+)?')


class DiskPlaces:
    """Of one host. ``format``: of the disks that it makes."""

    def __init__(self, conf: cfg.ConfigOpts, format_: str, pool: Pool) -> None:
        self._conf, self.format, self.pool = conf, format_, pool

    def room(self) -> Room:
        """Of the disks: the pool's, or the file system's."""
        if self.format == RBD:
            return self.pool.room()
        found = shutil.disk_usage(self._conf.instances_path)
        return Room(found.total, found.used, found.free)

    def directory(self, uuid: str) -> InstanceDirectory:
        return InstanceDirectory(self._conf.instances_path, uuid)

    def begin(self, uuid: str) -> None:
        """The server's directory, which is made before its domain."""
        directory = self.directory(uuid)
        directory.create()
        directory.own(self._conf.host)

    def list_directories(self) -> list[str]:
        path = self._conf.instances_path
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries
                          if _SERVER_DIRECTORY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                          and InstanceDirectory(path, entry.name).is_of(self._conf.host))

    def own_directories(self, uuid: str) -> list[str]:
        """Where a server's files may be, less what is another host's: they may share their storage."""
        found = (InstanceDirectory(self._conf.instances_path, uuid, suffix) for suffix in ('', KEPT, COMING))
        return [each.path for each in found if each.is_of(self._conf.host)]

    def remove(self, uuid: str) -> None:
        """All that a server has here; fine if it has nothing."""
        pooled = {name for path in self.own_directories(uuid)
                  for name in InstanceDirectory(self._conf.instances_path, os.path.basename(path)).pooled()}
        for name in sorted(pooled):
            image = image_of(uuid, name)
            owner = self.pool.owner(image)
            if owner is None or owner.host == self._conf.host:
                self.pool.remove(image)
        self.remove_directories(uuid)

    def remove_directories(self, uuid: str) -> None:
        """Those of a server that has what is in the pool elsewhere."""
        for path in self.own_directories(uuid):
            LOG.debug('Deleting instance files %s', path, instance_uuid=uuid)
            if remove_tree(path):
                LOG.info('Deletion of %s complete', path, instance_uuid=uuid)

    def own(self, uuid: str, host: str | None = None) -> None:
        """All of it belongs to this host, or another."""
        directory = self.directory(uuid)
        directory.own(host or self._conf.host)
        asked = directory.asked()
        for name in directory.pooled():
            self.pool.own(image_of(uuid, name), host or self._conf.host, asked.get(name, Wish()))

    def there(self, uuid: str) -> tuple[GuestDisk, ...]:
        """The disks that there are of a server, whichever they are."""
        directory = self.directory(uuid)
        formats = {name: format_ for name, format_ in directory.formats().items()
                   if format_ == RBD or os.path.exists(directory.file(name))}
        return self.guest_disks(uuid, formats, directory.asked())

    def present(self, instance: objects.Instance) -> tuple[GuestDisk, ...]:
        """The disks that a server has here; GuestFailed if its root disk isn't among them and is no volume."""
        found = self.there(instance.uuid)
        if not instance.is_from_volume and (not found or found[0].name != DISK):
            raise GuestFailed(act='define', uuid=instance.uuid, reason='its root disk is not on this host')
        return found

    def at(self, uuid: str, name: str, format_: str, device: str = 'disk', bus: str | None = None,
           tag: str | None = None) -> GuestDisk:
        """A server's disk of that name and format."""
        if format_ == RBD:
            return GuestDisk(self.pool.path(image_of(uuid, name)), 'raw', device, bus, tag, pool=self.pool.source())
        return GuestDisk(self.directory(uuid).file(name), format_, device, bus, tag)

    def guest_disks(self, uuid: str, formats: Mapping[str, str], asked: Mapping[str, Wish]) -> tuple[GuestDisk, ...]:
        ranked = {name: rank for name in formats if (rank := wishes.rank(name)) is not None}
        found = []
        for name in sorted(ranked, key=ranked.__getitem__):
            wish = asked.get(name, Wish())
            found.append(self.at(uuid, name, formats[name], wish.device or ('cdrom' if name == CONFIG else 'disk'),
                                 wish.bus, wish.tag))
        return tuple(found)

    def drop(self, uuid: str, name: str) -> None:
        """A disk goes; fine if there is none."""
        directory = self.directory(uuid)
        if name in directory.pooled():
            self.pool.remove(image_of(uuid, name))
        remove(directory.file(name))
        directory.forget(name)

    def put(self, uuid: str, name: str, base: disk.Base | Parent, size: int) -> None:
        """An image in the pool. It is noted before it is made: whoever deletes the server finds it."""
        directory, image = self.directory(uuid), image_of(uuid, name)
        directory.record(name, RBD)
        if isinstance(base, Parent):
            self.pool.clone(image, base, size)
        else:
            self.pool.put(image, base.path, size)
        self.pool.own(image, self._conf.host, directory.asked().get(name, Wish()))

    # -- of a dead host -----------------------------------------------------------------------------------------------
    def take_over(self, instance: objects.Instance, source: str) -> bool:
        """As ``parts.moves.Moves.take_over`` has it."""
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
        directory.keep_asked({name: owner.wish for name, owner in found.items() if owner.wish != Wish()})
        for name in found:
            directory.record(name, RBD)
        directory.take_from(source)
        self.own(instance.uuid)
        return True

    def hand_back(self, uuid: str, source: str) -> None:
        """Undo of that; what only this host sees goes."""
        self.own(uuid, source)
        directory = self.directory(uuid)
        directory.take_from(None)
        if not identity.run_of(self._conf.instances_path, source):
            remove_tree(directory.path)

    def _of_host(self, uuid: str, host: str) -> dict[str, Owner]:
        """The disks in the pool that are a host's, whole."""
        owners = {name: self.pool.owner(image_of(uuid, name)) for name in self.pool.images_of(uuid)}
        return {name: owner for name, owner in owners.items() if owner is not None and owner.host == host}
