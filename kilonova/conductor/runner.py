"""The runner of flows: which rows this process has in hand, and who does what with them.

    runner = Runner(env, slots=32, slots_per_host=10, lease_time=30, sweep_interval=10, host='ctl1')
    runner.start()
    runner.wake(db, ['4ee1…'])          # an operation row was accepted: take it and run it

RPC handlers never run a flow (operations.md rule 5): they ``wake`` the runner. Its workers (``workers``) do the rest,
under a lease in each database (``leases``) and with a slot of the host that they ask (``slots``). Each database has a
thread that renews and one that sweeps (``sweep``), so that a silent one holds up no other.
"""
from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

from kilonova import concurrency
from kilonova.conductor import flows, process
from kilonova.conductor.cancels import Cancels
from kilonova.conductor.environment import Environment
from kilonova.conductor.leases import Leases
from kilonova.conductor.sweep import YOUNG, Sweep
from kilonova.conductor.work import Parked, Work
from kilonova.conductor.workers import Job, Slots, Workers
from kilonova.db.engine import Database
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import LeaseLost

LOG = logging.getLogger(__name__)

# Seconds after which a row that cannot be read is looked at again: somebody may have mended it.
UNREADABLE_PAUSE = 300.0


class Runner:
    """``wake(db, uuids)`` is all that others call; everything else happens in its workers."""

    def __init__(self, env: Environment, *, slots: int, slots_per_host: int, lease_time: float, sweep_interval: float,
                 host: str) -> None:
        self.env, self._host = env, host
        self._renew_interval, self.sweep_interval = lease_time / 6, sweep_interval
        self.workers = Workers(slots)
        self.slots: Slots[Work[Any]] = Slots(slots_per_host, self.workers.lock, self._go_on)
        self.leases = Leases(host, lease_time, self._drop_parked)
        self._cancels = Cancels(env)
        self._sweep = Sweep(env, self._cancels, host)
        self._held: set[str] = set()
        self._tick = threading.Event()
        env.runner, env.leases, env.slots = self, self.leases, self.slots

    # -- life -----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take the leases, start the workers, the renewal and the sweep."""
        # Here, and not when this was made: a process that forks in between has another number.
        self.leases.host = process.describe(self._host)
        for db in self.env.all_databases():
            self.leases.renew(db)
        self._listen()
        self.workers.start()
        concurrency.spawn(self._look_after_databases, name='databases')
        concurrency.spawn(self._listen_forever, name='hearing')

    def stop(self, timeout: float = 30.0) -> None:
        """Take nothing new, let running steps end for ``timeout`` seconds, give the rows free."""
        self.halt()
        self.workers.wait(timeout)
        self.leases.drop()

    def halt(self) -> None:
        """Take nothing new."""
        self.workers.stop()
        self._tick.set()

    def idle(self) -> bool:
        """Nothing queued, running or parked (tests wait for this)."""
        with self.workers.lock:
            return not (self.workers.busy() or self.slots.parked())

    def _look_after_databases(self) -> None:
        """Each database, those of new cells too, gets its threads."""
        known: set[str] = set()
        while not self.workers.stopping:
            for db in self.env.all_databases():
                if db.url not in known:
                    known.add(db.url)
                    concurrency.spawn(self._renew_forever, db, name=f'lease-{db.name}')
                    concurrency.spawn(self._sweep_forever, db, name=f'sweep-{db.name}')
            self._tick.wait(self.sweep_interval)
            try:
                self.env.cells.reload()
            except Exception as error:
                LOG.warning('cells not read again: %s', error)

    def _renew_forever(self, db: Database) -> None:
        while not self._tick.wait(self._renew_interval):
            self.leases.renew(db)

    def _sweep_forever(self, db: Database) -> None:
        while not self.workers.stopping:
            self._sweep.of(db, YOUNG)
            self._tick.wait(self.sweep_interval)

    def sweep(self, age: float = -60.0) -> int:
        """Wake every row that may be taken, is in no runner and is ``age`` seconds old; returns how many."""
        return sum(self._sweep.of(db, age) for db in self.env.all_databases())

    # -- hosts ----------------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        """Note whether hosts report at all: what ``hearing`` decides by."""
        for db in self.env.cells.databases():
            try:
                self.env.hearing.look(db)
            except Exception as error:
                LOG.warning('reports of hosts in %s not read: %s', db.name, error)
        self._free_of_lost_hosts()

    def _free_of_lost_hosts(self) -> None:
        """Go on with what waits for a slot of a host that is down by now: its own next step finds that out."""
        for host, works in self.slots.waiting_for_silent().items():
            try:
                lost = {work.uuid for work in works if self.env.hearing.is_down(work.db, host)}
            except Exception as error:
                LOG.warning('whether host %s is down was not read: %s', host, error)
                continue
            for work in self.slots.unpark(lost):
                self.workers.add(functools.partial(self._resume, work), work.is_urgent)

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
    def wake(self, db: Database, uuids: Sequence[str], urgent: bool = False, fresh: bool = False) -> None:
        """Rows to take and run; several uuids of one create are scheduled together. ``fresh``: just accepted, so nobody
        has worked on them yet. A row that waits here for a slot is looked at again: somebody may have cancelled it."""
        with self.workers.lock:
            if self.workers.stopping:
                return
            wanted = [uuid for uuid in uuids if uuid not in self._held]
            self._held.update(wanted)
            parked = self.slots.unpark(set(uuids).difference(wanted))
        for work in parked:
            self.workers.add(functools.partial(self._resume, work), urgent)
        if wanted:
            self.workers.add(functools.partial(self._take, db, wanted, fresh), urgent)

    def holds(self, uuid: str) -> bool:
        """Whether a row is in this runner."""
        return uuid in self._held

    def _take(self, db: Database, uuids: list[str], fresh: bool = False) -> Job | None:
        owner = self.leases.owner_in(db)
        try:
            self.leases.check(db, owner)
            rows = operation_leases.take(db, uuids, owner)
        except Exception as error:
            LOG.warning('operations %s not taken now: %s', ', '.join(uuids), error)
            self._forget(uuids)
            return None
        works = [work for row in rows if (work := self._work(db, row, owner)) is not None]
        taken = {work.uuid for work in works}
        left = [uuid for uuid in uuids if uuid not in taken]
        self._forget(left)
        for work in works:
            work.select_answered = fresh
        if len(works) > 1:
            flows.FLOWS['boot'].begin_together([work for work in works if work.kind == 'boot' and work.position == 0
                                                and not (work.failed or work.cancelled)])
        for work in works[1:]:
            self.workers.add(functools.partial(self.run, work), work.is_urgent)
        for uuid in set(left).difference(row.uuid for row in rows):
            self._cancels.before(db, uuid)
        return functools.partial(self.run, works[0]) if works else None

    def _work(self, db: Database, row: operations.Operation, owner: str) -> Work[Any] | None:
        """Return the work of a row. None if a text of the row cannot be read, or its kind is unknown: it is logged and
        set aside, so that it holds up no other row."""
        why = row.unreadable or ('' if row.kind in flows.FLOWS else 'kind (this release knows no such operation)')
        if not why:
            try:
                return Work(row, db, self.env, owner, flows.FLOWS[row.kind].outputs)
            except Exception as error:
                why = f'outputs or context ({type(error).__name__}: {error})'
        LOG.error('Operation %s (%s) of %s cannot be read: %s. It is neither run nor undone, and looked at again in '
                  "%.0f s; 'kilonova-manage operation list' says what to do.", row.uuid, row.kind, row.instance_uuid,
                  why, UNREADABLE_PAUSE)
        try:
            operation_leases.set_aside(db, row.uuid, owner, UNREADABLE_PAUSE)
        except Exception as error:
            LOG.warning('Operation %s could not be set aside now: %s', row.uuid, error)
        return None

    def run(self, work: Work[Any]) -> None:
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

    def _go_on(self, work: Work[Any]) -> None:
        self.workers.add(functools.partial(self._resume, work), work.slot_urgent)

    def _resume(self, work: Work[Any]) -> Job | None:
        """Go on with work that waited for a slot, unless its row went elsewhere meanwhile."""
        try:
            work.resumed()
        except LeaseLost:
            LOG.info('Operation %s (%s) went on elsewhere while it waited.', work.uuid, work.kind)
            work.lost()
        except Exception as error:
            work.give_back(error)
        else:
            return functools.partial(self.run, work)
        return None

    def was_cancelled(self, db: Database, uuid: str) -> None:
        """Somebody cancelled this row: its hosts stop, and it is taken if nobody has it. Whoever has it learns it from
        them, or by its next sweep."""
        self._cancels.again(db, uuid)

    def finished(self, work: Work[Any], retry_in: float | None = None) -> None:
        """The work left the runner; a row that was given back is looked at again in time."""
        self._forget([work.uuid])
        if retry_in is not None:
            self.workers.call_later(retry_in + 0.05, functools.partial(
                self.wake, work.db, [work.uuid], urgent=work.is_urgent))

    def _forget(self, uuids: Sequence[str]) -> None:
        with self.workers.lock:
            self._held.difference_update(uuids)

    def _drop_parked(self, owner: str) -> None:
        """What waits for slots as another owner is nobody's of ours any more; what runs finds out by itself."""
        for work in self.slots.unpark_all(owner):
            work.lost()
