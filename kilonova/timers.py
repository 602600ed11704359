"""Periodic tasks of a daemon. Each task has its own thread, so that a slow task does not delay the others.

Example::

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

# Seconds between two runs of a task whose period is configured as 0.
DEFAULT_PERIOD = 60


class Told(TypedDict):
    """A report about one periodic task.

    ``spacing`` is the number of seconds between two runs, or -1 if an option turned the task off. ``last_run`` is the
    start of the last completed run (ISO 8601, UTC), ``took`` is its duration in seconds, and ``result`` is 'ok' or the
    name of its error class. These three fields are None if no run has completed yet.
    """

    name: str
    spacing: float
    last_run: str | None
    took: float | None
    result: str | None


class Timers:
    """The periodic tasks of one process. Setting the event ``stopping`` ends them all."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._threads: list[threading.Thread] = []
        self.spacing: dict[str, float] = {}
        self._off: set[str] = set()
        self._last: dict[str, Told] = {}

    def every(self, seconds: float, task: Callable[[], object], name: str, *, at_once: bool = False) -> None:
        """Run a task every ``seconds`` seconds in a thread of its own.

        If ``seconds`` is 0, the default period is used. If it is negative, the task is turned off. The first run is
        after ``seconds``, or at once if ``at_once`` is True.
        """
        if seconds < 0:
            self._off.add(name)
            return
        self.spacing[name] = seconds or DEFAULT_PERIOD
        self._threads.append(concurrency.spawn(self._loop, self.spacing[name], task, name, at_once, name=name))

    def once(self, task: Callable[[], object], name: str) -> None:
        """Run a task a single time, now, in a thread of its own."""
        concurrency.spawn(self._run, task, name, name=name)

    def join(self, timeout: float) -> None:
        """Wait for tasks that are running, at most ``timeout`` seconds for each."""
        for thread in self._threads:
            thread.join(timeout)

    def told(self) -> list[Told]:
        """Return a report for each periodic task of this process, sorted by name."""
        known = {**dict.fromkeys(self._off, -1.0), **self.spacing}
        return [
            self._last.get(name) or Told(name=name, spacing=spacing, last_run=None, took=None, result=None)
            for name, spacing in sorted(known.items())
        ]

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
            self._last[name] = Told(
                name=name,
                spacing=self.spacing[name],
                result=result,
                last_run=began.isoformat(timespec='seconds'),
                took=round(time.monotonic() - clock, 3),
            )
