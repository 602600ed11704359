"""``WorkerThreads`` run jobs, and ``OperationSlots`` limit the calls to each host (operations.md, rule 5).

``runner.Runner`` has one of each:

    workers = WorkerThreads(32)
    workers.start()
    workers.add(lambda: run(work), urgent=False)
    workers.call_later(30.0, lambda: wake(uuid))

    slots = OperationSlots(10, workers.lock, resume)
    if not slots.take('gpu1', work):
        ...                             # the work waits: resume(work) is called when it has a slot
    slots.release('gpu1', work)

A quarter of the workers runs only urgent jobs. A job may return another job, which the same worker runs next. Delayed
calls need no thread each: one thread makes them all (rule 7).
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

# A job returns the next job of the same worker, or None.
Job = Callable[[], 'Job | None']


class WorkerThreads:
    """A fixed number of threads that run queued jobs, urgent ones first.

    ``lock`` guards the queues. Other code takes it as well when queued jobs and its own data must be seen together.
    """

    def __init__(self, count: int) -> None:
        lock = threading.RLock()
        # Idle workers wait on these conditions: workers for any job on the first, workers for urgent jobs only on the
        # second.
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
        """Start the threads."""
        reserved = max(1, self._count // 4)
        for number in range(self._count):
            self.threads.append(concurrency.spawn(self._work, number < reserved, name=f'flow-{number}'))
        concurrency.spawn(self._watch_due, name='due')

    def stop(self) -> None:
        """Begin no further job."""
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
        """Return whether a job is queued or running.

        Delayed calls don't count.
        """
        return bool(self._urgent or self._normal or self._running)

    def due(self) -> int:
        """Return the number of delayed calls."""
        return len(self._due)

    def add(self, job: Job, urgent: bool) -> None:
        """Queue a job."""
        with self.lock:
            (self._urgent if urgent else self._normal).append(job)
            self.lock.notify()
            if urgent:
                self._reserved.notify()

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after the given number of seconds.

        It is called in the thread for delayed calls, so it must not block.
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
                LOG.exception('Unexpected error in a conductor worker thread')
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
    """An object that can hold a slot, such as ``work.Work``.

    ``held_host`` is the host of the slot that it holds, and ``slot_urgent`` whether that is one of the slots for urgent
    work.
    """

    uuid: str
    owner: str
    held_host: str | None
    slot_urgent: bool

    @property
    def is_urgent(self) -> bool:
        """Whether the work is urgent, and so may use the slots for urgent work."""


HolderT = TypeVar('HolderT', bound=Holder)


@dataclass
class HostSlots(Generic[HolderT]):
    """Slots of one host.

    Attributes:
        taken: Number of slots in use, by whether they are for urgent work.
        parked: Work that waits for a slot, oldest first, by whether it is urgent.
        silent: True if the last call to the host was not answered. Then only one call at a time is allowed for urgent
            and one for other work, to find out whether the host is back.
    """

    taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    parked: dict[bool, OrderedDict[str, HolderT]] = field(
        default_factory=lambda: {True: OrderedDict(), False: OrderedDict()}
    )
    silent: bool = False

    def unused(self) -> bool:
        """Return whether no slot is in use, no work waits, and the host answered its last call."""
        return not (any(self.taken.values()) or any(self.parked.values()) or self.silent)


class OperationSlots(Generic[HolderT]):
    """Limits the number of operations of this process that call the same host at the same time.

    Each host has ``a_host`` slots for ordinary work and as many for urgent work. ``resume(work)`` is called when work
    that waited has a slot. ``lock`` is the lock of the worker queues, so that work is never unseen between a slot and a
    queue.
    """

    def __init__(self, a_host: int, lock: threading.Condition, resume: Callable[[HolderT], None]) -> None:
        self._a_host, self._lock, self._resume = a_host, lock, resume
        self._hosts: dict[str, HostSlots[HolderT]] = {}

    def take(self, host: str, work: HolderT) -> bool:
        """Take a slot of the host, and return whether there was a free one.

        If it returns False, the work waits, and ``resume(work)`` is called when it has a slot.
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
        """Release the slot of ``work``, and hand it to the work that has waited longest for this host."""
        with self._lock:
            slots = self._hosts[host]
            slots.taken[work.slot_urgent] -= 1
            self._next(host, slots)

    def silent(self, host: str) -> None:
        """Note that a call to the host was not answered."""
        with self._lock:
            self._hosts.setdefault(host, HostSlots()).silent = True

    def is_silent(self, host: str) -> bool:
        """Return whether the last call to the host was not answered."""
        with self._lock:
            slots = self._hosts.get(host)
            return slots is not None and slots.silent

    def waiting_for_silent(self) -> dict[str, list[HolderT]]:
        """Return the work that waits for slots of hosts which did not answer their last call, by host."""
        with self._lock:
            return {
                host: [work for parked in slots.parked.values() for work in parked.values()]
                for host, slots in self._hosts.items()
                if slots.silent and any(slots.parked.values())
            }

    def answers(self, host: str) -> None:
        """Note that a call to the host was answered, and hand its slots to waiting work again."""
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
        """Stop the wait of these operations, and return those that were waiting.

        They get no slot.
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
        """Stop the wait of all work with this owner, and return that work."""
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
        """Hand free slots to the work that waits for them.

        The work holds its slot from this moment, whatever happens to it.
        """
        for urgent, parked in slots.parked.items():
            while parked and self._has_slot(slots, urgent):
                _, work = parked.popitem(last=False)
                slots.taken[urgent] += 1
                work.slot_urgent, work.held_host = urgent, host
                self._resume(work)
        if slots.unused():
            del self._hosts[host]
