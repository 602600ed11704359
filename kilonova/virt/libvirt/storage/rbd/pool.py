"""The Ceph pool that contains servers' disks ([libvirt]images_type = rbd).

    pool = RbdPool(conf)
    pool.put('UUID_disk', path, 16 << 30)            # or: pool.clone('UUID_disk', pool.parent(image_id, url), 16 << 30)
    pool.own('UUID_disk', 'gpu1', RequestedDisk())   # record that the image is complete and belongs to host gpu1
    pool.keep('UUID_disk', move)                     # a snapshot, so that pool.go_back can undo the move
    pool.remove('UUID_disk')

A host never deletes an image that belongs to another host, because the server may already run on that host. All methods
that call Ceph raise errors.Unanswered if Ceph does not answer.
"""

from __future__ import annotations

import errno
import json
import re
import time
from dataclasses import dataclass
from urllib.parse import unquote

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.virt import command
from kilonova.virt.libvirt.domain.guest import PoolSource
from kilonova.virt.libvirt.storage.rbd.ceph import LONG, NAME, Ceph, PoolSpace, is_missing
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.host import DriverMisconfigured

LOG = logging.getLogger(__name__)

_MIB = 1 << 20
_KEY = 'kilonova'
_LOCATION = re.compile(r'rbd://([^/]+)/([^/]+)/([^/]+)/([^/]+)')
# Exit codes of rbd if this Ceph user may not read an image. The exit codes of rbd are errno values.
_REFUSED = errno.EPERM, errno.EACCES


@dataclass(frozen=True)
class RbdImageOwner:
    """The record of a disk's owner, stored in the metadata of the disk's RBD image.

    ``host`` is the host whose server has the disk. ``wish`` is the user's request for the disk. Another host reads it
    when it takes over the server.
    """

    host: str
    wish: RequestedDisk


@dataclass(frozen=True)
class Parent:
    """A snapshot that can be cloned as a disk. ``name`` has the form 'images/ID@snap'; ``virtual_size`` is in bytes."""

    name: str
    virtual_size: int


class RbdPool:
    """The client of one host for the Ceph pool [libvirt]images_rbd_pool, which stores disks of servers."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.libvirt
        self.name: str = options.images_rbd_pool
        self._ceph = Ceph(conf)
        self._retries, self._interval = options.rbd_destroy_volume_retries, options.rbd_destroy_volume_retry_interval

    def check(self) -> None:
        """Check the configuration and the pool when the compute service starts.

        Raises DriverMisconfigured if the configuration is invalid or the pool cannot be used, and errors.Unanswered if
        Ceph does not answer.
        """
        self._ceph.check()
        try:
            # A query for any image name raises an error if the pool cannot be opened. The image need not exist.
            self.size('kilonova')
            self.room()
        except command.CommandFailed as error:
            raise DriverMisconfigured(reason=f'[libvirt]images_rbd_pool {self.name} cannot be used: {error}') from error

    @property
    def id(self) -> str:
        """An id that is equal on two hosts if and only if they use the same pool."""
        return f'{self._ceph.cluster().fsid}/{self.name}'

    def source(self) -> PoolSource:
        """Return the monitors, the user and the secret with which QEMU connects to the pool."""
        return PoolSource(self._ceph.cluster().monitors, self._ceph.user, self._ceph.secret)

    def room(self) -> PoolSpace:
        """Return the total, used and free space of the pool."""
        return self._ceph.room()

    # -- images in the pool -------------------------------------------------------------------------------------------
    def path(self, image: str) -> str:
        """Return the name of an image together with its pool, as rbd expects it."""
        return f'{self.name}/{image}'

    def size(self, image: str) -> int | None:
        """Return the size of an image in bytes, as its guest sees it, or None if there is no such image."""
        try:
            return int(json.loads(self._ceph.rbd('info', '--format', 'json', self.path(image)))['size'])
        except command.CommandFailed as error:
            if is_missing(error):
                return None
            raise

    def used(self, image: str) -> int:
        """Return an upper bound, in bytes, of the data in an image and in the parent that the image was cloned from.

        Data of the parent that the image has overwritten are counted twice. The result is at most the image's size.
        """
        found = json.loads(self._ceph.rbd('info', '--format', 'json', self.path(image)))
        parent = found.get('parent')
        total = self._taken(self.path(image))
        if parent:
            total += self._taken(f'{parent["pool"]}/{parent["image"]}')
        return min(total, int(found['size']))

    def _taken(self, path: str) -> int:
        found = json.loads(self._ceph.rbd('du', '--format', 'json', path, limit=LONG))
        return sum(int(each['used_size']) for each in found['images'])

    def images_of(self, uuid: str) -> list[str]:
        """Return the names of a server's disks in the pool, such as 'disk.swap'. Reads the list of all images."""
        found = json.loads(self._ceph.rbd('ls', '--format', 'json', self.name))
        return sorted(name.partition('_')[2] for name in found if name.startswith(f'{uuid}_'))

    def put(self, image: str, path: str, size: int) -> None:
        """Create an image from the raw file ``path``, grown to ``size`` bytes. Replaces an existing image."""
        self.remove(image)
        self._ceph.rbd('import', '--no-progress', '--image-format', '2', path, self.path(image), limit=LONG)
        self.grow(image, size)

    def clone(self, image: str, parent: Parent, size: int) -> None:
        """Create an image as a clone of a snapshot, grown to ``size`` bytes. Replaces an existing image.

        The clone reads the snapshot's data until they are overwritten.
        """
        self.remove(image)
        self._ceph.rbd('clone', parent.name, self.path(image))
        self.grow(image, size)

    def grow(self, image: str, size: int) -> None:
        """Grow an image to ``size`` bytes.

        Do nothing if the image does not exist or already has this size. An image is never shrunk.
        """
        now = self.size(image)
        if now is not None and now < size:
            self._ceph.rbd('resize', '--no-progress', '--size', f'{-(-size // _MIB)}M', self.path(image), limit=LONG)

    def remove(self, image: str) -> None:
        """Delete an image and its snapshots. Do nothing if the image does not exist.

        An image that a client has open cannot be deleted. If a host dies, Ceph regards its guests as clients for
        another 30 s, so the deletion is tried again for a while. Raises errors.Unanswered if the image is still open
        afterwards.
        """
        left, was_purged = self._retries, False
        while True:
            try:
                self._ceph.quietly('rm', '--no-progress', self.path(image), limit=LONG)
                return
            except command.CommandFailed as error:
                if error.exit_code == errno.ENOTEMPTY and not was_purged:
                    self._ceph.quietly('snap', 'purge', '--no-progress', self.path(image), limit=LONG)
                    was_purged = True
                    continue
                if error.exit_code != errno.EBUSY:
                    raise
                if not left:
                    raise errors.Unanswered(
                        f'Ceph cannot delete {self.path(image)} now, because a client has it open'
                    ) from error
            LOG.warning(
                'Ceph image %s is still open in a client; %d more attempts to delete it', self.path(image), left
            )
            left -= 1
            time.sleep(self._interval)

    def parent(self, image_id: str, url: str) -> Parent | None:
        """Return the snapshot that ``url`` names, or None if the snapshot cannot be cloned.

        ``url`` is the location of an image's data, as the image service reports it. A snapshot cannot be cloned if it
        is in another cluster or if this Ceph user may not read it. Users may add locations to their images, so an RBD
        image is accepted only if its name is ``image_id``. Otherwise users could read other users' data.
        """
        found = _LOCATION.fullmatch(url)
        if found is None:
            return None
        fsid, *parts = map(unquote, found.groups())
        pool, image, snapshot = parts
        if fsid != self._ceph.cluster().fsid or image != image_id or not all(map(NAME.fullmatch, parts)):
            return None
        name = f'{pool}/{image}@{snapshot}'
        try:
            return Parent(name, int(json.loads(self._ceph.rbd('info', '--format', 'json', name))['size']))
        except command.CommandFailed as error:
            if error.exit_code != errno.ENOENT and error.exit_code not in _REFUSED:
                raise
            LOG.warning('Snapshot %s of an image cannot be cloned; the image is copied instead: %s', name, error)
            return None

    # -- the host that owns an image ----------------------------------------------------------------------------------
    def owner(self, image: str) -> RbdImageOwner | None:
        """Return the owner of an image. Return None if the image does not exist or is incomplete."""
        try:
            values = json.loads(self._ceph.rbd('image-meta', 'get', self.path(image), _KEY))
        except command.CommandFailed as error:
            if is_missing(error):
                return None
            raise
        return RbdImageOwner(values['host'], RequestedDisk.from_dict(values['wish']))

    def own(self, image: str, host: str, wish: RequestedDisk) -> None:
        """Record that an image is complete and belongs to ``host``. ``wish`` is the user's request for this disk."""
        self._ceph.quietly(
            'image-meta', 'set', self.path(image), _KEY, json.dumps({'host': host, 'wish': wish.to_dict()})
        )

    # -- snapshots of images ------------------------------------------------------------------------------------------
    def keep(self, image: str, snapshot: str) -> None:
        """Create a snapshot of an image. Do nothing if a snapshot of this name exists."""
        self._ceph.quietly('snap', 'create', '--no-progress', self._kept(image, snapshot), fine=errno.EEXIST)

    def go_back(self, image: str, snapshot: str) -> None:
        """Roll an image back to a snapshot. Do nothing if the snapshot does not exist."""
        self._ceph.quietly('snap', 'rollback', '--no-progress', self._kept(image, snapshot), limit=LONG)

    def forget(self, image: str, snapshot: str) -> None:
        """Delete a snapshot of an image. Do nothing if it does not exist."""
        self._ceph.quietly('snap', 'rm', '--no-progress', self._kept(image, snapshot), limit=LONG)

    def has_kept(self, image: str, snapshot: str) -> bool:
        """Return True if an image has this snapshot."""
        return self.size(f'{image}@{_KEY}_{snapshot}') is not None

    def _kept(self, image: str, snapshot: str) -> str:
        return f'{self.path(image)}@{_KEY}_{snapshot}'

    def kept(self, image: str, snapshot: str) -> str:
        """Return the name by which qemu-img opens a snapshot: rbd:<pool>/<image>@<snapshot>:id=…:conf=….

        After the name of the snapshot come the options of the Ceph client.
        """
        said = {'id': self._ceph.user, 'conf': self._ceph.conf, **self._ceph.limits()}
        return ':'.join(
            [f'rbd:{self._kept(image, snapshot)}', *(f'{name}={value}' for name, value in said.items() if value)]
        )


def image_of(uuid: str, name: str) -> str:
    """Return the name that a server's disk has in the pool: <uuid>_<name of the disk>."""
    return f'{uuid}_{name}'
