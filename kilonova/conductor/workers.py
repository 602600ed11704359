"""``WorkerThreads``, which run jobs, and ``OperationSlots``, which limit calls to each host (operations.md, rule 5).

``runner.Runner`` has one object of each class:

    workers = WorkerThreads(32)
    workers.start()
    workers.add(lambda: run(work), urgent=False)
    workers.call_later(30.0, lambda: wake(uuid))

    slots = OperationSlots(10, workers.lock, resume)
    if not slots.take('gpu1', work):
        ...                             # the work waits: resume(work) is called when the work has a slot
    slots.release('gpu1', work)

A quarter of the worker threads runs only urgent jobs. A job may return another job, which the same thread runs next.
One thread makes all delayed calls, so a delayed call needs no thread of its own (rule 7).
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from oslo_log import log as logging

from kilonova import concurrency

LOG = logging.getLogger(__name__)

# A job is a function without arguments. It returns the job that the same worker thread runs next, or None.
Job = Callable[[], 'Job | None']


class WorkerThreads:
    """A fixed number of threads that run queued jobs, urgent ones first.

    ``lock`` guards the queues. ``OperationSlots`` and ``Runner`` use the same lock, so that an operation which moves
    between a slot and a queue is always in a slot or in a queue.
    """

    def __init__(self, count: int) -> None:
        lock = threading.RLock()
        # Ordinary workers without a job wait on ``lock``. Workers that run only urgent jobs wait on ``_reserved``.
        self.lock, self._reserved = threading.Condition(lock), threading.Condition(lock)
        self.threads: list[threading.Thread] = []
        self.stopping = False
        self._count, self._running = count, 0
        self._urgent: deque[Job] = deque()
        self._normal: deque[Job] = deque()
        # Delayed calls as (time by the monotonic clock, sequence number, function).
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._due_changed = threading.Condition()
        self._order = itertools.count()

    def start(self) -> None:
        """Start the worker threads and the thread for delayed calls."""
        reserved = max(1, self._count // 4)
        for number in range(self._count):
            self.threads.append(concurrency.spawn(self._work, number < reserved, name=f'flow-{number}'))
        concurrency.spawn(self._watch_due, name='due')

    def stop(self) -> None:
        """Stop the threads after their current jobs. Queued jobs are not started any more."""
        with self.lock:
            self.stopping = True
            self.lock.notify_all()
            self._reserved.notify_all()
        with self._due_changed:
            self._due_changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until no job runs, at most the given number of seconds."""
        end = time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            time.sleep(0.05)

    def busy(self) -> bool:
        """Return whether a job is queued or running. Delayed calls that are not due yet don't count."""
        return bool(self._urgent or self._normal or self._running)

    def due(self) -> int:
        """Return the number of delayed calls."""
        return len(self._due)

    def add(self, job: Job, urgent: bool) -> None:
        """Queue a job. Urgent jobs are run before the others."""
        with self.lock:
            (self._urgent if urgent else self._normal).append(job)
            self.lock.notify()
            if urgent:
                self._reserved.notify()

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after the given number of seconds.

        ``act`` must not block, because one thread makes all delayed calls.
        """
        if not self.stopping:
            with self._due_changed:
                heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))
                self._due_changed.notify_all()

    def _work(self, reserved: bool) -> None:
        while True:
            with self.lock:
                while not self.stopping and not self._urgent and (reserved or not self._normal):
                    (self._reserved if reserved else self.lock).wait()
                if self.stopping:
                    return
                job: Job | None = self._urgent.popleft() if self._urgent else self._normal.popleft()
                self._running += 1
            try:
                while job is not None:
                    job = job()
            except Exception:
                LOG.exception('Unexpected error in a conductor worker thread; the thread continues with the next job')
            finally:
                with self.lock:
                    self._running -= 1

    def _watch_due(self) -> None:
        while not self.stopping:
            with self._due_changed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._due_changed.wait(left)
                    continue
                _, _, act = heapq.heappop(self._due)
            act()


class Holder(Protocol):
    """An operation that can hold a slot of a host, such as ``work.Work``.

    ``held_host`` is the host whose slot the operation holds, or None. ``slot_urgent`` is True if the slot is one of the
    host's slots for urgent work.
    """

    uuid: str
    owner: str
    held_host: str | None
    slot_urgent: bool

    @property
    def is_urgent(self) -> bool:
        """Whether the operation is urgent, and so uses the slots for urgent work."""


HolderT = TypeVar('HolderT', bound=Holder)


@dataclass
class HostSlots(Generic[HolderT]):
    """Slots of one host: permits for operations of this process to call the host.

    Attributes:
        taken: Numbers of slots in use: ``taken[True]`` for urgent operations and ``taken[False]`` for others.
        parked: Operations that wait for a slot, oldest first: ``parked[True]`` are the urgent ones.
        silent: True if the host did not answer the last call. As long as this is True, only one urgent operation and
            one other operation may call the host, to find out whether the host is back.
    """

    taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    parked: dict[bool, OrderedDict[str, HolderT]] = field(
        default_factory=lambda: {True: OrderedDict(), False: OrderedDict()}
    )
    silent: bool = False

    def unused(self) -> bool:
        """Return whether no slot is in use and the host answered the last call. In this case no operation waits."""
        return not (any(self.taken.values()) or self.silent)


class OperationSlots(Generic[HolderT]):
    """Limits the number of operations of this process that call the same host at the same time.

    Each host has ``a_host`` slots for ordinary operations and as many for urgent ones. ``resume(work)`` is called when
    an operation that waited has a slot. ``lock`` is the lock of the worker queues, so that an operation which moves
    between a slot and a queue is always in a slot or in a queue.
    """

    def __init__(self, a_host: int, lock: threading.Condition, resume: Callable[[HolderT], None]) -> None:
        self._a_host, self._lock, self._resume = a_host, lock, resume
        self._hosts: dict[str, HostSlots[HolderT]] = {}

    def take(self, host: str, work: HolderT) -> bool:
        """Take a slot of the host for ``work``, and return whether a slot was free.

        If the result is False, ``work`` is queued, and ``resume(work)`` is called as soon as ``work`` has a slot.
        """
        urgent = work.is_urgent
        with self._lock:
            slots = self._hosts.setdefault(host, HostSlots())
            if self._has_slot(slots, urgent):
                slots.taken[urgent] += 1
                work.slot_urgent = urgent
                return True
            slots.parked[urgent][work.uuid] = work
            return False

    def release(self, host: str, work: HolderT) -> None:
        """Release the slot that ``work`` holds, and give it to the operation that has waited longest for the host."""
        with self._lock:
            slots = self._hosts[host]
            slots.taken[work.slot_urgent] -= 1
            self._next(host, slots)

    def silent(self, host: str) -> None:
        """Record that the host did not answer a call. Fewer operations then call the host until it answers."""
        with self._lock:
            self._hosts.setdefault(host, HostSlots()).silent = True

    def is_silent(self, host: str) -> bool:
        """Return whether the last call to the host was not answered."""
        with self._lock:
            slots = self._hosts.get(host)
            return slots is not None and slots.silent

    def waiting_for_silent(self) -> dict[str, list[HolderT]]:
        """Return the operations that wait for a slot of a host that did not answer this process's last call.

        The result is a dict from host to operations.
        """
        with self._lock:
            return {
                host: [work for parked in slots.parked.values() for work in parked.values()]
                for host, slots in self._hosts.items()
                if slots.silent and any(slots.parked.values())
            }

    def answers(self, host: str) -> None:
        """Record that the host answered a call.

        If the host had not answered before, give its slots to operations that wait for them.
        """
        with self._lock:
            slots = self._hosts.get(host)
            if slots is not None and slots.silent:
                slots.silent = False
                self._next(host, slots)

    def parked(self) -> list[str]:
        """Return the uuids of the operations that wait for a slot."""
        with self._lock:
            return [uuid for slots in self._hosts.values() for parked in slots.parked.values() for uuid in parked]

    def unpark(self, uuids: Iterable[str]) -> list[HolderT]:
        """Take the operations with these uuids out of the queues for a host's slots, without a slot.

        Return the removed operations. Operations that did not wait for a slot are not affected and not returned.
        """
        with self._lock:
            return [
                parked.pop(uuid)
                for uuid in uuids
                for slots in self._hosts.values()
                for parked in slots.parked.values()
                if uuid in parked
            ]

    def unpark_all(self, owner: str) -> list[HolderT]:
        """Remove the operations whose row has this ``owner`` from the queues of all hosts, and return them."""
        with self._lock:
            return [
                parked.pop(work.uuid)
                for slots in self._hosts.values()
                for parked in slots.parked.values()
                for work in list(parked.values())
                if work.owner == owner
            ]

    def _has_slot(self, slots: HostSlots[HolderT], urgent: bool) -> bool:
        return slots.taken[urgent] < (1 if slots.silent else self._a_host)

    def _next(self, host: str, slots: HostSlots[HolderT]) -> None:
        """Give the free slots of a host to waiting operations, and resume these operations.

        An operation holds its slot from this moment on, even before a worker runs it.
        """
        for urgent, parked in slots.parked.items():
            while parked and self._has_slot(slots, urgent):
                _, work = parked.popitem(last=False)
                slots.taken[urgent] += 1
                work.slot_urgent, work.held_host = urgent, host
                self._resume(work)
        if slots.unused():
            del self._hosts[host]
