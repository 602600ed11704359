"""Work that comes round: each task has a thread of its own, so that a slow one holds up no other.

    timers = Timers(stopping)
    timers.every(10, heartbeat.beat, 'report_state')
    timers.told()       # [{'name': 'report_state', 'spacing': 10, 'last_run': …, 'took': …, 'result': 'ok'}]
"""
from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from oslo_log import log as logging

from kilonova import concurrency, errors

LOG = logging.getLogger(__name__)

# Seconds between two runs of a task whose option says 0.
DEFAULT_PERIOD = 60


class Told(TypedDict):
    """A task: seconds between two runs (-1: an option turned it off); when the last one that ended began (ISO 8601,
    UTC) and how many seconds it took (None: none has ended yet), 'ok' or the class of its error."""

    name: str
    spacing: float
    last_run: str | None
    took: float | None
    result: str | None


class Timers:
    """``stopping`` ends them all. Tasks that are told to run each ``seconds`` first do so after that time."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._threads: list[threading.Thread] = []
        self.spacing: dict[str, float] = {}
        self._off: set[str] = set()
        self._last: dict[str, Told] = {}

    def every(self, seconds: float, task: Callable[[], object], name: str, *,
              at_once: bool = False) -> None:
        """``seconds`` 0: the default period; negative: never. ``at_once``: for the first time now."""
        if seconds < 0:
            self._off.add(name)
            return
        self.spacing[name] = seconds or DEFAULT_PERIOD
        self._threads.append(concurrency.spawn(self._loop, self.spacing[name], task, name, at_once,
                                               name=name))

    def once(self, task: Callable[[], object], name: str) -> None:
        """Now, beside whoever asks."""
        concurrency.spawn(self._run, task, name, name=name)

    def join(self, timeout: float) -> None:
        """Wait for tasks that are under way."""
        for thread in self._threads:
            thread.join(timeout)

    def told(self) -> list[Told]:
        """The tasks of this process, by name."""
        known = {**dict.fromkeys(self._off, -1.0), **self.spacing}
        return [self._last.get(name) or Told(name=name, spacing=spacing, last_run=None, took=None, result=None)
                for name, spacing in sorted(known.items())]

    def _loop(self, seconds: float, task: Callable[[], object], name: str, at_once: bool) -> None:
        if at_once:
            self._run(task, name)
        while not self._stopping.wait(seconds):
            self._run(task, name)

    def _run(self, task: Callable[[], object], name: str) -> None:
        began, clock, result = datetime.datetime.now(datetime.UTC), time.monotonic(), 'ok'
        try:
            task()
        except (errors.Unanswered, errors.Unavailable) as error:
            LOG.warning('%s: %s', name, error)
            result = type(error).__name__
        except Exception as error:
            LOG.exception('Error during %s', name)
            result = type(error).__name__
        if name in self.spacing:
            self._last[name] = Told(name=name, spacing=self.spacing[name], result=result,
                                    last_run=began.isoformat(timespec='seconds'),
                                    took=round(time.monotonic() - clock, 3))
