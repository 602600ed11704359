"""The pool of Ceph that servers' disks are in ([libvirt]images_type = rbd).

    pool = Pool(conf)
    pool.put('UUID_disk', path, 16 << 30)            # or: pool.clone('UUID_disk', pool.parent(image_id, url), 16 << 30)
    pool.own('UUID_disk', 'gpu1', Wish())            # it is whole now, and that host's
    pool.keep('UUID_disk', move)                     # a move begins: pool.go_back(…) or pool.forget(…) ends it
    pool.remove('UUID_disk')

A host deletes no image that says that it is another's: a server may run elsewhere by now. errors.Unanswered where Ceph
is silent.
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
from kilonova.virt.libvirt.storage.asked import Wish
from kilonova.virt.libvirt.storage.ceph import LONG, NAME, Ceph, Room, is_missing
from kilonova.virt.parts.host import DriverMisconfigured

LOG = logging.getLogger(__name__)

_MIB = 1 << 20
_KEY = 'kilonova'
_LOCATION = re.compile(r'rbd://([^/]+)/([^/]+)/([^/]+)/([^/]+)')
# Exit codes of rbd are those of errno.
_REFUSED = errno.EPERM, errno.EACCES


@dataclass(frozen=True)
class Owner:
    """What an image says of itself: whose it is, and what its user asked of that disk."""

    host: str
    wish: Wish


@dataclass(frozen=True)
class Parent:
    """A snapshot that disks can be clones of: 'images/ID@snap', and its bytes."""

    name: str
    virtual_size: int


class Pool:
    """[libvirt]images_rbd_pool."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        options = conf.libvirt
        self.name: str = options.images_rbd_pool
        self._ceph = Ceph(conf)
        self._retries, self._interval = options.rbd_destroy_volume_retries, options.rbd_destroy_volume_retry_interval

    def check(self) -> None:
        """DriverMisconfigured, before the compute starts; errors.Unanswered."""
        self._ceph.check()
        try:
            self.size('kilonova')       # any: its pool is opened
            self.room()
        except command.CommandFailed as error:
            raise DriverMisconfigured(
                reason=f'[libvirt]images_rbd_pool {self.name} can not be used: {error}') from error

    @property
    def id(self) -> str:
        """Equal on two hosts if and only if it is the same pool."""
        return f'{self._ceph.cluster().fsid}/{self.name}'

    def source(self) -> PoolSource:
        """How QEMU gets there."""
        return PoolSource(self._ceph.cluster().monitors, self._ceph.user, self._ceph.secret)

    def room(self) -> Room:
        return self._ceph.room()

    # -- images -------------------------------------------------------------------------------------------------------
    def path(self, image: str) -> str:
        return f'{self.name}/{image}'

    def size(self, image: str) -> int | None:
        """Bytes that its guest sees; None: there is none."""
        try:
            return int(json.loads(self._ceph.rbd('info', '--format', 'json', self.path(image)))['size'])
        except command.CommandFailed as error:
            if is_missing(error):
                return None
            raise

    def used(self, image: str) -> int:
        """Bytes that it takes at most with all that it reads from."""
        found = json.loads(self._ceph.rbd('info', '--format', 'json', self.path(image)))
        parent = found.get('parent')
        total = self._taken(self.path(image))
        if parent:
            total += self._taken(f"{parent['pool']}/{parent['image']}")
        return min(total, int(found['size']))

    def _taken(self, path: str) -> int:
        found = json.loads(self._ceph.rbd('du', '--format', 'json', path, limit=LONG))
        return sum(int(each['used_size']) for each in found['images'])

    def images_of(self, uuid: str) -> list[str]:
        """Names of a server's disks, by those of all images in the pool."""
        found = json.loads(self._ceph.rbd('ls', '--format', 'json', self.name))
        return sorted(name.partition('_')[2] for name in found if name.startswith(f'{uuid}_'))

    def put(self, image: str, path: str, size: int) -> None:
        """A new image of a raw file, grown to ``size`` bytes; what had the name goes."""
        self.remove(image)
        self._ceph.rbd('import', '--no-progress', '--image-format', '2', path, self.path(image), limit=LONG)
        self.grow(image, size)

    def clone(self, image: str, parent: Parent, size: int) -> None:
        """The same of a snapshot, whose data it reads until they are overwritten."""
        self.remove(image)
        self._ceph.rbd('clone', parent.name, self.path(image))
        self.grow(image, size)

    def grow(self, image: str, size: int) -> None:
        """Nothing shrinks."""
        now = self.size(image)
        if now is not None and now < size:
            self._ceph.rbd('resize', '--no-progress', '--size', f'{-(-size // _MIB)}M', self.path(image), limit=LONG)

    def remove(self, image: str) -> None:
        """With its snapshots; fine if it has gone. One that somebody has open is tried again for a while (the guest of
        a host that has just died counts for 30 s); errors.Unanswered then."""
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
                    raise errors.Unanswered(who='Ceph', reason=f'{self.path(image)} is still open somewhere') from error
            LOG.warning('%s is still open somewhere; %d more tries', self.path(image), left)
            left -= 1
            time.sleep(self._interval)

    def parent(self, image_id: str, url: str) -> Parent | None:
        """What the image service says of where an image is; None: not in this cluster, or out of this user's reach.
        Users may add locations to their images: what doesn't have the image's name isn't theirs to read."""
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
            LOG.warning('%s can not be cloned, it is copied: %s', name, error)
            return None

    # -- whose it is --------------------------------------------------------------------------------------------------
    def owner(self, image: str) -> Owner | None:
        """None: there is no such image, or it never became whole."""
        try:
            values = json.loads(self._ceph.rbd('image-meta', 'get', self.path(image), _KEY))
        except command.CommandFailed as error:
            if is_missing(error):
                return None
            raise
        return Owner(values['host'], Wish.from_dict(values['wish']))

    def own(self, image: str, host: str, wish: Wish) -> None:
        """It is whole, and that host's."""
        self._ceph.quietly('image-meta', 'set', self.path(image), _KEY,
                      json.dumps({'host': host, 'wish': wish.to_dict()}))

    # -- snapshots ----------------------------------------------------------------------------------------------------
    def keep(self, image: str, snapshot: str) -> None:
        """What it is now; of the same name once only."""
        self._ceph.quietly('snap', 'create', '--no-progress', self._kept(image, snapshot), fine=errno.EEXIST)

    def go_back(self, image: str, snapshot: str) -> None:
        """To what was kept; nothing is done where nothing was."""
        self._ceph.quietly('snap', 'rollback', '--no-progress', self._kept(image, snapshot), limit=LONG)

    def forget(self, image: str, snapshot: str) -> None:
        """What was kept."""
        self._ceph.quietly('snap', 'rm', '--no-progress', self._kept(image, snapshot), limit=LONG)

    def has_kept(self, image: str, snapshot: str) -> bool:
        return self.size(f'{image}@{_KEY}_{snapshot}') is not None

    def _kept(self, image: str, snapshot: str) -> str:
        return f'{self.path(image)}@{_KEY}_{snapshot}'

    def kept(self, image: str, snapshot: str) -> str:
        """What qemu-img calls it."""
        said = {'id': self._ceph.user, 'conf': self._ceph.conf, **self._ceph.limits()}
        return ':'.join([f'rbd:{self._kept(image, snapshot)}',
                         *(f'{name}={value}' for name, value in said.items() if value)])

def image_of(uuid: str, name: str) -> str:
    """What a server's disk is called there."""
    return f'{uuid}_{name}'
