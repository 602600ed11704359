"""Disk files: made as overlays or copies, looked at, grown.

    create_overlay(path, Base('/…/_base/<sha1>', 'raw', 1 << 30), 16 << 30)
    grow(path, 'qcow2', 32 << 30)
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
# magic, version, offset and length of the backing file's name, cluster bits, virtual size
_LONGEST_NAME = 1023
_HEADER = struct.Struct('>4sIQIIQ')


@dataclass(frozen=True)
class Base:
    """A file of the image cache: its format and the size that a guest would see."""

    path: str
    format: str
    virtual_size: int


@dataclass(frozen=True)
class DiskFile:
    """A disk as its header has it; ``virtual_size`` in bytes."""

    format: str
    virtual_size: int
    backing: str | None = None


def look(path: str, format_: str) -> DiskFile:
    """Read a disk's header. ``format_`` is what disk.info says: a raw disk's first bytes belong to its guest."""
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
            # A name without a directory is beside the disk. The length may be a guest's: a name has 1023 bytes at most.
            backing = os.path.join(os.path.dirname(path), os.fsdecode(stream.read(min(length, _LONGEST_NAME))))
    return DiskFile('qcow2', size, backing)


def reads_from(path: str) -> str | None:
    """What a file reads from, if it looks like a qcow2 with a backing file; a guest may have made it look so."""
    with open(path, 'rb') as stream:
        if stream.read(len(QCOW2)) != QCOW2:
            return None
    return look(path, 'qcow2').backing


def look_at_base(path: str) -> Base:
    """A cached image. Nothing but qcow2 and raw gets into the cache, and a raw one that looks like qcow2 doesn't."""
    with open(path, 'rb') as stream:
        format_ = 'qcow2' if stream.read(4) == QCOW2 else 'raw'
    return Base(path, format_, look(path, format_).virtual_size)


def create_overlay(path: str, base: Base, size: int) -> None:
    """A qcow2 that reads from ``base``, which has its whole path, and is ``size`` bytes for the guest; replaces what is
    there.

    New overlays of one base and size have the same bytes: qemu-img makes the first one, the next are written from what
    it wrote. qemu-img costs 6 ms of CPU, a fifth of what a host spends on a boot.
    """
    if not os.path.exists(base.path):
        raise command.CommandFailed(command='making an overlay', reason=f'{base.path} is not there')
    length, blocks = _new_layer(base, size)
    aside = f'{path}.new'
    with files.create(aside) as stream:
        stream.truncate(length)
        for offset, block in blocks:
            stream.seek(offset)
            stream.write(block)
    os.replace(aside, path)


@functools.lru_cache(maxsize=64)
def _new_layer(base: Base, size: int) -> tuple[int, tuple[tuple[int, bytes], ...]]:
    """What qemu-img writes: the file's length, and its blocks with their offsets but for those that are all zeros."""
    with tempfile.TemporaryDirectory() as directory:
        made = os.path.join(directory, 'overlay')
        create_layer(made, base, size)
        data = Path(made).read_bytes()
    blocks = ((offset, data[offset:offset + _BLOCK]) for offset in range(0, len(data), _BLOCK))
    return len(data), tuple((offset, block) for offset, block in blocks if any(block))


def create_layer(path: str, base: Base, size: int) -> None:
    """As ``create_overlay``, by qemu-img; a ``base`` without a directory is beside ``path``."""
    aside = _aside(path)
    command.run('qemu-img', 'create', '-q', '-f', 'qcow2', '-b', base.path, '-F', base.format, aside, str(size))
    os.replace(aside, path)


def create_empty(path: str, format_: str, size: int) -> None:
    """A disk of so many bytes that reads as zeros; replaces what is there."""
    aside = _aside(path)
    command.run('qemu-img', 'create', '-q', '-f', format_, aside, str(size))
    os.replace(aside, path)


def copy_into(path: str, format_: str, target: str) -> None:
    """All that a disk reads as, written into another one of its format and size."""
    command.run('qemu-img', 'convert', '-n', '-f', format_, '-O', format_, path, target)


def create_copy(path: str, base: Base, size: int) -> None:
    """A raw copy of ``base``, sparse, grown to ``size``; replaces what is there. errors.NoRoom."""
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
    """Where the file is made; what an earlier try left there goes, as its mode would stay."""
    aside = f'{path}.new'
    files.remove(aside)
    return aside


def as_raw(path: str, format_: str) -> int:
    """Bytes that a file without backing file takes as a sparse raw one, and a little more."""
    if format_ == 'raw':
        return files.used(path)
    # Of raw files qemu-img counts the holes, too.
    found = json.loads(command.run('qemu-img', 'measure', '--output=json', '-O', 'qcow2', '-f', format_, path))
    return int(found['required'])


def allocate(path: str, size: int) -> None:
    """Give a file room for so many bytes before they are written; its length stays. errors.NoRoom."""
    files.check_room(os.path.dirname(path), size - files.used(path), f'all of {os.path.basename(path)}')
    command.run('fallocate', '-n', '-l', str(size), path)


def allocates(directory: str) -> bool:
    """Whether files there can be given room before they are written."""
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
    """The command that lets an overlay read from another file with the same content."""
    return ('qemu-img', 'rebase', '-q', '-u', '-f', 'qcow2', '-b', base, '-F', format_, path)


def collapse(path: str, base: Base) -> None:
    """Copy what an overlay reads from elsewhere into it, but for what ``base``, the lowest that it reads from, has."""
    command.run('qemu-img', 'rebase', '-q', '-f', 'qcow2', '-b', base.path, '-F', base.format, path)


def flatten(path: str, below: Iterable[str]) -> None:
    """An overlay anew, with all that it reads from the files ``below``, so that it reads from nothing else.
    errors.NoRoom.

    A rebase to nothing would read the disk's whole size, 2.5 s of CPU a GiB; this reads what is there.
    """
    aside = _aside(path)
    files.check_room(os.path.dirname(path), sum(map(files.used, (path, *below))), os.path.basename(path))
    command.run('qemu-img', 'convert', '-q', '-f', 'qcow2', '-O', 'qcow2', path, aside)
    os.replace(aside, path)


def grow(path: str, format_: str, size: int) -> bool:
    """Make a disk larger; False if it is that large already. Never shrinks."""
    if look(path, format_).virtual_size >= size:
        return False
    command.run('qemu-img', 'resize', '-q', '-f', format_, path, str(size))
    return True


def create_blank(path: str, size: int, *mkfs: str) -> None:
    """A sparse raw file, formatted by the program ``mkfs`` (its last argument will be the file)."""
    aside = f'{path}.new'
    with files.create(aside) as stream:
        stream.truncate(size)
    if mkfs:
        command.run(*mkfs, aside)
    os.replace(aside, path)
