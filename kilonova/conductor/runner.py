"""The bounded runner of flows, and the sweep that finds rows which nobody works on.

    runner = Runner(env, slots=32, slots_per_host=10, lease_time=30, sweep_interval=10, host='ctl1')
    runner.start()
    runner.wake(db, ['4ee1…'])          # an operation row was accepted: take it and run it

RPC handlers never run a flow (operations.md rule 5): they ``wake`` the runner. A quarter of its workers is kept for
deletes and undos. One lease a process in each database says that its rows are being worked on (rule 6). A lease that
ran out is never renewed: the process goes on as another owner, and drops what it held. Each database has a thread that
renews and one that sweeps, so that a silent one holds up no other.
"""
from __future__ import annotations

import functools
import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from kilonova import concurrency
from kilonova.conductor import flows, process
from kilonova.conductor.environment import Environment
from kilonova.conductor.work import Parked, Work
from kilonova.db.queries import operations
from kilonova.errors import LeaseLost, Unanswered

LOG = logging.getLogger(__name__)

URGENT_KINDS = frozenset(('delete', 'soft_delete', 'release', 'confirm', 'revert'))
SWEEP_BATCH = 200
# Seconds in which a row's own cast should have come; the sweep leaves younger rows to it.
YOUNG = 2.0


@dataclass
class Lease:
    """This process in one database. ``owner`` changes when the lease ran out; ``renewed``: when the last renewal was
    sent, by the monotonic clock, None while there is no lease."""

    db: Any
    owner: str
    renewed: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class HostSlots:
    """The calls to one host: how many there are of urgent work and of the rest, and what waits for a slot, oldest
    first. ``silent``: its last call was not answered, so one call at a time finds out whether it is back."""

    taken: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    parked: dict[bool, OrderedDict[str, Work]] = field(
        default_factory=lambda: {True: OrderedDict(), False: OrderedDict()})
    silent: bool = False

    def unused(self) -> bool:
        return not (any(self.taken.values()) or any(self.parked.values()) or self.silent)


class Runner:
    """``wake(db, uuids)`` is all that others call; everything else happens in its workers."""

    def __init__(self, env: Environment, *, slots: int, slots_per_host: int, lease_time: float, sweep_interval: float,
                 host: str) -> None:
        self.env, self._host_name, self._host = env, host, host
        self._slots, self._slots_per_host = slots, slots_per_host
        self._lease_time, self._renew_interval, self._sweep_interval = lease_time, lease_time / 6, sweep_interval
        self._lock = threading.Condition()
        self._urgent: deque[Callable[[], None]] = deque()
        self._normal: deque[Callable[[], None]] = deque()
        self._held: set[str] = set()
        self._hosts: dict[str, HostSlots] = {}
        self._leases: dict[str, Lease] = {}
        # (when by the monotonic clock, order, database, row, urgent) of rows that wait for their time.
        self._due: list[tuple[float, int, Any, str, bool]] = []
        self._order = itertools.count()
        self._due_changed = threading.Condition()
        self._behind: dict[str, int] = {}
        self._stopping = False
        self._running = 0
        self._threads: list[threading.Thread] = []
        self._tick = threading.Event()
        env.runner = self

    # -- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take the leases, start the workers, the renewal and the sweep."""
        # Here, and not when this was made: a process that forks in between has another number.
        self._host = process.describe(self._host_name)
        for db in self._databases():
            self._begin(db)
        self._listen()
        reserved = max(1, self._slots // 4)
        for number in range(self._slots):
            self._threads.append(concurrency.spawn(self._work, number < reserved, name=f'flow-{number}'))
        concurrency.spawn(self._look_after_databases, name='databases')
        concurrency.spawn(self._wake_when_due, name='due')
        concurrency.spawn(self._listen_forever, name='hearing')

    def stop(self, timeout: float = 30.0) -> None:
        """Take nothing new, let running steps end for ``timeout`` seconds, give the rows free."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._tick.set()
        with self._due_changed:
            self._due_changed.notify_all()
        end = time.monotonic() + timeout
        while self._running and time.monotonic() < end:
            time.sleep(0.05)
        for lease in list(self._leases.values()):
            try:
                operations.drop_lease(lease.db, lease.owner)
            except Exception as error:
                LOG.warning('lease in %s not given back: %s', lease.db.name, error)

    def idle(self) -> bool:
        """Nothing queued, running or parked (tests wait for this)."""
        with self._lock:
            return not (self._urgent or self._normal or self._running
                        or any(parked for slots in self._hosts.values() for parked in slots.parked.values()))

    def parked(self) -> list[str]:
        """Operations that wait for a slot of a host."""
        with self._lock:
            return [uuid for slots in self._hosts.values() for parked in slots.parked.values() for uuid in parked]

    def _databases(self) -> list[Any]:
        return [self.env.api, *self.env.cells.databases()]

    def _look_after_databases(self) -> None:
        """Each database, those of new cells too, gets its threads."""
        known: set[str] = set()
        while not self._stopping:
            for db in self._databases():
                if db.url not in known:
                    known.add(db.url)
                    concurrency.spawn(self._renew_forever, db, name=f'lease-{db.name}')
                    concurrency.spawn(self._sweep_forever, db, name=f'sweep-{db.name}')
            self._tick.wait(self._sweep_interval)
            try:
                self.env.cells.reload()
            except Exception as error:
                LOG.warning('cells not read again: %s', error)

    # -- leases ---------------------------------------------------------------------------------------------------
    def owner_in(self, db: Any) -> str:
        """The owner that this process is in a database now."""
        return self._lease(db).owner

    def check_lease(self, db: Any, owner: str) -> None:
        """LeaseLost when ``owner`` is no owner of this process any more. A process that couldn't renew for two thirds
        of the lease starts no step (rule 6)."""
        lease = self._lease(db)
        if lease.owner == owner and (lease.renewed is None
                                     or time.monotonic() - lease.renewed > self._lease_time * 2 / 3):
            try:
                self._renew(lease)
            except Exception as error:
                raise LeaseLost(operation=f'of {owner}: {error}') from error
        if lease.owner != owner:
            raise LeaseLost(operation=f'of {owner}')

    def _lease(self, db: Any) -> Lease:
        with self._lock:
            return self._leases.setdefault(db.url, Lease(db, uuidutils.generate_uuid()))

    def _begin(self, db: Any) -> None:
        try:
            self._renew(self._lease(db))
        except Exception as error:
            LOG.warning('lease in %s not renewed: %s', db.name, error)

    def _renew(self, lease: Lease) -> None:
        """Renew the lease; where it ran out this process is another owner from now on."""
        with lease.lock:
            before = time.monotonic()
            if lease.renewed is not None:
                if operations.renew_lease(lease.db, lease.owner, self._lease_time):
                    lease.renewed = before
                    return
                LOG.warning('The lease in %s ran out: its operations are dropped, this process is a new owner',
                            lease.db.name)
                lost, lease.owner, lease.renewed = lease.owner, uuidutils.generate_uuid(), None
                self._drop_parked(lost)
            before = time.monotonic()
            operations.begin_lease(lease.db, lease.owner, self._host, self._lease_time)
            lease.renewed = before

    def _drop_parked(self, owner: str) -> None:
        """What waits for slots as another owner is nobody's of ours any more; what runs finds out by itself."""
        with self._lock:
            gone = []
            for slots in self._hosts.values():
                for parked in slots.parked.values():
                    ours = [uuid for uuid, work in parked.items() if work.owner == owner]
                    gone += [parked.pop(uuid) for uuid in ours]
        for work in gone:
            work.lost()

    def _renew_forever(self, db: Any) -> None:
        while not self._tick.wait(self._renew_interval):
            self._begin(db)

    # -- hosts ----------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        """Note whether hosts report at all: what ``hearing`` decides by."""
        for db in self.env.cells.databases():
            try:
                self.env.hearing.look(db)
            except Exception as error:
                LOG.warning('reports of hosts in %s not read: %s', db.name, error)

    def _listen_forever(self) -> None:
        while not self._tick.wait(self.env.hearing.period):
            self._listen()
            if self.env.hearing.silence:
                self._listen_to_itself()

    def _listen_to_itself(self) -> None:
        """Hosts report through the queue: where not even this conductor reaches itself, they couldn't."""
        try:
            self.env.ping()
        except Exception as error:
            self.env.hearing.cut_off()
            LOG.warning('no host reports, and this conductor does not reach itself: %s', error)

    # -- work -----------------------------------------------------------------------------------------------------
    def wake(self, db: Any, uuids: Sequence[str], urgent: bool = False, fresh: bool = False) -> None:
        """Rows to take and run; several uuids of one create are scheduled together. ``fresh``: just accepted, so nobody
        has worked on them yet. A row that waits here for a slot is looked at again: somebody may have cancelled it."""
        with self._lock:
            if self._stopping:
                return
            wanted = [uuid for uuid in uuids if uuid not in self._held]
            self._held.update(wanted)
            parked = [work for work in map(self._unpark, set(uuids).difference(wanted)) if work is not None]
        for work in parked:
            self._enqueue(functools.partial(self._resume, work), urgent)
        if wanted:
            self._enqueue(lambda: self._take(db, wanted, fresh), urgent)

    def _unpark(self, uuid: str) -> Work | None:
        for slots in self._hosts.values():
            for parked in slots.parked.values():
                if uuid in parked:
                    return parked.pop(uuid)
        return None

    def _enqueue(self, job: Callable[[], None], urgent: bool) -> None:
        with self._lock:
            (self._urgent if urgent else self._normal).append(job)
            self._lock.notify_all()

    def _work(self, reserved: bool) -> None:
        while True:
            with self._lock:
                while not self._stopping and not self._urgent and (reserved or not self._normal):
                    self._lock.wait()
                if self._stopping:
                    return
                job = self._urgent.popleft() if self._urgent else self._normal.popleft()
                self._running += 1
            try:
                job()
            except Exception:
                LOG.exception('a flow left the runner with an error')
            finally:
                with self._lock:
                    self._running -= 1

    def _take(self, db: Any, uuids: list[str], fresh: bool = False) -> None:
        owner = self.owner_in(db)
        try:
            self.check_lease(db, owner)
            rows = operations.take(db, uuids, owner)
        except Exception as error:
            LOG.warning('operations %s not taken now: %s', ', '.join(uuids), error)
            self._forget(uuids)
            return
        taken = {row.uuid for row in rows}
        self._forget([uuid for uuid in uuids if uuid not in taken])
        works = [Work(row, db, self.env, owner) for row in rows]
        for work in works:
            work.select_answered = fresh
        group = [work for work in works if work.kind == 'boot' and work.position == 0
                 and not (work.failed or work.cancelled)]
        if len(group) > 1:
            flows.FLOWS['boot'].select_together(group)  # type: ignore[attr-defined]
        for work in works[1:]:
            self._enqueue(functools.partial(self.run, work), is_urgent(work))
        if works:
            self.run(works[0])
        for uuid in uuids:
            if uuid not in taken:
                self._cancel_before(db, uuid)

    def run(self, work: Work) -> None:
        """Run one operation in this worker."""
        # Log lines and notifications of this thread are from now on those of the request.
        work.ctxt.update_store()
        try:
            flows.FLOWS[work.kind].run(work)
        except Parked:
            return
        except Exception:
            LOG.exception('operation %s (%s) left its flow with an error', work.uuid, work.kind)
            work.lost()

    def _resume(self, work: Work) -> None:
        """Go on with work that waited for a slot, unless its row went elsewhere meanwhile."""
        try:
            work.resumed()
        except LeaseLost:
            LOG.info('Operation %s (%s) went on elsewhere while it waited.', work.uuid, work.kind)
            work.lost()
        except Exception as error:
            work.give_back(error)
        else:
            self.run(work)

    def finished(self, work: Work, retry_in: float | None = None) -> None:
        """The work left the runner; a row that was given back is looked at again in time."""
        self._forget([work.uuid])
        if retry_in is not None and not self._stopping:
            with self._due_changed:
                heapq.heappush(self._due, (time.monotonic() + retry_in + 0.05, next(self._order), work.db, work.uuid,
                                           is_urgent(work)))
                self._due_changed.notify_all()

    def _wake_when_due(self) -> None:
        while not self._stopping:
            with self._due_changed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._due_changed.wait(left)
                    continue
                _, _, db, uuid, urgent = heapq.heappop(self._due)
            self.wake(db, [uuid], urgent=urgent)

    def _forget(self, uuids: Sequence[str]) -> None:
        with self._lock:
            self._held.difference_update(uuids)

    def _cancel_before(self, db: Any, uuid: str) -> None:
        """A waiting delete: tell the hosts of the row before it to stop, so that its holder unwinds at once."""
        try:
            with db.read() as conn:
                waiting = operations.get(conn, uuid)
                if waiting is not None and waiting.slot != operations.WAIT:
                    return
            if waiting is None:
                self._elsewhere(db, uuid)
                return
            with db.read() as conn:
                rows = [row for row in operations.of_instance(conn, waiting.instance_uuid)
                        if row.slot == operations.RUN]
                instance = operations.instance_queries.get(conn, waiting.instance_uuid)
            if not rows:
                self._promote(db, waiting.instance_uuid)
            for row in rows:
                self._cancel(db, row, instance)
        except Exception as error:
            LOG.warning('cancel of what runs before %s not sent: %s', uuid, error)

    def _promote(self, db: Any, instance_uuid: str) -> None:
        """Nothing runs before it: the delete may."""
        with db.write() as conn:
            uuid = operations.promote(conn, instance_uuid)
        if uuid is not None:
            self.wake(db, [uuid], urgent=True)

    def _cancel(self, db: Any, row: operations.Operation, instance: dict[str, Any] | None) -> None:
        hosts = {instance['host']} if instance and instance['host'] else set()
        hosts.update(flows.hosts_of(row.outputs, row.attempt))
        ctxt = Work(row, db, self.env, '').ctxt
        for host in sorted(hosts):
            self.env.compute.cancel(ctxt, server=host, key_prefix=f'{row.uuid}/')
        self.wake(db, [row.uuid], urgent=True)

    def _cancelled(self, db: Any, uuid: str) -> None:
        """A row of ours that somebody cancelled, and whose work doesn't know it yet: the cancel may have been lost."""
        with db.read() as conn:
            row = operations.get(conn, uuid)
            instance = operations.instance_queries.get(conn, row.instance_uuid) if row is not None else None
        if row is not None:
            self._cancel(db, row, instance)

    def _elsewhere(self, db: Any, uuid: str) -> None:
        """A row that isn't in the database where it was looked for: wake it where it is."""
        for other in self._databases():
            if other is not db:
                with other.read() as conn:
                    there = operations.existing(conn, [uuid])
                if there:
                    self.wake(other, [uuid], urgent=True)

    # -- slots of hosts -------------------------------------------------------------------------------------------
    def take_host(self, host: str, work: Work) -> bool:
        """A slot of the host, or False: the work is parked and goes on when one gets free. Urgent work has slots of its
        own, as many as the rest."""
        urgent = is_urgent(work)
        with self._lock:
            slots = self._hosts.setdefault(host, HostSlots())
            if self._has_slot(slots, urgent):
                slots.taken[urgent] += 1
                work.slot_urgent = urgent
                return True
            slots.parked[urgent][work.uuid] = work
            return False

    def _has_slot(self, slots: HostSlots, urgent: bool) -> bool:
        return slots.taken[urgent] < (1 if slots.silent else self._slots_per_host)

    def release_host(self, host: str, work: Work) -> None:
        """Give the slot back; the oldest parked work of that host gets it."""
        with self._lock:
            slots = self._hosts[host]
            slots.taken[work.slot_urgent] -= 1
            self._next(host, slots)

    def host_is_silent(self, host: str) -> None:
        """A call to the host was not answered."""
        with self._lock:
            self._hosts.setdefault(host, HostSlots()).silent = True

    def host_answers(self, host: str) -> None:
        """A call to the host was answered: what waits for slots goes on."""
        with self._lock:
            slots = self._hosts.get(host)
            if slots is not None and slots.silent:
                slots.silent = False
                self._next(host, slots)

    def _next(self, host: str, slots: HostSlots) -> None:
        """Hand free slots to what waits for them: the work has its slot from now on, whatever becomes of it."""
        for urgent, parked in slots.parked.items():
            while parked and self._has_slot(slots, urgent):
                _, work = parked.popitem(last=False)
                slots.taken[urgent] += 1
                work.slot_urgent, work.held_host = urgent, host
                self._enqueue(functools.partial(self._resume, work), urgent)
        if slots.unused():
            del self._hosts[host]

    # -- sweep ----------------------------------------------------------------------------------------------------
    def _sweep_forever(self, db: Any) -> None:
        while not self._stopping:
            self._sweep(db, YOUNG)
            self._tick.wait(self._sweep_interval)

    def sweep(self, age: float = -60.0) -> int:
        """Wake every row that may be taken, is in no runner and is ``age`` seconds old; returns how many."""
        return sum(self._sweep(db, age) for db in self._databases())

    def _sweep(self, db: Any, age: float) -> int:
        try:
            owner = self.owner_in(db)
            with db.read() as conn:
                living = operations.living(conn)
                rows = operations.free(conn, owner, SWEEP_BATCH, age)
                waiting, cancelled, behind = operations.stopped(
                    conn, owner, SWEEP_BATCH, age, self._behind.get(db.url, 0))
            # What stays there hides nothing: the next sweep goes on behind it.
            self._behind[db.url] = behind
            if self._bury(db, living):
                return self._sweep(db, age)
            found = self._find(db, age, rows)
            for uuid in waiting:
                self._cancel_before(db, uuid)
            for uuid in cancelled:
                self._cancelled(db, uuid)
        except Exception as error:
            LOG.warning('sweep of %s: %s', db.name, error)
            return 0
        return found

    def _find(self, db: Any, age: float, rows: list[operations.Operation]) -> int:
        """Wake what may be taken, ``rows`` first, a batch at most; rows that are in this runner don't count."""
        found = 0
        while True:
            for row in self._without_twins(db, [row for row in rows if row.uuid not in self._held]):
                found += 1
                self.wake(db, [row.uuid], urgent=row.kind in URGENT_KINDS or row.failed)
            if len(rows) < SWEEP_BATCH or found >= SWEEP_BATCH:
                return found
            with db.read() as conn:
                rows = operations.free(conn, self.owner_in(db), SWEEP_BATCH, age, rows[-1].id)

    def _bury(self, db: Any, living: Sequence[tuple[str, str]]) -> bool:
        """Rows of a process of this machine that is certainly dead needn't wait for its lease to end: True if there was
        one."""
        buried = False
        for owner, text in living:
            if owner != self.owner_in(db) and process.is_dead(text, self._host_name):
                LOG.info('Conductor process %s (%s) is dead: its operations in %s go on', owner, text, db.name)
                operations.drop_lease(db, owner)
                buried = True
        return buried

    def _without_twins(self, db: Any, rows: list[operations.Operation]) -> list[operations.Operation]:
        """A cell's boot row is left alone while its twin in the api database exists (rule 19)."""
        boots = [row.uuid for row in rows if row.kind == 'boot']
        if db is self.env.api or not boots:
            return rows
        try:
            with self.env.api.read() as conn:
                twins = operations.existing(conn, boots)
        except Exception as error:
            raise Unanswered(who='the api database', reason=str(error)) from error
        return [row for row in rows if row.uuid not in twins]


def is_urgent(work: Work) -> bool:
    """Deletes, undos and releases."""
    return work.kind in URGENT_KINDS or work.failed
