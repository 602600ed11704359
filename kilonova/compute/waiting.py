"""Wait for events of other services, identified by the uuid that an event is about.

    with waiting.heard(uuid) as told:      # threading.Event; no event is missed from here on
        told.wait(5)
    waiting.tell(uuid)                     # True if a thread waits

``accelerators`` and ``ports`` use it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Waiting:
    """The threads that wait for one kind of event. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = defaultdict(list)

    def tell(self, about: str) -> bool:
        """Report an event about this uuid. Return whether a thread waits for one."""
        with self._lock:
            waiting = list(self._waiting.get(about, ()))
        for told in waiting:
            told.set()
        return bool(waiting)

    @contextmanager
    def heard(self, about: str) -> Iterator[threading.Event]:
        """Yield a ``threading.Event`` that each event about this uuid sets, while the block runs."""
        told = threading.Event()
        with self._lock:
            self._waiting[about].append(told)
        try:
            yield told
        finally:
            with self._lock:
                self._waiting[about].remove(told)
                if not self._waiting[about]:
                    del self._waiting[about]
