"""Work that comes round: each task has a thread of its own, so that a slow one holds up no other.

    timers = Timers(stopping)
    timers.every(10, heartbeat.beat)
"""
from __future__ import annotations

import threading
from collections.abc import Callable

from oslo_log import log as logging

from kilonova import concurrency, errors

LOG = logging.getLogger(__name__)

# Seconds between two runs of a task whose option says 0.
DEFAULT_PERIOD = 60


class Timers:
    """``stopping`` ends them all. Tasks that are told to run each ``seconds`` first do so after that time."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._threads: list[threading.Thread] = []
        self.spacing: dict[str, float] = {}

    def every(self, seconds: float, task: Callable[[], None], name: str) -> None:
        """``seconds`` 0: the default period; negative: never."""
        if seconds < 0:
            return
        self.spacing[name] = seconds or DEFAULT_PERIOD
        self._threads.append(concurrency.spawn(self._loop, self.spacing[name], task, name, name=name))

    def once(self, task: Callable[[], None], name: str) -> None:
        """Now, beside whoever asks."""
        concurrency.spawn(self._run, task, name, name=name)

    def join(self, timeout: float) -> None:
        """Wait for tasks that are under way."""
        for thread in self._threads:
            thread.join(timeout)

    def _loop(self, seconds: float, task: Callable[[], None], name: str) -> None:
        while not self._stopping.wait(seconds):
            self._run(task, name)

    def _run(self, task: Callable[[], None], name: str) -> None:
        try:
            task()
        except (errors.Unanswered, errors.Unavailable) as error:
            LOG.warning('%s: %s', name, error)
        except Exception:
            LOG.exception('Error during %s', name)
