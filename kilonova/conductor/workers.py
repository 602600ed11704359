"""What bounds the work of a process: its workers, threads that do jobs, and the slots of hosts (operations.md rule 5).

    workers = Workers(32)
    workers.start()
    workers.add(lambda: run(work), urgent=False)
    workers.call_later(30.0, lambda: wake(uuid))

    slots = Slots(10, workers.lock, resume)
    if not slots.take('gpu1', work):
        ...                             # parked: resume(work) is called when it has a slot
    slots.release('gpu1', work)

A quarter of the workers is kept for urgent jobs. A job may return another one, which the same worker does next. What
waits for its time costs no thread: one looks after all of it (rule 7).
"""
from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from kilonova import concurrency

LOG = logging.getLogger(__name__)

# It returns what follows, or None.
Job = Callable[[], 'Job | None']


class Workers:
    """``lock`` guards the queues; whoever must see queued and other work together takes it, too."""

    def __init__(self, count: int) -> None:
        lock = threading.RLock()
        # Where idle workers wait: those for any job, and those for urgent ones alone.
        self.lock, self._reserved = threading.Condition(lock), threading.Condition(lock)
        self.threads: list[threading.Thread] = []
        self.stopping = False
        self._count, self._running = count, 0
        self._urgent: deque[Job] = deque()
        self._normal: deque[Job] = deque()
        # (when by the monotonic clock, order, what to call).
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
        """Until running jobs have ended, or that long."""
        end = time.monotonic() + seconds
        while self._running and time.monotonic() < end:
            time.sleep(0.05)

    def busy(self) -> bool:
        """Whether anything is queued or running; not what waits for its time."""
        return bool(self._urgent or self._normal or self._running)

    def due(self) -> int:
        """How much waits for its time."""
        return len(self._due)

    def add(self, job: Job, urgent: bool) -> None:
        """Queue a job."""
        with self.lock:
            (self._urgent if urgent else self._normal).append(job)
            self.lock.notify()
            if urgent:
                self._reserved.notify()

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act``, which doesn't block, that many seconds from now."""
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
                LOG.exception('a flow left the runner with an error')
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
    """What holds a slot. ``slot_urgent``: its slot is one of those for urgent work; ``held_host``: the slot's host."""

    uuid: str
    owner: str
    held_host: str | None
    slot_urgent: bool

    @property
    def is_urgent(self) -> bool:
        """Whether it goes before others."""


HolderT = TypeVar('HolderT', bound=Holder)


@dataclass
class HostSlots(Generic[HolderT]):
    """The calls to one host: how many there are of urgent work and of the rest, and what waits for a slot, oldest
    first. ``silent``: its last call was not answered, so one call at a time finds out whether it is back."""

    taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    parked: dict[bool, OrderedDict[str, HolderT]] = field(
        default_factory=lambda: {True: OrderedDict(), False: OrderedDict()})
    silent: bool = False

    def unused(self) -> bool:
        return not (any(self.taken.values()) or any(self.parked.values()) or self.silent)


class Slots(Generic[HolderT]):
    """``a_host``: slots of each host; urgent work has as many of its own. ``resume(work)``: it waited and has a slot
    now. ``lock``: the one under which work is queued, so that nothing is between a slot and the queue unseen."""

    def __init__(self, a_host: int, lock: threading.Condition, resume: Callable[[HolderT], None]) -> None:
        self._a_host, self._lock, self._resume = a_host, lock, resume
        self._hosts: dict[str, HostSlots[HolderT]] = {}

    def take(self, host: str, work: HolderT) -> bool:
        """A slot of the host, or False: the work is parked and goes on when one gets free."""
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
        """Give the slot back; the oldest parked work of that host gets it."""
        with self._lock:
            slots = self._hosts[host]
            slots.taken[work.slot_urgent] -= 1
            self._next(host, slots)

    def silent(self, host: str) -> None:
        """A call to the host was not answered."""
        with self._lock:
            self._hosts.setdefault(host, HostSlots()).silent = True

    def is_silent(self, host: str) -> bool:
        """Return whether the last call to the host was not answered."""
        with self._lock:
            slots = self._hosts.get(host)
            return slots is not None and slots.silent

    def waiting_for_silent(self) -> dict[str, list[HolderT]]:
        """Return what waits for a slot of a host whose last call was not answered, by host."""
        with self._lock:
            return {host: [work for parked in slots.parked.values() for work in parked.values()]
                    for host, slots in self._hosts.items() if slots.silent and any(slots.parked.values())}

    def answers(self, host: str) -> None:
        """A call to the host was answered: what waits for slots goes on."""
        with self._lock:
            slots = self._hosts.get(host)
            if slots is not None and slots.silent:
                slots.silent = False
                self._next(host, slots)

    def parked(self) -> list[str]:
        """Operations that wait for a slot."""
        with self._lock:
            return [uuid for slots in self._hosts.values() for parked in slots.parked.values() for uuid in parked]

    def unpark(self, uuids: Iterable[str]) -> list[HolderT]:
        """Those of these that wait; they wait no more, and have no slot."""
        with self._lock:
            return [parked.pop(uuid) for uuid in uuids for slots in self._hosts.values()
                    for parked in slots.parked.values() if uuid in parked]

    def unpark_all(self, owner: str) -> list[HolderT]:
        """What waits as an owner that this process isn't any more."""
        with self._lock:
            return [parked.pop(work.uuid) for slots in self._hosts.values() for parked in slots.parked.values()
                    for work in list(parked.values()) if work.owner == owner]

    def _has_slot(self, slots: HostSlots[HolderT], urgent: bool) -> bool:
        return slots.taken[urgent] < (1 if slots.silent else self._a_host)

    def _next(self, host: str, slots: HostSlots[HolderT]) -> None:
        """Hand free slots to what waits for them: the work has its slot from now on, whatever becomes of it."""
        for urgent, parked in slots.parked.items():
            while parked and self._has_slot(slots, urgent):
                _, work = parked.popitem(last=False)
                slots.taken[urgent] += 1
                work.slot_urgent, work.held_host = urgent, host
                self._resume(work)
        if slots.unused():
            del self._hosts[host]
