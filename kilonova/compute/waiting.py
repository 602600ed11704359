"""Wait for events of other services. Each event names the uuid of a server or of an accelerator request.

    with waiting.heard(uuid) as told:      # a threading.Event that is set by each event from now on
        told.wait(5)
    waiting.tell(uuid)                     # report an event; True if a thread waits for it

``accelerators`` and ``ports`` use it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Waiting:
    """The threads that wait for one kind of event. Threads may share one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = defaultdict(list)

    def tell(self, about: str) -> bool:
        """Wake the threads that wait for news about the uuid ``about``. Return True if there are any."""
        with self._lock:
            waiting = list(self._waiting.get(about, ()))
        for told in waiting:
            told.set()
        return bool(waiting)

    @contextmanager
    def heard(self, about: str) -> Iterator[threading.Event]:
        """Yield a ``threading.Event``, which each ``tell(about)`` sets while the block runs. ``about`` is a uuid."""
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
