"""Who may work when on this host: orders by key, one lock a server, slots for what is done a few at a time.

    with keys.doing('build_and_run_instance', '<operation>/<step>/<attempt>') as (work, first):
        if not first:
            return work.outcome()
        work.result = …                     # work.check() at each boundary
    keys.cancel('<operation>')

    with locks.hold(instance.uuid), slots.hold(work.check):
        …

An order that is sent twice is done once. The same key while the work runs: wait for its end and give its result. After
the end: give the result again. Never heard of: do it (its first act asks the conductor whether the operation still
stands, see ``Operation.turn``).
"""
from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from kilonova import errors

KEEP_SECONDS = 600.0
KEEP_COUNT = 1000
# Seconds between checks, while a slot is waited for, whether the work was cancelled.
SLOT_LOOK = 0.5

Name = tuple[str, str]


class Work:
    """One piece of running work. ``check()`` is called at each step's boundary; ``result`` is set before its end."""

    def __init__(self, key: str, cancellable: bool = True) -> None:
        self.key, self.cancellable = key, cancellable
        self.result: object = None
        self.error: Exception | None = None
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

    def end(self, error: Exception | None = None) -> None:
        """It is over; everybody who waits gets how it ended."""
        self.error = error
        self._done.set()

    def outcome(self) -> object:
        """Wait for the end; the result, or the error raised."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.result


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

    @contextlib.contextmanager
    def doing(self, method: str, key: str, *, cancellable: bool = True,
              remember_errors: bool = True) -> Iterator[tuple[Work, bool]]:
        """The work of this key, and whether the block is to do it; else it runs or ran already: see its outcome.

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
            yield known, False
            return
        try:
            yield work, True
            work.end()
        except Exception as error:
            work.end(error)
            raise
        except BaseException:
            # The thread is being ended from outside: to those who wait that is silence.
            work.end(errors.Unanswered(who='this host', reason='it stops'))
            raise
        finally:
            with self._lock:
                del self._running[name]
                # No answer is no outcome: when the call is repeated, the other side may be back.
                final = remember_errors and not isinstance(work.error, errors.Unanswered)
                if work.error is None or final:
                    self._finished[name] = (self._clock(), work)

    def cancel(self, prefix: str) -> int:
        """Let running work under this key prefix stop at its next boundary, and what comes late not start.

        Undos and steps that only go forward aren't touched. Returns how many were cancelled.
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


class Locks:
    """Locks by name, made at their first use and dropped after the last. Each waiting thread holds a reference, so
    there is never a second lock of the same name."""

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
        """Whether it is held or waited for."""
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)


class Slots:
    """At most ``limit`` builds (snapshots, live migrations) at once; 0 = no limit."""

    def __init__(self, limit: int) -> None:
        self._slots = threading.Semaphore(limit) if limit else None

    @contextlib.contextmanager
    def hold(self, check: Callable[[], None], waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait for a slot; ``check()`` raises when the work that waits was cancelled, ``waits()`` is called once when
        it has to wait."""
        if self._slots is None:
            yield
            return
        has_slot = self._slots.acquire(blocking=False)
        if not has_slot:
            waits()
        while not has_slot and not self._slots.acquire(timeout=SLOT_LOOK):
            check()
        try:
            yield
        finally:
            self._slots.release()
