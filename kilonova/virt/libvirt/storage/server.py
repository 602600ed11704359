"""A server's disks: which ones its flavor and image ask for, made once, grown after a move.

    disks = ServerDisks(conf, cache, image_client.download)
    disks.plan(instance, image_meta)           # what the guest will see; changes nothing
    disks.create(instance, image_meta, …)      # makes it so
"""
from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import IO

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.clients.vendordata import Vendordata
from kilonova.virt.driver import DriverMisconfigured, GuestFailed, ImageFetch, ImageMeta
from kilonova.virt.guest_metadata import About
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.storage import asked as wishes
from kilonova.virt.libvirt.storage import configdrive, disk, layers
from kilonova.virt.libvirt.storage.asked import Wish
from kilonova.virt.libvirt.storage.cache import ImageCache, is_blank
from kilonova.virt.libvirt.storage.files import remove, remove_tree, used
from kilonova.virt.libvirt.storage.instance import (
    COMING,
    CONFIG,
    DISK,
    KEPT,
    KERNEL,
    RAMDISK,
    SWAP,
    InstanceDirectory,
)

LOG = logging.getLogger(__name__)

# The one that a flavor has.
EPHEMERAL = f'{wishes.EPHEMERAL}0'
_SERVER_DIRECTORY = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(_\w+)?')


class ServerDisks:
    """``driver.Disks``, and what the other parts need of servers' disks. ``fetch``: gets an image."""

    def __init__(self, conf: cfg.ConfigOpts, cache: ImageCache, fetch: ImageFetch | None) -> None:
        self._conf, self._cache, self._download = conf, cache, fetch or _no_images
        self._vendor = Vendordata(conf)
        self._allocates = conf.preallocate_images == 'space'
        self.drive = configdrive.Format(conf.config_drive_format, conf.mkisofs_cmd)
        images_type = conf.libvirt.images_type
        if images_type not in ('default', 'qcow2', 'raw', 'flat'):
            raise DriverMisconfigured(reason=f'[libvirt]images_type {images_type} is not served here')
        self.format = 'qcow2' if images_type == 'qcow2' or (
            images_type == 'default' and conf.use_cow_images) else 'raw'

    def check_storage(self) -> None:
        """DriverMisconfigured: the file system can't do what is asked of it."""
        path = self._conf.instances_path
        if self._allocates and not disk.allocates(path):
            raise DriverMisconfigured(reason=f"[DEFAULT]preallocate_images is 'space', and files below {path} can not "
                                             'be given room before they are written')

    def directory(self, uuid: str) -> InstanceDirectory:
        return InstanceDirectory(self._conf.instances_path, uuid)

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
        """All of a server's directories here; fine if there are none."""
        for path in self.own_directories(uuid):
            LOG.debug('Deleting instance files %s', path, instance_uuid=uuid)
            if remove_tree(path):
                LOG.info('Deletion of %s complete', path, instance_uuid=uuid)

    # -- what the guest sees -------------------------------------------------------------------------

    def plan(self, instance: objects.Instance, image_meta: ImageMeta,
             asked: Mapping[str, Wish] | None = None) -> tuple[GuestDisk, ...]:
        """The disks of a server that is about to be built; ``asked`` None: what its directory keeps of that."""
        asked = self.directory(instance.uuid).asked() if asked is None else asked
        asked = self._with_drive(instance, image_meta, asked)
        root = () if instance.is_from_volume else (DISK,)
        wanted = dict.fromkeys((*root, *self._blanks(instance, image_meta, asked)), self.format)
        if configdrive.required(self._conf, instance, image_meta):
            wanted[CONFIG] = 'raw'
        return _guest_disks(self.directory(instance.uuid), wanted, asked)

    def present(self, instance: objects.Instance) -> tuple[GuestDisk, ...]:
        """The disks that a server has here; GuestFailed if its root disk isn't among them and is no volume."""
        directory = self.directory(instance.uuid)
        found = disks_in(directory)
        if not instance.is_from_volume and (not found or found[0].path != directory.file(DISK)):
            raise GuestFailed(act='define', uuid=instance.uuid, reason='its root disk is not on this host')
        return found

    def root_bytes(self, uuid: str) -> int:
        """What one file of the root disk and all that it reads from takes at most."""
        directory = self.directory(uuid)
        found = directory.disks()
        header, total = found[DISK], used(directory.file(DISK))
        size = header.virtual_size
        while header.backing and os.path.exists(header.backing):
            total += used(header.backing)
            name = os.path.basename(header.backing)
            header = found[name] if name in found else disk.DiskFile('raw', 0)
        return min(total, size)

    def kernel(self, instance: objects.Instance) -> tuple[str | None, str | None]:
        """The files of a server's own kernel and ramdisk. They stand beside its disks, and go with them."""
        directory, wanted = self.directory(instance.uuid), _kernels(instance)
        kernel, ramdisk = (directory.file(name) if name in wanted else None for name in (KERNEL, RAMDISK))
        return kernel, ramdisk

    # -- making them ---------------------------------------------------------------------------------

    def create(self, instance: objects.Instance, image_meta: ImageMeta, *, admin_password: str | None = None,
               files: Sequence[tuple[str, str]] = (), asked: Mapping[str, Wish] | None = None,
               keep_ephemeral: bool = False) -> None:
        """All disks of a new server, replacing what an earlier try or a rebuilt server left. ``asked`` None: what the
        directory keeps of that; ``keep_ephemeral``: those that there are stay."""
        directory = self.directory(instance.uuid)
        most = instance.flavor.root_gb * disk.GIB or None
        base = None if instance.is_from_volume else self._image(instance, image_meta, most)
        self.begin(instance.uuid)
        self._add_kernels(instance, directory, again=True)
        directory.keep_asked(self._with_drive(instance, image_meta, directory.asked() if asked is None else asked))
        if base is not None:
            self._make(directory, DISK, base, most or base.virtual_size)
        _drop_others(directory, keep_ephemeral)
        self._add_blanks(instance, image_meta, directory)
        if configdrive.required(self._conf, instance, image_meta):
            self.build_drive(directory.file(CONFIG), instance, admin_password, files)
            directory.record(CONFIG, 'raw')
        else:
            remove(directory.file(CONFIG))
            directory.forget(CONFIG)

    def begin(self, uuid: str) -> None:
        """The server's directory, which is made before its domain."""
        directory = self.directory(uuid)
        directory.create()
        directory.own(self._conf.host)

    def build_drive(self, path: str, instance: objects.Instance, admin_password: str | None = None,
                    files: Sequence[tuple[str, str]] = ()) -> None:
        """A config drive of a server; VendordataFailed, ConfigDriveFailed."""
        about = About.of(instance, self._conf.api.dhcp_domain, self._conf.default_availability_zone)
        configdrive.build(path, configdrive.content(about, self._vendor, admin_password=admin_password, files=files),
                          self.drive)

    def _with_drive(self, instance: objects.Instance, image_meta: ImageMeta,
                    asked: Mapping[str, Wish]) -> dict[str, Wish]:
        """What was asked for, and what the config drive is: hosts may make others, and the guest keeps its own."""
        found = {name: wish for name, wish in asked.items() if name != CONFIG}
        if self.drive.device != 'cdrom' and configdrive.required(self._conf, instance, image_meta):
            found[CONFIG] = Wish(device=self.drive.device)
        return found

    def fetch(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Have all at hand that ``create`` takes from the image service, checked."""
        if not instance.is_from_volume:
            self._image(instance, image_meta, instance.flavor.root_gb * disk.GIB or None)
        for image_id in _kernels(instance).values():
            self._cache.kernel(image_id, self._download)

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Have the image at hand that a server's root disk reads from, if it is kept so here."""
        if self.format == 'qcow2' and not instance.is_from_volume:
            self._image(instance, image_meta)

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        return self._cache.clean(_bases_in_use(self._conf.instances_path, self._cache.directory), min_age)

    def grow(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Bring the disks of a server that has moved to what its flavor has now; nothing shrinks."""
        directory = self.directory(instance.uuid)
        formats, kept = directory.formats(), directory.asked()
        for name, size in ((DISK, instance.flavor.root_gb), (EPHEMERAL, instance.flavor.ephemeral_gb)):
            # An ephemeral disk of the size that was asked for stays so.
            if name in formats and size and not (name == EPHEMERAL and name in kept):
                disk.grow(directory.file(name), formats[name], size * disk.GIB)
        self._add_blanks(instance, image_meta, directory)
        for name, found in directory.disks().items():
            # A copy has its holes again. A layer is written no more.
            if name != CONFIG and not layers.is_layer(name):
                self.allocate(directory.file(name), found.virtual_size)

    def ensure_bases(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Make again what the guest starts from and its overlays read from, should it have been cleared away."""
        directory = self.directory(instance.uuid)
        self._add_kernels(instance, directory)
        for name, found in directory.disks().items():
            if not found.backing or os.path.exists(found.backing):
                continue
            if layers.origin(name) == DISK and _is_image(instance, found.backing):
                self._image(instance, image_meta)
            elif layers.origin(name) != DISK and is_blank(found.backing):
                _blank(self._cache, os.path.basename(found.backing))
            else:
                raise GuestFailed(act='start', uuid=instance.uuid, reason=f'{found.backing} is missing')

    def _add_kernels(self, instance: objects.Instance, directory: InstanceDirectory, again: bool = False) -> None:
        """Kernel and ramdisk that the directory doesn't have; ``again``: those that it has, too."""
        if again:
            for name in {KERNEL, RAMDISK} - _kernels(instance).keys():
                remove(directory.file(name))
        for name, image_id in _kernels(instance).items():
            if again or not os.path.exists(directory.file(name)):
                path = self._cache.kernel(image_id, self._download)
                disk.create_copy(directory.file(name), disk.Base(path, 'raw', 0), 0)

    def _add_blanks(self, instance: objects.Instance, image_meta: ImageMeta, directory: InstanceDirectory) -> None:
        """Ephemeral and swap disks that the server shall have and the directory doesn't."""
        present = directory.disks()
        for name, (base_name, size) in self._blanks(instance, image_meta, directory.asked()).items():
            if name not in present or (name == SWAP and present[name].virtual_size < size):
                self._make(directory, name, _blank(self._cache, base_name), size)

    def _blanks(self, instance: objects.Instance, image_meta: ImageMeta,
                asked: Mapping[str, Wish]) -> dict[str, tuple[str, int]]:
        """Name of the disk → (name of its formatted base, bytes): those asked for, else the flavor's."""
        flavor = instance.flavor
        file_system = self._conf.default_ephemeral_format or (
            'vfat' if (image_meta.get('properties') or {}).get('os_type') == 'windows' else 'ext4')
        wanted = wishes.ephemerals(asked)
        if not wanted and flavor.ephemeral_gb:
            wanted = {EPHEMERAL: Wish(size=flavor.ephemeral_gb)}
        found = {}
        for name, wish in wanted.items():
            number = name.removeprefix(wishes.EPHEMERAL)
            base = f'ephemeral_{wish.size}_{wish.file_system or file_system}' + (f'_{number}' if number != '0' else '')
            found[name] = base, (wish.size or 0) * disk.GIB
        swap = wishes.swap_mb(asked, flavor)
        if swap:
            found[SWAP] = f'swap_{swap}', swap * disk.MIB
        return found

    def _make(self, directory: InstanceDirectory, name: str, base: disk.Base, size: int) -> None:
        make = disk.create_overlay if self.format == 'qcow2' else disk.create_copy
        make(directory.file(name), base, size)
        directory.record(name, self.format)
        self.allocate(directory.file(name), size)

    def allocate(self, path: str, size: int) -> None:
        """Room for all of a disk, where [DEFAULT]preallocate_images says so. errors.NoRoom."""
        if self._allocates:
            disk.allocate(path, size)

    def _image(self, instance: objects.Instance, image_meta: ImageMeta, most: int | None = None) -> disk.Base:
        # A server may be built from another image than the one that it was created from: what was shelved of it.
        return self._cache.image(image_meta.get('id') or instance.image_ref, image_meta, self._download, most)


def _no_images(image_id: str, target: IO[bytes]) -> object:
    raise DriverMisconfigured(reason='there is no image client to fetch images with')


def disks_in(directory: InstanceDirectory) -> tuple[GuestDisk, ...]:
    """The disks that are there of a server, whichever they are."""
    formats = {name: format_ for name, format_ in directory.formats().items() if os.path.exists(directory.file(name))}
    return _guest_disks(directory, formats, directory.asked())


def _guest_disks(directory: InstanceDirectory, formats: dict[str, str],
                 asked: Mapping[str, Wish]) -> tuple[GuestDisk, ...]:
    ranked = {name: rank for name in formats if (rank := wishes.rank(name)) is not None}
    found = []
    for name in sorted(ranked, key=ranked.__getitem__):
        wish = asked.get(name, Wish())
        found.append(GuestDisk(directory.file(name), formats[name],
                               wish.device or ('cdrom' if name == CONFIG else 'disk'), wish.bus, wish.tag))
    return tuple(found)


def _bases_in_use(path: str, bases: str) -> set[str]:
    """Names of the files that any disk below ``path`` reads from, ``bases`` aside: of other hosts' servers too, where
    they share it. By name, as the same directory may have another path there."""
    found: set[str] = set()
    with os.scandir(path) as entries:
        directories = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in directories:
        if directory == bases:
            continue
        # A server that is deleted meanwhile reads from nothing any more.
        with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    found.update(filter(None, [_base_of(entry.path)]))
    return found


def _base_of(path: str) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return os.path.basename(disk.reads_from(path) or '') or None
    return None


def _drop_others(directory: InstanceDirectory, keep_ephemeral: bool) -> None:
    """Ephemeral and swap disks go, to be made anew, and layers of disks."""
    for name in directory.formats():
        kept = keep_ephemeral and layers.origin(name).startswith(wishes.EPHEMERAL)
        if name not in (DISK, CONFIG) and not kept:
            remove(directory.file(name))
            directory.forget(name)


def _kernels(instance: objects.Instance) -> dict[str, str]:
    """Name of the file → id of the image."""
    wanted = {KERNEL: getattr(instance, 'kernel_id', None), RAMDISK: getattr(instance, 'ramdisk_id', None)}
    return {name: image_id for name, image_id in wanted.items() if image_id}


def _is_image(instance: objects.Instance, backing: str) -> bool:
    image_id = instance.image_ref or ''
    return os.path.basename(backing) == hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()


def _blank(cache: ImageCache, name: str) -> disk.Base:
    """The formatted base that the name tells of."""
    kind, _, rest = name.partition('_')
    if kind == 'swap':
        return cache.blank(name, int(rest) * disk.MIB, 'mkswap', '-q')
    size, file_system, number = [*rest.split('_'), '0'][:3]
    label = '-n' if file_system == 'vfat' else '-L'
    quiet = () if file_system == 'vfat' else ('-q',)
    return cache.blank(name, int(size) * disk.GIB, 'mkfs', '-t', file_system, *quiet, label, f'ephemeral{number}')
