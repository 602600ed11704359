"""Who waits for events of other services, by the uuid that an event is about.

    with waiting.heard(uuid) as told:      # threading.Event; from here on no event is missed
        told.wait(5)
    waiting.tell(uuid)                     # True: somebody waits
"""
from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Waiting:
    """One for each kind of event; threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = defaultdict(list)

    def tell(self, about: str) -> bool:
        """An event about this uuid came; whether somebody waits for one."""
        with self._lock:
            waiting = list(self._waiting.get(about, ()))
        for told in waiting:
            told.set()
        return bool(waiting)

    @contextmanager
    def heard(self, about: str) -> Iterator[threading.Event]:
        """Set by each event about this uuid."""
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
