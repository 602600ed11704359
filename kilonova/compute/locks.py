"""One lock a server, made when somebody needs it and dropped after the last.

    with locks.hold(instance.uuid):
        …
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Locks:
    """Locks by name; whoever waits holds a reference, so nobody gets a second lock of the same name."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the lock of ``name`` and keep it for the block."""
        with self._guard:
            lock, users = self._locks.get(name, (None, 0))
            lock = lock or threading.Lock()
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = (lock, users - 1)

    def is_held(self, name: str) -> bool:
        """Whether somebody has it, or waits for it."""
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)
