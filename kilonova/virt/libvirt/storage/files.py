"""Atomic writes of files, deletion, free space, and locks between threads and processes."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from typing import IO

from kilonova import concurrency, errors


def write_whole(path: str, text: str, mode: int = 0o600) -> None:
    """Write a text file atomically: write it under a temporary name and then rename it.

    Readers see either the old text or the new one.
    """
    aside = f'{path}.new'
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, 'w', encoding='utf-8') as stream:
        os.fchmod(descriptor, mode)
        stream.write(text)
    os.replace(aside, path)


def create(path: str) -> IO[bytes]:
    """Create and open a new empty file that only its owner may read and write. Replaces an existing file."""
    remove(path)
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), 'w+b')


def remove(path: str) -> None:
    """Delete a file. Do nothing if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def touch(path: str) -> None:
    """Set the modification time of a file to now. Do nothing if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def remove_tree(path: str) -> bool:
    """Delete a directory. Return False if it did not exist.

    The directory is first renamed to <path>_del, so that no other code sees a partly deleted directory. If a crash left
    a directory <path>_del, it is deleted, too.
    """
    doomed = f'{path}_del' if not path.endswith('_del') else path
    found = True
    if doomed != path:
        shutil.rmtree(doomed, ignore_errors=True)
        try:
            os.rename(path, doomed)
        except FileNotFoundError:
            found = False
    shutil.rmtree(doomed, ignore_errors=True)
    return found


def used(path: str) -> int:
    """Return the number of bytes that a file takes on the disk, without its holes."""
    return os.stat(path).st_blocks * 512


def sync(path: str) -> None:
    """Flush a file's content to the disk.

    Without the flush, a file that was renamed could be empty after a power failure.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        concurrency.native(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def check_room(directory: str, need: int, what: str) -> None:
    """Check that the file system of ``directory`` has ``need`` free bytes. Raises errors.NoRoom if it has fewer.

    If the directory does not exist, the nearest parent that exists is checked. ``what`` names the purpose of the space
    in the error text.
    """
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    free = shutil.disk_usage(directory).free
    if need > free:
        raise errors.NoRoom(what=what, need=need, free=free)


class FileLocks:
    """Named locks that exclude other threads and other processes. The lock files are in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._threads: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the lock ``name`` while the context is active."""
        with self._guard:
            lock = self._threads.setdefault(name, threading.Lock())
        # Take the lock between threads first, so that only one thread of this process is blocked in flock.
        with lock:
            os.makedirs(self._directory, exist_ok=True)
            descriptor = os.open(os.path.join(self._directory, f'kilonova-{name}'), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                concurrency.native(fcntl.flock, descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def supports_direct_io(directory: str) -> bool:
    """Return True if files in a directory can be written with O_DIRECT, which is not possible on tmpfs, for example."""
    path = os.path.join(directory, f'.directio.{os.getpid()}.{threading.get_ident()}')
    block = mmap.mmap(-1, 4096)  # O_DIRECT needs aligned memory
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600)
        try:
            os.write(descriptor, block)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    finally:
        block.close()
        remove(path)
    return True
