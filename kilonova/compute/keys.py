"""Concurrency on one host: one execution per operation key, one lock per server, and slots that limit parallel tasks.

    with keys.doing('build_and_run_instance', '<operation>/<step>/<attempt>') as (work, first):
        if not first:                       # an earlier call with this method and key runs or has ended
            return work.outcome()           # wait for its end, and return its result
        work.result = …                     # do the work; call work.check() between two parts of the work
    keys.cancel('<operation>')              # cancel all running calls of this operation

    with locks.hold(instance.uuid), slots.hold(work.check):     # wait for the server's lock and for a free slot
        …

``keys`` is a TaskRegistry, ``locks`` a NamedLocks, and ``slots`` a TaskSlots.

A call that is sent twice is executed once. If a call with the same key arrives while the first one runs, it waits for
the end and returns the same result. If it arrives after the end, the stored result is returned. Results are stored for
ten minutes at most. A call whose key has neither a running call nor a stored result is executed: its function first
asks the conductor whether the operation still waits for this call (``HostTask.exclusive``).
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
# Seconds between two checks for cancellation while a task waits for a free slot.
SLOT_LOOK = 0.5

Name = tuple[str, str]


class RunningTask:
    """One call of an operation step that runs on this host.

    The step's function calls ``check()`` at points where it may be cancelled, and ``result`` is set before the task
    ends.
    """

    def __init__(self, key: str, cancellable: bool = True) -> None:
        self.key, self.cancellable = key, cancellable
        self.result: object = None
        self.error: Exception | None = None
        self._cancelled = threading.Event()
        self._done = threading.Event()

    def check(self) -> None:
        """Raise Cancelled if the operation has been cancelled."""
        if self._cancelled.is_set():
            raise errors.Cancelled(key=self.key)

    def cancel(self) -> None:
        """Make the task stop at its next call of ``check``, if it is cancellable."""
        if self.cancellable:
            self._cancelled.set()

    def end(self, error: Exception | None = None) -> None:
        """Mark the task as ended and wake all threads that wait for its outcome."""
        self.error = error
        self._done.set()

    def outcome(self) -> object:
        """Wait for the end of the task and return its result. Raises the task's error if it failed."""
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.result


def matches(key: str, prefix: str) -> bool:
    """Return whether the key begins with the prefix, compared in whole parts.

    For example, 'o/1.build/1' is no prefix of 'o/1.build/10'.
    """
    return key == prefix or key.startswith(prefix.rstrip('/') + '/')


class TaskRegistry:
    """The running and finished tasks of one process, by RPC method and operation key.

    Finished tasks are kept for ten minutes, at most a thousand of them.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        keep_seconds: float = KEEP_SECONDS,
        keep_count: int = KEEP_COUNT,
    ) -> None:
        self._clock, self._keep_seconds, self._keep_count = clock, keep_seconds, keep_count
        self._lock = threading.Lock()
        self._running: dict[Name, RunningTask] = {}
        self._finished: collections.OrderedDict[Name, tuple[float, RunningTask]] = collections.OrderedDict()
        self._cancelled: collections.OrderedDict[str, float] = collections.OrderedDict()

    @contextlib.contextmanager
    def doing(
        self, method: str, key: str, *, cancellable: bool = True, remember_errors: bool = True
    ) -> Iterator[tuple[RunningTask, bool]]:
        """Yield the task of a method and operation key, and True if the block must run it.

        If the second value is False, the task already runs or has run, and ``outcome()`` returns its result. With
        ``remember_errors=False``, a call with the same key after a failure runs the task again. Steps that are repeated
        until they succeed are called in this way.
        """
        name = (method, key)
        with self._lock:
            self._prune()
            known = self._running.get(name) or self._finished.get(name, (0.0, None))[1]
            if known is None:
                work = self._running[name] = RunningTask(key, cancellable)
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
            # The error is not an ``Exception``: this thread is being ended from outside.
            # Raise Unanswered in the threads that wait for the task, so that the conductor sends their calls again.
            work.end(errors.Unanswered(who='this host', reason='it stops'))
            raise
        finally:
            with self._lock:
                del self._running[name]
                # Do not store Unanswered as the task's result: the same task may succeed if the call is repeated.
                final = remember_errors and not isinstance(work.error, errors.Unanswered)
                if work.error is None or final:
                    self._finished[name] = (self._clock(), work)

    def cancel(self, prefix: str) -> int:
        """Cancel the running tasks whose operation key has this prefix, and such tasks that arrive later.

        A running task stops at its next call of ``check``. Undos, and steps that are repeated until they succeed, are
        not cancelled. Return how many running tasks were cancelled.
        """
        with self._lock:
            self._cancelled[prefix] = self._clock()
            works = [work for (_, key), work in self._running.items() if work.cancellable and matches(key, prefix)]
            for work in works:
                work.cancel()
        return len(works)

    def running(self) -> list[str]:
        """Return '<method> <key>' for each running task."""
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


class NamedLocks:
    """Locks by name. A lock is created when a thread first needs it, and deleted when the last thread has released it.

    A waiting thread counts as a user of the lock, so there are never two locks with the same name.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Wait for the lock of ``name`` and hold it while the block runs."""
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
        """Return whether a thread holds the lock of ``name`` or waits for it."""
        return name in self._locks

    def __len__(self) -> int:
        return len(self._locks)


class TaskSlots:
    """A limit for the number of tasks, such as builds or snapshots, that run at the same time. 0 means no limit."""

    def __init__(self, limit: int) -> None:
        self._slots = threading.Semaphore(limit) if limit else None

    @contextlib.contextmanager
    def hold(self, check: Callable[[], None], waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait for a slot and hold it while the block runs.

        While the call waits, ``check()`` is called repeatedly, and raises an error if the task was cancelled.
        ``waits()`` is called once, before the wait, if no slot is free.
        """
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
