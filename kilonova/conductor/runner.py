"""The bounded runner of flows, and the sweep that finds rows which nobody works on.

RPC handlers never run a flow (operations.md rule 5): they ``wake`` the runner. A quarter of its workers is kept for
deletes and undos. One lease per process in each database says that its rows are being worked on (rule 6).
"""
from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from oslo_utils import uuidutils

from kilonova import concurrency
from kilonova.conductor import flows, process
from kilonova.conductor.flow import Parked
from kilonova.conductor.work import Environment, Work
from kilonova.db.queries import operations
from kilonova.errors import LeaseLost, Unanswered

LOG = logging.getLogger(__name__)

URGENT_KINDS = frozenset(('delete', 'soft_delete', 'release', 'confirm', 'revert'))
SWEEP_BATCH = 200
# Seconds in which a row's own cast should have come; the sweep leaves younger rows to it.
YOUNG = 2.0


class Runner:
    """``wake(db, uuids)`` is all that others call; everything else happens in its workers."""

    def __init__(self, env: Environment, *, slots: int, slots_per_host: int, lease_time: float, sweep_interval: float,
                 host: str) -> None:
        self.env, self.owner, self._host_name, self._host = env, uuidutils.generate_uuid(), host, host
        self._slots, self._slots_per_host = slots, slots_per_host
        self._lease_time, self._sweep_interval = lease_time, sweep_interval
        self._lock = threading.Condition()
        self._urgent: deque[Callable[[], None]] = deque()
        self._normal: deque[Callable[[], None]] = deque()
        self._held: set[str] = set()
        self._hosts: dict[str, int] = {}
        self._parked: dict[str, deque[Work]] = {}
        self._renewed: dict[str, float] = {}
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
        self._renew()
        self._listen()
        reserved = max(1, self._slots // 4)
        for number in range(self._slots):
            self._threads.append(concurrency.spawn(self._work, number < reserved, name=f'flow-{number}'))
        concurrency.spawn(self._renew_forever, name='lease')
        concurrency.spawn(self._sweep_forever, name='sweep')
        concurrency.spawn(self._listen_forever, name='hearing')

    def stop(self, timeout: float = 30.0) -> None:
        """Take nothing new, let running steps end for ``timeout`` seconds, give the rows free."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._tick.set()
        end = time.monotonic() + timeout
        while self._running and time.monotonic() < end:
            time.sleep(0.05)
        for db in self._databases():
            try:
                operations.drop_lease(db, self.owner)
            except Exception as error:
                LOG.warning('lease in %s not given back: %s', db.name, error)

    def idle(self) -> bool:
        """Nothing queued, running or parked (tests wait for this)."""
        with self._lock:
            return not (self._urgent or self._normal or self._running or any(self._parked.values()))

    def _databases(self) -> list[Any]:
        return [self.env.api, *self.env.cells.databases()]

    # -- leases ---------------------------------------------------------------------------------------------------
    def check_lease(self, db: Any) -> None:
        """A process that couldn't renew for two thirds of the lease starts no step (rule 6)."""
        renewed = self._renewed.get(db.url)
        if renewed is None or time.monotonic() - renewed > self._lease_time * 2 / 3:
            self._renew_one(db)

    def _renew_one(self, db: Any) -> None:
        before = time.monotonic()
        try:
            operations.renew_lease(db, self.owner, self._host, self._lease_time)
        except Exception as error:
            raise LeaseLost(operation=f'of {self.owner}: {error}') from error
        self._renewed[db.url] = before

    def _renew(self) -> None:
        for db in self._databases():
            try:
                self._renew_one(db)
            except LeaseLost as error:
                LOG.warning('lease in %s not renewed: %s', db.name, error)

    def _renew_forever(self) -> None:
        while not self._tick.wait(self._lease_time / 6):
            self._renew()

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
        has worked on them yet."""
        with self._lock:
            wanted = [uuid for uuid in uuids if uuid not in self._held]
            if not wanted or self._stopping:
                return
            self._held.update(wanted)
        self._enqueue(lambda: self._take(db, wanted, fresh), urgent)

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
        try:
            rows = operations.take(db, uuids, self.owner)
        except Exception as error:
            LOG.warning('operations %s not taken now: %s', ', '.join(uuids), error)
            self._forget(uuids)
            return
        taken = {row['uuid'] for row in rows}
        self._forget([uuid for uuid in uuids if uuid not in taken])
        works = [Work(row, db, self.env) for row in rows]
        for work in works:
            work.select_answered = fresh
        group = [work for work in works if work.kind == 'boot' and work.position == 0
                 and not (work.failed or work.cancelled)]
        if len(group) > 1:
            flows.FLOWS['boot'].select_together(group)  # type: ignore[attr-defined]
        for work in works[1:]:
            self._enqueue(functools.partial(self.run, work), work.kind in URGENT_KINDS or work.failed)
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

    def finished(self, work: Work, retry_in: float | None = None) -> None:
        """The work left the runner; a row that was given back is looked at again in time."""
        self._forget([work.uuid])
        if retry_in is not None and not self._stopping:
            timer = threading.Timer(retry_in + 0.05, self.wake, (work.db, [work.uuid]),
                                    {'urgent': work.kind in URGENT_KINDS or work.failed})
            timer.daemon = True
            timer.start()

    def _forget(self, uuids: Sequence[str]) -> None:
        with self._lock:
            self._held.difference_update(uuids)

    def _cancel_before(self, db: Any, uuid: str) -> None:
        """A waiting delete: tell the hosts of the row before it to stop, so that its holder unwinds at once."""
        try:
            with db.read() as conn:
                waiting = operations.get(conn, uuid)
                if waiting is not None and waiting['slot'] != operations.WAIT:
                    return
            if waiting is None:
                self._elsewhere(db, uuid)
                return
            with db.read() as conn:
                rows = operations.of_instance(conn, waiting['instance_uuid'])
                instance = operations.instance_queries.get(conn, waiting['instance_uuid'])
        except Exception as error:
            LOG.warning('cancel of what runs before %s not sent: %s', uuid, error)
            return
        for row in rows:
            if row['slot'] != operations.RUN:
                continue
            hosts = {instance['host']} if instance and instance['host'] else set()
            hosts.update(flows.hosts_of(row))
            ctxt = Work(waiting, db, self.env).ctxt
            for host in hosts:
                self.env.compute.cancel(ctxt, server=host, key_prefix=f"{row['uuid']}/")
            self.wake(db, [row['uuid']], urgent=True)

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
        """A slot of the host, or False: the work is parked and goes on when one gets free."""
        with self._lock:
            if self._hosts.get(host, 0) < self._slots_per_host or work.kind in URGENT_KINDS:
                self._hosts[host] = self._hosts.get(host, 0) + 1
                return True
            self._parked.setdefault(host, deque()).append(work)
            return False

    def release_host(self, host: str) -> None:
        """Give the slot back; the oldest parked work of that host goes on."""
        with self._lock:
            self._hosts[host] -= 1
            parked = self._parked.get(host)
            work = parked.popleft() if parked else None
        if work is not None:
            self._enqueue(functools.partial(self.run, work), work.failed)

    # -- sweep ----------------------------------------------------------------------------------------------------
    def _sweep_forever(self) -> None:
        while not self._stopping:
            self.sweep(YOUNG)
            self._tick.wait(self._sweep_interval)

    def sweep(self, age: float = -60.0) -> int:
        """Wake every row that may be taken, is in no runner and is ``age`` seconds old; returns how many."""
        found = 0
        try:
            self.env.cells.reload()
        except Exception as error:
            LOG.warning('cells not read again: %s', error)
        for db in self._databases():
            try:
                self._bury(db)
                with db.read() as conn:
                    rows = operations.free(conn, self.owner, SWEEP_BATCH, age)
                rows = self._without_twins(db, rows)
            except Exception as error:
                LOG.warning('sweep of %s: %s', db.name, error)
                continue
            for row in rows:
                if row['uuid'] not in self._held:
                    found += 1
                    self.wake(db, [row['uuid']], urgent=row['kind'] in URGENT_KINDS or row['failed'])
        return found

    def _bury(self, db: Any) -> None:
        """Rows of a process of this machine that is certainly dead needn't wait for its lease to end."""
        with db.read() as conn:
            living = operations.living(conn)
        for owner, text in living:
            if owner != self.owner and process.is_dead(text, self._host_name):
                LOG.info('Conductor process %s (%s) is dead: its operations in %s go on', owner, text, db.name)
                operations.drop_lease(db, owner)

    def _without_twins(self, db: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A cell's boot row is left alone while its twin in the api database exists (rule 19)."""
        boots = [row['uuid'] for row in rows if row['kind'] == 'boot']
        if db is self.env.api or not boots:
            return rows
        try:
            with self.env.api.read() as conn:
                twins = operations.existing(conn, boots)
        except Exception as error:
            raise Unanswered(who='the api database', reason=str(error)) from error
        return [row for row in rows if row['uuid'] not in twins]
