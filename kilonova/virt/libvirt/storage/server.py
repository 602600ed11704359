"""A server's disks: which disks flavor and image require, their creation, and their growth after a move.

    disks = ServerDisks(conf, cache, image_client)
    disks.plan(instance, image_meta)           # the disks that the guest will see; changes nothing
    disks.create(instance, image_meta, …)      # creates them

The images that disks are made from come from the image cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import objects
from kilonova.clients.vendordata import Vendordata
from kilonova.conf.libvirt import IMAGE_TYPES
from kilonova.virt.guest_metadata import GuestFacts
from kilonova.virt.libvirt.domain.guest import GuestDisk
from kilonova.virt.libvirt.storage import configdrive, disk, layers
from kilonova.virt.libvirt.storage import requested_disks as wishes
from kilonova.virt.libvirt.storage.cache import ImageCache, is_blank
from kilonova.virt.libvirt.storage.files import remove, used
from kilonova.virt.libvirt.storage.instance import CONFIG, DISK, KERNEL, RAMDISK, RBD, SWAP, InstanceDirectory
from kilonova.virt.libvirt.storage.rbd.places import DiskPlaces
from kilonova.virt.libvirt.storage.rbd.pool import Parent, RbdPool, image_of
from kilonova.virt.libvirt.storage.requested_disks import RequestedDisk
from kilonova.virt.parts.disks import FlavorDiskSmallerThanImage, ImageMeta, ImageSource
from kilonova.virt.parts.guests import GuestFailed
from kilonova.virt.parts.host import DriverMisconfigured

LOG = logging.getLogger(__name__)

# The name of the ephemeral disk that a flavor defines.
EPHEMERAL = f'{wishes.EPHEMERAL}0'


class ServerDisks(DiskPlaces):
    """The disks of all servers on one host.

    This class implements ``parts.disks.Disks`` and is used by other parts of the driver.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, cache: ImageCache, images: ImageSource | None, pool: RbdPool | None = None
    ) -> None:
        super().__init__(conf, _format(conf), pool or RbdPool(conf))
        self._cache, self._images = cache, images
        self._download = images.download if images is not None else _no_images
        self._vendor = Vendordata(conf)
        self._allocates = conf.preallocate_images == 'space'
        self.drive = configdrive.Format(conf.config_drive_format, conf.mkisofs_cmd)

    def check_storage(self) -> None:
        """Check that the storage of servers' disks, a file system or a Ceph pool, supports the configured options.

        Raises DriverMisconfigured if it does not.
        """
        path = self._conf.instances_path
        if self.format == RBD:
            for option, is_set in (
                ("[DEFAULT]preallocate_images is 'space'", self._allocates),
                ('[DEFAULT]force_raw_images is off', not self._conf.force_raw_images),
                ('[libvirt]images_rbd_glance_store_name is set', bool(self._conf.libvirt.images_rbd_glance_store_name)),
            ):
                if is_set:
                    raise DriverMisconfigured(reason=f'{option}; this is not supported with [libvirt]images_type rbd')
            self.pool.check()
            return
        if self._allocates and not disk.allocates(path):
            raise DriverMisconfigured(
                reason="[DEFAULT]preallocate_images is 'space', but the file system of "
                f'{path} does not support preallocation (fallocate)'
            )

    def plan(
        self, instance: objects.Instance, image_meta: ImageMeta, asked: Mapping[str, RequestedDisk] | None = None
    ) -> tuple[GuestDisk, ...]:
        """Return the disks of a server that is about to be built.

        If ``asked`` is None, the requested disks are read from the server's directory.
        """
        asked = self.directory(instance.uuid).asked() if asked is None else asked
        asked = self._with_drive(instance, image_meta, asked)
        root = () if instance.is_from_volume else (DISK,)
        wanted = dict.fromkeys((*root, *self._blanks(instance, image_meta, asked)), self.format)
        if configdrive.required(self._conf, instance, image_meta):
            wanted[CONFIG] = RBD if self.format == RBD else 'raw'
        return self.guest_disks(instance.uuid, wanted, asked)

    def root_bytes(self, uuid: str) -> int:
        """Return an upper bound, in bytes, of the space that an image of the root disk takes without a backing file.

        It is the space that the disk and its backing files take now, and at most the disk's virtual size.
        """
        directory = self.directory(uuid)
        if DISK in directory.pooled():
            return self.pool.used(image_of(uuid, DISK))
        found = directory.disks()
        header, total = found[DISK], used(directory.file(DISK))
        size = header.virtual_size
        while header.backing and os.path.exists(header.backing):
            total += used(header.backing)
            name = os.path.basename(header.backing)
            header = found[name] if name in found else disk.DiskFile('raw', 0)
        return min(total, size)

    def kernel(self, instance: objects.Instance) -> tuple[str | None, str | None]:
        """Return the paths of a server's own kernel and ramdisk. A path is None if the server has no such file.

        The files are in the server's directory and are deleted together with it.
        """
        directory, wanted = self.directory(instance.uuid), _kernels(instance)
        kernel, ramdisk = (directory.file(name) if name in wanted else None for name in (KERNEL, RAMDISK))
        return kernel, ramdisk

    # -- making and changing a server's disks --------------------------------------------------------

    def create(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        *,
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
        asked: Mapping[str, RequestedDisk] | None = None,
        keep_ephemeral: bool = False,
    ) -> None:
        """Create all disks of a server. Disks of an earlier try, or of the server before a rebuild, are replaced.

        ``asked`` are the disks that the user requested. If it is None, they are read from the server's directory. With
        ``keep_ephemeral``, existing ephemeral disks are kept.
        """
        directory = self.directory(instance.uuid)
        most = instance.flavor.root_gb * disk.GIB or None
        base = None if instance.is_from_volume else self._root(instance, image_meta, most)
        self.begin(instance.uuid)
        self._add_kernels(instance, directory, again=True)
        directory.keep_asked(self._with_drive(instance, image_meta, directory.asked() if asked is None else asked))
        if base is not None:
            self._make(instance.uuid, DISK, base, most or base.virtual_size)
        self._drop_others(instance.uuid, keep_ephemeral)
        self._add_blanks(instance, image_meta, directory)
        if configdrive.required(self._conf, instance, image_meta):
            self._begin_disk(instance.uuid, CONFIG)
            self.build_drive(CONFIG, instance, admin_password, files)
        else:
            self.drop(instance.uuid, CONFIG)

    def build_drive(
        self,
        name: str,
        instance: objects.Instance,
        admin_password: str | None = None,
        files: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Build a server's config drive as its disk ``name``.

        Raises VendordataFailed if the vendor data cannot be read, and ConfigDriveFailed if the drive cannot be built.
        """
        about = GuestFacts.of(instance, self._conf.api.dhcp_domain, self._conf.default_availability_zone)
        directory = self.directory(instance.uuid)
        path = directory.file(name)
        configdrive.build(
            path, configdrive.content(about, self._vendor, admin_password=admin_password, files=files), self.drive
        )
        if self.format == RBD:
            self.put(instance.uuid, name, disk.BaseFile(path, 'raw', 0), 0)
            remove(path)
        elif name == CONFIG:
            directory.record(name, 'raw')

    def _with_drive(
        self, instance: objects.Instance, image_meta: ImageMeta, asked: Mapping[str, RequestedDisk]
    ) -> dict[str, RequestedDisk]:
        """Return the requested disks, and in addition the device type of the config drive.

        The type is recorded because the guest must keep it after a move to a host that is configured for another type.
        """
        found = {name: wish for name, wish in asked.items() if name != CONFIG}
        if self.drive.device != 'cdrom' and configdrive.required(self._conf, instance, image_meta):
            found[CONFIG] = RequestedDisk(device=self.drive.device)
        return found

    def fetch(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Fetch and check all images that ``create`` needs, so that they are in the cache."""
        if not instance.is_from_volume:
            self._root(instance, image_meta, instance.flavor.root_gb * disk.GIB or None)
        for image_id in _kernels(instance).values():
            self._cache.kernel(image_id, self._download)

    def fetch_base(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Fetch the image that a server's root disk reads from, if root disks are qcow2 overlays on this host."""
        if self.format == 'qcow2' and not instance.is_from_volume:
            self._image(instance, image_meta)

    def clean_image_cache(self, min_age: float | None) -> list[str]:
        """Delete unused files of the image cache that are at least ``min_age`` seconds old. Return their names."""
        return self._cache.clean(_bases_in_use(self._conf.instances_path, self._cache.directory), min_age)

    def grow(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Grow a server's disks, after a move, to the sizes of its new flavor. No disk is shrunk."""
        directory = self.directory(instance.uuid)
        formats, kept = directory.formats(), directory.asked()
        for name, size in ((DISK, instance.flavor.root_gb), (EPHEMERAL, instance.flavor.ephemeral_gb)):
            # Grow only the ephemeral disk of the flavor. An ephemeral disk that the user requested keeps its size.
            if name in formats and size and not (name == EPHEMERAL and name in kept):
                if formats[name] == RBD:
                    self.pool.grow(image_of(instance.uuid, name), size * disk.GIB)
                else:
                    disk.grow(directory.file(name), formats[name], size * disk.GIB)
        self.renew_swap(instance, image_meta)
        for name, found in directory.disks().items():
            # With preallocation, reserve the disks' space again, because the move has copied the disks as sparse files.
            # Reserve no space for layers (backing files from earlier moves), because the guest does not write to them.
            if name != CONFIG and not layers.is_layer(name):
                self.allocate(directory.file(name), found.virtual_size)

    def renew_swap(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Create the swap and ephemeral disks that the server must have after a move and that are missing.

        A swap file is missing, because a move does not copy it. A swap disk in the Ceph pool stays there. If its size
        differs from the size that the flavor requires, it is deleted and created again.
        """
        directory = self.directory(instance.uuid)
        if SWAP in directory.pooled():
            wanted = wishes.swap_mb(directory.asked(), instance.flavor) * disk.MIB
            if self.pool.size(image_of(instance.uuid, SWAP)) != wanted:
                self.drop(instance.uuid, SWAP)
        self._add_blanks(instance, image_meta, directory)

    def ensure_bases(self, instance: objects.Instance, image_meta: ImageMeta) -> None:
        """Create the kernel, the ramdisk and the base files that a guest needs to start, if they were deleted.

        The base file of a root disk is fetched again as the same image, and the base file of swap is formatted again.
        An ephemeral disk is an overlay that needs the exact bytes of its base file. Formatting a new base file gives
        other bytes. So GuestFailed, with the file's name, is raised if the base file of an ephemeral disk is missing.
        """
        directory = self.directory(instance.uuid)
        self._add_kernels(instance, directory)
        for name, found in directory.disks().items():
            if not found.backing or os.path.exists(found.backing):
                continue
            if layers.origin(name) == DISK and _is_image(instance, found.backing):
                self._image(instance, image_meta)
            elif layers.origin(name) == SWAP and is_blank(found.backing):
                _blank(self._cache, os.path.basename(found.backing))
            else:
                raise GuestFailed(
                    act='start',
                    uuid=instance.uuid,
                    reason=(
                        f'{found.backing}, which {directory.file(name)} reads from, is missing and cannot be made again'
                    ),
                )

    def _add_kernels(self, instance: objects.Instance, directory: InstanceDirectory, again: bool = False) -> None:
        """Copy the server's kernel and ramdisk from the cache to its directory, if they are missing.

        With ``again``, existing files are replaced, too.
        """
        if again:
            for name in {KERNEL, RAMDISK} - _kernels(instance).keys():
                remove(directory.file(name))
        for name, image_id in _kernels(instance).items():
            if again or not os.path.exists(directory.file(name)):
                path = self._cache.kernel(image_id, self._download)
                disk.create_copy(directory.file(name), disk.BaseFile(path, 'raw', 0), 0)

    def _add_blanks(self, instance: objects.Instance, image_meta: ImageMeta, directory: InstanceDirectory) -> None:
        """Create the ephemeral and swap disks that the server must have and that are missing."""
        present, pooled = directory.disks(), directory.pooled()
        for name, (base_name, size) in self._blanks(instance, image_meta, directory.asked()).items():
            if name in pooled:
                is_there = self.pool.owner(image_of(instance.uuid, name)) is not None
            else:
                is_there = name in present and not (name == SWAP and present[name].virtual_size < size)
            if not is_there:
                self._make(instance.uuid, name, _blank(self._cache, base_name), size)

    def _blanks(
        self, instance: objects.Instance, image_meta: ImageMeta, asked: Mapping[str, RequestedDisk]
    ) -> dict[str, tuple[str, int]]:
        """Return the ephemeral disks and swap that the server must have.

        The result is a dict from disk name to (name of the formatted base file, size in bytes). Disks that the user
        requested replace the disks of the flavor.
        """
        flavor = instance.flavor
        file_system = self._conf.default_ephemeral_format or (
            'vfat' if (image_meta.get('properties') or {}).get('os_type') == 'windows' else 'ext4'
        )
        wanted = wishes.ephemerals(asked)
        if not wanted and flavor.ephemeral_gb:
            wanted = {EPHEMERAL: RequestedDisk(size=flavor.ephemeral_gb)}
        found = {}
        for name, wish in wanted.items():
            number = name.removeprefix(wishes.EPHEMERAL)
            base = f'ephemeral_{wish.size}_{wish.file_system or file_system}' + (f'_{number}' if number != '0' else '')
            found[name] = base, (wish.size or 0) * disk.GIB
        swap = wishes.swap_mb(asked, flavor)
        if swap:
            found[SWAP] = f'swap_{swap}', swap * disk.MIB
        return found

    def _make(self, uuid: str, name: str, base: disk.BaseFile | Parent, size: int) -> None:
        self._begin_disk(uuid, name)
        if self.format == RBD:
            self.put(uuid, name, base, size)
            return
        assert isinstance(base, disk.BaseFile)
        directory = self.directory(uuid)
        make = disk.create_overlay if self.format == 'qcow2' else disk.create_copy
        make(directory.file(name), base, size)
        directory.record(name, self.format)
        self.allocate(directory.file(name), size)

    def make_rescue(self, uuid: str, name: str, base: disk.BaseFile) -> None:
        """Create the disk of a rescue system, which is as large as the rescue image ``base``."""
        if self.format == RBD:
            self.put(uuid, name, base, base.virtual_size)
        else:
            make = disk.create_overlay if self.format == 'qcow2' else disk.create_copy
            make(self.directory(uuid).file(name), base, base.virtual_size)

    def _begin_disk(self, uuid: str, name: str) -> None:
        """Delete the server's old disk ``name`` if the new disk of this name will not overwrite it.

        A new file does not overwrite an image in the Ceph pool, and a new image does not overwrite a file.
        """
        was = self.directory(uuid).formats().get(name)
        if was is not None and (was == RBD) != (self.format == RBD):
            self.drop(uuid, name)

    def _drop_others(self, uuid: str, keep_ephemeral: bool) -> None:
        """Delete all disks of a server except the root disk and the config drive, before the others are made again.

        Layers (backing files from earlier moves) are deleted, too. With ``keep_ephemeral``, ephemeral disks and their
        layers are kept.
        """
        for name in self.directory(uuid).formats():
            kept = keep_ephemeral and layers.origin(name).startswith(wishes.EPHEMERAL)
            if name not in (DISK, CONFIG) and not kept:
                self.drop(uuid, name)

    def _root(self, instance: objects.Instance, image_meta: ImageMeta, most: int | None) -> disk.BaseFile | Parent:
        """Return what a root disk is made from: a file of the image cache, or a snapshot in Ceph that is cloned.

        ``most`` is the size of the flavor's root disk in bytes. Raises ImageUnacceptable,
        FlavorDiskSmallerThanImage or errors.NoRoom if the image cannot be used.
        """
        if self.format == RBD and image_meta.get('disk_format') == 'raw' and self._images is not None:
            image_id = image_meta.get('id') or instance.image_ref
            for url in _locations(self._images.get(image_id)):
                parent = self.pool.parent(image_id, url)
                if parent is not None:
                    if most is not None and parent.virtual_size > most:
                        raise FlavorDiskSmallerThanImage(flavor_size=most, image_size=parent.virtual_size)
                    return parent
        return self._image(instance, image_meta, most)

    def allocate(self, path: str, size: int) -> None:
        """Reserve the disk space for a whole disk, if [DEFAULT]preallocate_images is 'space'.

        Raises errors.NoRoom if the file system has too little free space.
        """
        if self._allocates:
            disk.allocate(path, size)

    def _image(self, instance: objects.Instance, image_meta: ImageMeta, most: int | None = None) -> disk.BaseFile:
        # Prefer the id in ``image_meta`` to instance.image_ref, which is not always the image of the root disk.
        # An unshelved server is built from a snapshot: ``image_meta`` has its id, image_ref the id of the first image.
        return self._cache.image(image_meta.get('id') or instance.image_ref, image_meta, self._download, most)


def _format(conf: cfg.ConfigOpts) -> str:
    """Return the format of the disks that this host makes.

    Raises DriverMisconfigured if images_type is not supported.
    """
    images_type: str = conf.libvirt.images_type
    if images_type in ('qcow2', RBD):
        return images_type
    if images_type not in IMAGE_TYPES:
        raise DriverMisconfigured(reason=f'[libvirt]images_type {images_type} is not supported')
    return 'qcow2' if images_type == 'default' and conf.use_cow_images else 'raw'


def _no_images(image_id: str, target: IO[bytes]) -> object:
    raise DriverMisconfigured(reason='no image client is configured, which is needed to fetch images')


def _bases_in_use(path: str, bases: str) -> set[str]:
    """Return the names of the files that any disk in a subdirectory of ``path`` reads from.

    The directory ``bases`` is left out. On shared storage the result includes the files of other hosts' servers. The
    names have no directories, because another host may have the cache directory under another path.
    """
    found: set[str] = set()
    with os.scandir(path) as entries:
        directories = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in directories:
        if directory == bases:
            continue
        # The server of this directory may just have been deleted. Then the directory is missing and is skipped.
        with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    found.update(filter(None, [_base_of(entry.path)]))
    return found


def _base_of(path: str) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return os.path.basename(disk.reads_from(path) or '') or None
    return None


def _locations(record: Mapping[str, Any]) -> list[str]:
    """Return the URLs of an image's data, as the image service reports them in the image's record, possibly none."""
    found = [location.get('url') for location in record.get('locations') or ()]
    return [url for url in (*found, record.get('direct_url')) if url]


def _kernels(instance: objects.Instance) -> dict[str, str]:
    """Return a dict from file name to image id, for the kernel and the ramdisk that the server has."""
    wanted = {KERNEL: getattr(instance, 'kernel_id', None), RAMDISK: getattr(instance, 'ramdisk_id', None)}
    return {name: image_id for name, image_id in wanted.items() if image_id}


def _is_image(instance: objects.Instance, backing: str) -> bool:
    image_id = instance.image_ref or ''
    return os.path.basename(backing) == hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()


def _blank(cache: ImageCache, name: str) -> disk.BaseFile:
    """Return the formatted base file with this name (ephemeral_… or swap_…). Make it if it is not in the cache."""
    kind, _, rest = name.partition('_')
    if kind == 'swap':
        return cache.blank(name, int(rest) * disk.MIB, 'mkswap', '-q')
    size, file_system, number = [*rest.split('_'), '0'][:3]
    label = '-n' if file_system == 'vfat' else '-L'
    quiet = () if file_system == 'vfat' else ('-q',)
    return cache.blank(name, int(size) * disk.GIB, 'mkfs', '-t', file_system, *quiet, label, f'ephemeral{number}')
