"""What this host was told to do, by key, so that an order sent twice is done once.

    keys.run('build_and_run_instance', '<operation>/<step>/<attempt>', lambda work: build(work, …))
    keys.cancel('<operation>')

The same key while the work runs: wait for its end and give its result. After the end: give the result again. Never
heard of: do it (its first act asks the conductor whether the operation still stands, see ``Host.turn``).
"""
from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

from kilonova import errors

KEEP_SECONDS = 600.0
KEEP_COUNT = 1000

Name = tuple[str, str]


class Work:
    """One piece of running work. ``check()`` is called at each step's boundary."""

    def __init__(self, key: str, cancellable: bool = True) -> None:
        self.key, self.cancellable = key, cancellable
        # Asks whether the operation stands at the key; None where the first write of the work is that question.
        self.verify: Callable[[], Any] | None = None
        self.error: Exception | None = None
        self._result: Any = None
        self._cancelled = threading.Event()
        self._done = threading.Event()

    def check(self) -> None:
        """Raise Cancelled when the operation was cancelled meanwhile."""
        if self._cancelled.is_set():
            raise errors.Cancelled(key=self.key)

    def cancel(self) -> None:
        """Let the work stop at its next boundary, if it is of a kind that may stop."""
        if self.cancellable:
            self._cancelled.set()

    def end(self, result: Any = None, error: Exception | None = None) -> None:
        """It is over; everybody who waits gets how it ended."""
        self._result, self.error = result, error
        self._done.set()

    def outcome(self) -> Any:
        """Wait for the end; the result, or the error raised."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self._result


def matches(key: str, prefix: str) -> bool:
    """Whole parts only: 'o/1.build/1' is no prefix of 'o/1.build/10'."""
    return key == prefix or key.startswith(prefix.rstrip('/') + '/')


class Keys:
    """The registry of one process. Finished work is kept for ten minutes, a thousand pieces at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, keep_seconds: float = KEEP_SECONDS,
                 keep_count: int = KEEP_COUNT) -> None:
        self._clock, self._keep_seconds, self._keep_count = clock, keep_seconds, keep_count
        self._lock = threading.Lock()
        self._running: dict[Name, Work] = {}
        self._finished: collections.OrderedDict[Name, tuple[float, Work]] = collections.OrderedDict()
        self._cancelled: collections.OrderedDict[str, float] = collections.OrderedDict()

    def run(self, method: str, key: str, act: Callable[[Work], Any], *, cancellable: bool = True,
            remember_errors: bool = True) -> Any:
        """Do ``act(work)`` once a key.

        ``remember_errors`` False: a step that only goes forward is tried again after a failure under the same key.
        """
        name = (method, key)
        with self._lock:
            self._prune()
            known = self._running.get(name) or self._finished.get(name, (0.0, None))[1]
            if known is None:
                work = self._running[name] = Work(key, cancellable)
                if any(matches(key, prefix) for prefix in self._cancelled):
                    work.cancel()
        if known is not None:
            return known.outcome()
        try:
            work.end(act(work))
        except Exception as error:  # noqa: BLE001 - whatever it is, all who wait for this work get it
            work.end(error=error)
        except BaseException:
            # The thread is being ended from outside: to those who wait that is silence.
            work.end(error=errors.Unanswered(who='this host', reason='it stops'))
            raise
        finally:
            with self._lock:
                del self._running[name]
                # Silence is no outcome: who asks again may find the other side back.
                final = remember_errors and not isinstance(work.error, errors.Unanswered)
                if work.error is None or final:
                    self._finished[name] = (self._clock(), work)
        return work.outcome()

    def cancel(self, prefix: str) -> int:
        """Let running work under this key prefix stop at its next boundary, and what comes late not start.

        Undos and steps that only go forward aren't touched. How many were told.
        """
        with self._lock:
            self._cancelled[prefix] = self._clock()
            works = [work for (_, key), work in self._running.items() if work.cancellable and matches(key, prefix)]
            for work in works:
                work.cancel()
        return len(works)

    def running(self) -> list[str]:
        """'<method> <key>' of what runs now."""
        with self._lock:
            return [f'{method} {key}' for method, key in self._running]

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    def _prune(self) -> None:
        oldest = self._clock() - self._keep_seconds
        while self._finished:
            ended, _ = next(iter(self._finished.values()))
            if ended >= oldest and len(self._finished) < self._keep_count:
                break
            self._finished.popitem(last=False)
        while self._cancelled:
            if next(iter(self._cancelled.values())) >= oldest and len(self._cancelled) < self._keep_count:
                break
            self._cancelled.popitem(last=False)
