"""Disk files: create them as overlays or copies, read their headers, grow them.

    create_overlay(path, BaseFile('/…/_base/<sha1>', 'raw', 1 << 30), 16 << 30)
    grow(path, 'qcow2', 32 << 30)

A new file is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kilonova.virt import command
from kilonova.virt.libvirt.storage import files

GIB = 1 << 30
MIB = 1 << 20
_BLOCK = 4096
QCOW2 = b'QFI\xfb'
# The longest name of a backing file that qcow2 allows, in bytes.
_LONGEST_NAME = 1023
# Layout of a qcow2 header: magic, version, offset and length of the backing file's name, cluster bits, virtual size.
_HEADER = struct.Struct('>4sIQIIQ')


@dataclass(frozen=True)
class BaseFile:
    """A file of the image cache, with its format and the size in bytes that a guest sees."""

    path: str
    format: str
    virtual_size: int


@dataclass(frozen=True)
class DiskFile:
    """The header of a disk file.

    ``virtual_size`` is in bytes. ``backing`` is the path of the backing file, or None if there is none.
    """

    format: str
    virtual_size: int
    backing: str | None = None


def look(path: str, format_: str) -> DiskFile:
    """Read a disk's header.

    ``format_`` is the format that disk.info records. The format is not detected, because the guest may write anything
    to the first bytes of a raw disk. Raises CommandFailed if a qcow2 disk does not have a qcow2 header.
    """
    if format_ != 'qcow2':
        return DiskFile('raw', os.path.getsize(path))
    with open(path, 'rb') as stream:
        head = stream.read(_HEADER.size)
        magic, _version, offset, length, _bits, size = _HEADER.unpack(head.ljust(_HEADER.size, b'\0'))
        if magic != QCOW2:
            raise command.CommandFailed(command='reading', reason=f'{path} is not a qcow2 file')
        backing = None
        if offset:
            stream.seek(offset)
            # At most _LONGEST_NAME bytes are read, because the guest may have written a wrong length into the header.
            # The name of the backing file may be relative to the disk's directory.
            backing = os.path.join(os.path.dirname(path), os.fsdecode(stream.read(min(length, _LONGEST_NAME))))
    return DiskFile('qcow2', size, backing)


def reads_from(path: str) -> str | None:
    """Return the backing file of a file that looks like a qcow2 file, or None if there is none.

    A guest can write a qcow2 header to its raw disk, so the result is not trustworthy.
    """
    with open(path, 'rb') as stream:
        if stream.read(len(QCOW2)) != QCOW2:
            return None
    return look(path, 'qcow2').backing


def look_at_base(path: str) -> BaseFile:
    """Return the format and the virtual size of a cached image, read from its header.

    The format can safely be detected from the header, because the cache contains only qcow2 files and raw files
    without a qcow2 header.
    """
    with open(path, 'rb') as stream:
        format_ = 'qcow2' if stream.read(4) == QCOW2 else 'raw'
    return BaseFile(path, format_, look(path, format_).virtual_size)


def create_overlay(path: str, base: BaseFile, size: int) -> None:
    """Create a qcow2 overlay of ``base`` with a virtual size of ``size`` bytes. Replaces an existing file.

    ``base.path`` must be an absolute path. All new overlays of one base and size have the same bytes. So qemu-img makes
    only the first overlay. Its bytes are kept in memory, and later overlays are written from them. This saves 6 ms of
    CPU per overlay, a fifth of the CPU that a host spends on a boot. Raises CommandFailed if the base does not exist.
    """
    if not os.path.exists(base.path):
        raise command.CommandFailed(command='making an overlay', reason=f'{base.path} does not exist')
    length, blocks = _new_layer(base, size)
    aside = f'{path}.new'
    with files.create(aside) as stream:
        stream.truncate(length)
        for offset, block in blocks:
            stream.seek(offset)
            stream.write(block)
    os.replace(aside, path)


@functools.lru_cache(maxsize=64)
def _new_layer(base: BaseFile, size: int) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    """Create an overlay with qemu-img. Return its length, and its blocks as pairs of offset and bytes.

    Blocks that contain only zeros are left out.
    """
    with tempfile.TemporaryDirectory() as directory:
        made = os.path.join(directory, 'overlay')
        create_layer(made, base, size)
        data = Path(made).read_bytes()
    blocks = ((offset, data[offset : offset + _BLOCK]) for offset in range(0, len(data), _BLOCK))
    return len(data), tuple((offset, block) for offset, block in blocks if any(block))


def create_layer(path: str, base: BaseFile, size: int) -> None:
    """Create a qcow2 overlay of ``base`` with a virtual size of ``size`` bytes. Replaces an existing file.

    ``base.path`` may be a name without a directory. It then names a file in the directory of ``path``.
    """
    aside = _aside(path)
    command.run('qemu-img', 'create', '-q', '-f', 'qcow2', '-b', base.path, '-F', base.format, aside, str(size))
    os.replace(aside, path)


def create_empty(path: str, format_: str, size: int) -> None:
    """Create a disk of ``size`` bytes that reads as zeros. Replaces an existing file."""
    aside = _aside(path)
    command.run('qemu-img', 'create', '-q', '-f', format_, aside, str(size))
    os.replace(aside, path)


def copy_into(path: str, format_: str, target: str) -> None:
    """Write the content of the disk ``path`` into the existing disk ``target`` of the same format and size."""
    command.run('qemu-img', 'convert', '-n', '-f', format_, '-O', format_, path, target)


def create_copy(path: str, base: BaseFile, size: int) -> None:
    """Create a sparse raw copy of ``base``, grown to ``size`` bytes. Replaces an existing file.

    Raises errors.NoRoom if the file system has too little free space.
    """
    aside = _aside(path)
    files.check_room(os.path.dirname(path), as_raw(base.path, base.format), os.path.basename(path))
    if base.format == 'raw':
        command.run('cp', '--sparse=always', base.path, aside)
    else:
        command.run('qemu-img', 'convert', '-O', 'raw', '-f', base.format, base.path, aside)
    if size > os.path.getsize(aside):
        os.truncate(aside, size)
    os.replace(aside, path)


def _aside(path: str) -> str:
    """Delete a leftover temporary file of ``path``, and return the temporary name under which ``path`` is made.

    The leftover file is deleted, because a program that only overwrote it would keep its old permissions.
    """
    aside = f'{path}.new'
    files.remove(aside)
    return aside


def as_raw(path: str, format_: str) -> int:
    """Return how many bytes the disk file ``path`` would take if it were converted to a sparse raw file.

    The result may be slightly too large. The file must not have a backing file.
    """
    if format_ == 'raw':
        return files.used(path)
    # Measure for a qcow2 target, which counts only data. For a raw target, qemu-img would count holes, too.
    found = json.loads(command.run('qemu-img', 'measure', '--output=json', '-O', 'qcow2', '-f', format_, path))
    return int(found['required'])


def allocate(path: str, size: int) -> None:
    """Reserve ``size`` bytes of disk space for a file before they are written. The length of the file does not change.

    Raises errors.NoRoom if the file system has too little free space.
    """
    files.check_room(os.path.dirname(path), size - files.used(path), f'the preallocation of {os.path.basename(path)}')
    command.run('fallocate', '-n', '-l', str(size), path)


def allocates(directory: str) -> bool:
    """Return True if the file system of a directory can reserve disk space for files (``fallocate``)."""
    path = os.path.join(directory, f'.allocate.{os.getpid()}.{threading.get_ident()}')
    try:
        files.create(path).close()
        command.run('fallocate', '-n', '-l', str(_BLOCK), path)
    except command.CommandFailed:
        return False
    finally:
        files.remove(path)
    return True


def rebase(path: str, base: str, format_: str) -> tuple[str, ...]:
    """Return the qemu-img command that writes ``base`` into the overlay ``path`` as its backing file.

    ``format_`` is the format of ``base``. The command changes only the header of the overlay, and no data. So ``base``
    must have the same content as the overlay's current backing file.
    """
    return ('qemu-img', 'rebase', '-q', '-u', '-f', 'qcow2', '-b', base, '-F', format_, path)


def collapse(path: str, base: BaseFile) -> None:
    """Copy the data of all files between an overlay and ``base`` into the overlay, so that it reads only from ``base``.

    ``base`` must be the last file of the overlay's backing chain.
    """
    command.run('qemu-img', 'rebase', '-q', '-f', 'qcow2', '-b', base.path, '-F', base.format, path)


def flatten(path: str, below: Iterable[str]) -> None:
    """Rewrite an overlay with the data of all files that it reads from, so that it has no backing file.

    ``below`` are the files that the overlay reads from. ``qemu-img convert`` is used, because it reads only data that
    exist: ``qemu-img rebase`` would read the disk's whole virtual size, in 2.5 s of CPU per GiB. Raises errors.NoRoom
    if the file system has too little free space.
    """
    aside = _aside(path)
    files.check_room(os.path.dirname(path), sum(map(files.used, (path, *below))), os.path.basename(path))
    command.run('qemu-img', 'convert', '-q', '-f', 'qcow2', '-O', 'qcow2', path, aside)
    os.replace(aside, path)


def grow(path: str, format_: str, size: int) -> bool:
    """Make a disk larger. Return False if the disk already has ``size`` bytes or more. A disk is never shrunk."""
    if look(path, format_).virtual_size >= size:
        return False
    command.run('qemu-img', 'resize', '-q', '-f', format_, path, str(size))
    return True


def create_blank(path: str, size: int, *mkfs: str) -> None:
    """Create a sparse raw file of ``size`` bytes, and format it with the command ``mkfs``, if one is given.

    The command gets the file as its last argument.
    """
    aside = f'{path}.new'
    with files.create(aside) as stream:
        stream.truncate(size)
    if mkfs:
        command.run(*mkfs, aside)
    os.replace(aside, path)
