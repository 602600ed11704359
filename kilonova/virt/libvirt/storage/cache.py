"""The image cache: each image is stored once per host, checked, in a format from which guests can start.

    cache = ImageCache(directory, locks)
    base = cache.image(image_id, image_meta, download, most=16 << 30)       # BaseFile(path, format, virtual size)

An image is downloaded only once, even if several boots need it: the first boot holds the image's lock during the
download, and the others then find the file. A file that a crash left behind has the suffix .part or .converted, and the
next download writes it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from oslo_log import log as logging
from oslo_utils.imageutils import format_inspector

from kilonova import errors
from kilonova.virt import command
from kilonova.virt.libvirt.storage import disk, files
from kilonova.virt.parts.disks import FlavorDiskSmallerThanImage, ImageFetch, ImageMeta

LOG = logging.getLogger(__name__)

# A dict from an image record's disk_format to (formats that the image's content may have, QEMU's name of the format).
_FORMATS: dict[str, tuple[frozenset[str], str]] = {
    'qcow2': (frozenset({'qcow2'}), 'qcow2'),
    'raw': (frozenset({'raw', 'gpt'}), 'raw'),
    'iso': (frozenset({'iso'}), 'raw'),
    # An ami image is a raw file system without a boot loader. The guest's kernel comes from another image.
    'ami': (frozenset({'raw', 'gpt'}), 'raw'),
    'vdi': (frozenset({'vdi'}), 'vdi'),
    'vhd': (frozenset({'vhd'}), 'vpc'),
    'vhdx': (frozenset({'vhdx'}), 'vhdx'),
    'vmdk': (frozenset({'vmdk'}), 'vmdk'),
}

# Seconds for which a cached file is kept after it was taken for a new disk, because the disk may not yet be created.
YOUNGEST = 600.0


@dataclass(frozen=True)
class ConversionLimits:
    """Limits of CPU time and memory for ``qemu-img info`` on an uploaded image, which may be hostile.

    A later conversion of the image is not limited.
    """

    cpu_seconds: int = 30
    address_space_gib: int = 2


class ImageCache:
    """The cached files of one host, in <instances_path>/_base."""

    def __init__(
        self, directory: str, locks: files.FileLocks, *, force_raw: bool = True, limits: ConversionLimits | None = None
    ) -> None:
        self.directory = directory
        self._locks, self._force_raw, self._limits = locks, force_raw, limits or ConversionLimits()
        self._known: dict[str, disk.BaseFile] = {}

    def image(
        self, image_id: str, image_meta: ImageMeta, download: ImageFetch, most: int | None = None
    ) -> disk.BaseFile:
        """Return the cached image. Download it first if it is not in the cache.

        ``most`` is the maximum virtual size of the image in bytes, or None for no maximum. If an exception is raised,
        no incomplete file stays in the cache.

        Raises:
            FlavorDiskSmallerThanImage: if the image is larger than ``most``.
            ImageUnacceptable: if the content is not what the image record says, or is unsafe.
            errors.NoRoom: if the file system has too little free space.
            Exception: whatever ``download(image_id, file)`` raises.
        """
        name = hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()
        base = self._once(name, lambda path: self._fetch(image_id, image_meta, download, path, most))
        _check_size(base.virtual_size, most)
        return base

    def kernel(self, image_id: str, download: ImageFetch) -> str:
        """Return the path of a cached kernel or ramdisk, which is stored byte for byte as it was uploaded.

        The name of the file differs from the names of disk images, because a file that was never inspected must not be
        used as a disk image.
        """
        name = f'kernel_{hashlib.sha1(image_id.encode(), usedforsecurity=False).hexdigest()}'
        path = os.path.join(self.directory, name)
        self._make_once(name, path, lambda: self._fetch_as_it_is(image_id, download, path))
        return path

    def blank(self, name: str, size: int, *mkfs: str) -> disk.BaseFile:
        """Return the cached file of an empty disk of ``size`` bytes. Create and format the file if it does not exist.

        ``name`` is the file's name, which begins with ephemeral_ or swap_. ``mkfs`` is the command that formats it.
        """
        return self._once(name, lambda path: disk.create_blank(path, size, *mkfs))

    def clean(self, used: Collection[str], min_age: float | None) -> list[str]:
        """Delete the files that no disk uses and that are at least ``min_age`` seconds old. Return their names.

        ``used`` has the names of the files that disks read from. Each call sets the modification time of these files to
        now, and so does the use of a file for a new disk. A file's age is the time since its modification time. It is
        measured with the clock of the file system, which may be on another machine. A file younger than 600 s is never
        deleted. If ``min_age`` is None, the call deletes nothing, and only sets the modification times.
        """
        active, removed = [], []
        now = self._now()
        for name in sorted(os.listdir(self.directory)) if now is not None else ():
            path = os.path.join(self.directory, name)
            # Take the lock of the image, which a running download holds: files of a running download are not deleted.
            # The files '.part', '.converted' and '.new' of an interrupted download are deleted like unused images.
            with self._locks.hold(name.removesuffix('.part').removesuffix('.converted').removesuffix('.new')):
                if name in used:
                    active.append(path)
                    files.touch(path)
                elif min_age is not None and self._is_old(path, now or 0.0, max(min_age, YOUNGEST)):
                    LOG.info('Removing base, swap or ephemeral file: %s', path)
                    files.remove(path)
                    self._known.pop(name, None)
                    removed.append(name)
        LOG.debug('Active base files: %s', ' '.join(active))
        LOG.debug('Removable base files: %s', ' '.join(removed))
        return removed

    def _now(self) -> float | None:
        """Return the current time by the file system's clock, or None if the cache directory does not exist."""
        if not os.path.isdir(self.directory):
            return None
        path = f'{self.directory}.now.{os.getpid()}'
        try:
            with files.create(path) as stream:
                return os.fstat(stream.fileno()).st_mtime
        finally:
            files.remove(path)

    def _is_old(self, path: str, now: float, age: float) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if now - os.stat(path).st_mtime >= age:
                return True
            LOG.debug('Base, swap or ephemeral file too young to remove: %s', path)
        return False

    def _once(self, name: str, make: Callable[[str], None]) -> disk.BaseFile:
        path = os.path.join(self.directory, name)
        self._make_once(name, path, lambda: make(path))
        if name not in self._known:
            self._known[name] = disk.look_at_base(path)
        return self._known[name]

    def _make_once(self, name: str, path: str, make: Callable[[], None]) -> None:
        with self._locks.hold(name):
            if os.path.exists(path):
                # A disk will use the file soon. The new modification time protects the file from ``clean``.
                files.touch(path)
                return
            os.makedirs(self.directory, exist_ok=True)
            self._known.pop(name, None)
            make()

    def _fetch(self, image_id: str, image_meta: ImageMeta, download: ImageFetch, path: str, most: int | None) -> None:
        part, converted = f'{path}.part', f'{path}.converted'
        LOG.debug('Fetching image %s to %s', image_id, part)
        try:
            with files.create(part) as stream:
                download(image_id, stream)
            format_, virtual_size = self._inspect(image_id, image_meta.get('disk_format'), part)
            _check_size(virtual_size, most)
            if format_ != 'raw' and (self._force_raw or format_ != 'qcow2'):
                LOG.debug('Converting image %s from %s to raw', image_id, format_)
                files.check_room(self.directory, disk.as_raw(part, format_), f'image {image_id} as raw')
                command.run('qemu-img', 'convert', '-O', 'raw', '-f', format_, part, converted)
                files.sync(converted)
                os.replace(converted, path)
            else:
                files.sync(part)
                os.replace(part, path)
        finally:
            files.remove(part)
            files.remove(converted)

    def _fetch_as_it_is(self, image_id: str, download: ImageFetch, path: str) -> None:
        part = f'{path}.part'
        try:
            with files.create(part) as stream:
                download(image_id, stream)
            files.sync(part)
            os.replace(part, path)
        finally:
            files.remove(part)

    def _inspect(self, image_id: str, disk_format: str | None, path: str) -> tuple[str, int]:
        """Return QEMU's name of an image file's format, and its virtual size.

        Raises ImageUnacceptable if the file may be unsafe. The content is parsed by ``format_inspector`` before
        qemu-img is started, because qemu-img would open files that a hostile header names.
        """

        def refuse(reason: str) -> errors.ImageUnacceptable:
            return errors.ImageUnacceptable(image_id=image_id, reason=reason)

        if disk_format not in _FORMATS:
            raise refuse(f"disk format '{disk_format}' is not supported")
        accepted, qemu_name = _FORMATS[disk_format]
        try:
            inspector = format_inspector.detect_file_format(path)
            found = str(inspector)
            if inspector is not None and found in accepted:
                inspector.safety_check()
        except format_inspector.SafetyCheckFailed as error:
            raise refuse(f'the image content failed the safety checks: {error}') from error
        except format_inspector.ImageFormatError as error:
            raise refuse(f'the image content could not be parsed: {error}') from error
        if inspector is None or found not in accepted:
            raise refuse(f"the image content is {found}, but its disk_format is '{disk_format}'")
        try:
            info = json.loads(
                command.limited(
                    'qemu-img',
                    'info',
                    '--output=json',
                    '-f',
                    qemu_name,
                    path,
                    cpu_seconds=self._limits.cpu_seconds,
                    address_space_gib=self._limits.address_space_gib,
                )
            )
        except command.CommandFailed as error:
            raise refuse(f'qemu-img cannot read the image: {error}') from error
        details = (info.get('format-specific') or {}).get('data') or {}
        if info.get('backing-filename') or info.get('full-backing-filename'):
            raise refuse('the image has a backing file')
        if details.get('data-file'):
            raise refuse('the image has an external data file')
        if info.get('encrypted'):
            raise refuse('the image is encrypted')
        return qemu_name, int(info['virtual-size'])


def is_blank(path: str) -> bool:
    """Return True if a base file is a formatted empty disk, which each host makes for itself."""
    return os.path.basename(path).startswith(('ephemeral_', 'swap_'))


def _check_size(virtual_size: int, most: int | None) -> None:
    if most is not None and virtual_size > most:
        raise FlavorDiskSmallerThanImage(flavor_size=most, image_size=virtual_size)
