"""Files that are there whole or not at all, and locks between threads and processes."""
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
    """Write aside and rename; readers see the old text or the new one."""
    aside = f'{path}.new'
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, 'w', encoding='utf-8') as stream:
        os.fchmod(descriptor, mode)
        stream.write(text)
    os.replace(aside, path)


def create(path: str) -> IO[bytes]:
    """A new empty file to write and read, its owner's alone; replaces what is there."""
    remove(path)
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), 'w+b')


def remove(path: str) -> None:
    """Delete a file; fine if it has gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def touch(path: str) -> None:
    """Make a file as young as one that is written now; fine if it has gone."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)


def remove_tree(path: str) -> bool:
    """Delete a directory by renaming it first, so that nobody meets half of it; False if there was none.

    The new name is <path>_del; one that a crash left there goes too.
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
    """Bytes that a file takes on the disk, without its holes."""
    return os.stat(path).st_blocks * 512


def sync(path: str) -> None:
    """Bring a file's content to the disk, so that a rename after it can't outlive it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        concurrency.native(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def check_room(directory: str, need: int, what: str) -> None:
    """errors.NoRoom: so many bytes are not free there."""
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    free = shutil.disk_usage(directory).free
    if need > free:
        raise errors.NoRoom(what=what, need=need, free=free)


class Locks:
    """One lock a name, among the threads of this process and among processes (files in ``directory``)."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._threads: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        with self._guard:
            lock = self._threads.setdefault(name, threading.Lock())
        # Threads first: at most one of them waits for another process.
        with lock:
            os.makedirs(self._directory, exist_ok=True)
            descriptor = os.open(os.path.join(self._directory, f'kilonova-{name}'), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                concurrency.native(fcntl.flock, descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def supports_direct_io(directory: str) -> bool:
    """Whether files there can be written past the page cache (not on tmpfs, for example)."""
    path = os.path.join(directory, f'.directio.{os.getpid()}.{threading.get_ident()}')
    block = mmap.mmap(-1, 4096)      # O_DIRECT wants aligned memory
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
