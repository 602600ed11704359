"""``Runner``, which takes operation rows for this conductor process and runs the steps of the operations.

    runner = Runner(env, slots=32, slots_per_host=10, lease_time=30, sweep_interval=10, host='ctl1')
    runner.start()
    runner.wake(db, ['4ee1…'])          # take the operation rows with these uuids, and run the operations

RPC handlers never run the steps themselves (rule 5 of contributor/operations.md). They call ``wake``, and worker
threads (``workers``) run the steps. To take a row, the process needs a lease in the row's database (``leases``). To
call a host, a worker needs one of the host's slots, which limit the simultaneous calls (``slots``). Each database has a
thread that renews the lease and a thread that searches for rows to run (``sweep``), so that a database that doesn't
answer delays no other database.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from kilonova import concurrency
from kilonova.conductor import flows, process
from kilonova.conductor.cancels import Cancels
from kilonova.conductor.environment import Environment
from kilonova.conductor.leases import Leases
from kilonova.conductor.sweep import YOUNG, Sweep
from kilonova.conductor.work import WaitingForHostSlot, Work
from kilonova.conductor.workers import Job, OperationSlots, WorkerThreads
from kilonova.db.engine import Database
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import LeaseLost

LOG = logging.getLogger(__name__)

# Seconds after which a row that could not be parsed is read again, because an operator may have repaired the row.
UNREADABLE_PAUSE = 300.0


class Runner:
    """Runs operations in the worker threads of one conductor process.

    Other modules call ``wake`` to make the runner take operation rows and run the operations.
    """

    def __init__(
        self, env: Environment, *, slots: int, slots_per_host: int, lease_time: float, sweep_interval: float, host: str
    ) -> None:
        self.env, self._host = env, host
        self._renew_interval, self.sweep_interval = lease_time / 6, sweep_interval
        self.workers = WorkerThreads(slots)
        self.slots: OperationSlots[Work[Any]] = OperationSlots(slots_per_host, self.workers.lock, self._go_on)
        self.leases = Leases(host, lease_time, self._drop_parked)
        self._cancels = Cancels(env)
        self._sweep = Sweep(env, self._cancels, host)
        self._held: set[str] = set()
        self._tick = threading.Event()
        env.runner, env.leases, env.slots = self, self.leases, self.slots

    # -- start and stop -------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Take the leases, and start the workers and the background threads.

        The background threads renew the leases, search the databases for operation rows, and read the reports of hosts.
        """
        # The description contains the process id, so it is set after a possible fork and not in __init__.
        self.leases.host = process.describe(self._host)
        for db in self.env.all_databases():
            self.leases.renew(db)
        self._listen()
        self.workers.start()
        concurrency.spawn(self._look_after_databases, name='databases')
        concurrency.spawn(self._listen_forever, name='liveness')

    def stop(self, timeout: float = 30.0) -> None:
        """Take no more operation rows, and wait up to ``timeout`` seconds for running steps to end.

        Then stop owning any row, so that other conductors can take the rows.
        """
        self.halt()
        self.workers.wait(timeout)
        self.leases.drop()

    def halt(self) -> None:
        """Take no more operation rows, and start no further jobs."""
        self.workers.stop()
        self._tick.set()

    def idle(self) -> bool:
        """Return whether no operation is queued, running or waiting to call a host. Used by tests."""
        with self.workers.lock:
            return not (self.workers.busy() or self.slots.parked())

    def _look_after_databases(self) -> None:
        """Start two threads for each database: one renews the lease, the other searches for operation rows.

        Runs until the process stops, and also starts the threads of cells that are added in the meantime.
        """
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
                LOG.warning(
                    'Could not read the cell mappings again; continuing with the mappings that were read before: %s',
                    error,
                )

    def _renew_forever(self, db: Database) -> None:
        while not self._tick.wait(self._renew_interval):
            self.leases.renew(db)

    def _sweep_forever(self, db: Database) -> None:
        while not self.workers.stopping:
            self._sweep.of(db, YOUNG)
            self._tick.wait(self.sweep_interval)

    def sweep(self, age: float = -60.0) -> int:
        """Take the operation rows that no conductor owns, in all databases, and return their number.

        Operations that this runner already has are left out. ``age`` is the minimum age of a row in seconds; the
        default takes rows of any age.
        """
        return sum(self._sweep.of(db, age) for db in self.env.all_databases())

    # -- reports of hosts -----------------------------------------------------------------------------------------
    def _listen(self) -> None:
        """Read which hosts have reported, so that ``env.liveness`` can decide which hosts are down."""
        for db in self.env.cells.databases():
            try:
                self.env.liveness.look(db)
            except Exception as error:
                LOG.warning(
                    'Could not read the reports of hosts in database %s; the next check tries again: %s', db.name, error
                )
        self._free_of_lost_hosts()

    def _free_of_lost_hosts(self) -> None:
        """Continue the operations that wait for a slot of a host that is down.

        Their calls to the host then raise HostDown at once, so that they don't wait until the host is back.
        """
        for host, works in self.slots.waiting_for_silent().items():
            try:
                lost = {work.uuid for work in works if self.env.liveness.is_down(work.db, host)}
            except Exception as error:
                LOG.warning('Could not find out whether host %s is down; the next check tries again: %s', host, error)
                continue
            for work in self.slots.unpark(lost):
                self.workers.add(functools.partial(self._resume, work), work.is_urgent)

    def _listen_forever(self) -> None:
        while not self._tick.wait(self.env.liveness.period):
            self._listen()
            if self.env.liveness.silence:
                self._listen_to_itself()

    def _listen_to_itself(self) -> None:
        """Send a message to this conductor through the message queue, to find out whether hosts can report at all.

        If the message does not arrive, this conductor is cut off from the queue. Then a missing report does not mean
        that the host is down.
        """
        try:
            self.env.ping()
        except Exception as error:
            self.env.liveness.cut_off()
            LOG.warning(
                'No compute is reporting and a ping through RabbitMQ failed: treating hosts as unknown, not down: %s',
                error,
            )

    # -- running operations ---------------------------------------------------------------------------------------
    def wake(self, db: Database, uuids: Sequence[str], urgent: bool = False, fresh: bool = False) -> None:
        """Take the operation rows with these uuids from a database and run their operations in the worker threads.

        Several uuids are the rows of one create request, whose servers are scheduled together. If ``urgent`` is True,
        the operations run before others. ``fresh`` is True if no conductor has worked on the rows yet. If one of these
        operations is already in this process and waits for a slot of a host, it is not taken again. It reads its row
        again, because it may have been cancelled.
        """
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
        """Return whether this process already has the operation with this uuid: queued, waiting or running."""
        return uuid in self._held

    def _take(self, db: Database, uuids: list[str], fresh: bool = False) -> Job | None:
        owner = self.leases.owner_in(db)
        try:
            self.leases.check(db, owner)
            rows = operation_leases.take(db, uuids, owner)
        except Exception as error:
            LOG.warning(
                'Could not start operations %s; the next periodic search ([conductor]sweep_interval) tries again: %s',
                ', '.join(uuids),
                error,
            )
            self._forget(uuids)
            return None
        works = [work for row in rows if (work := self._work(db, row, owner)) is not None]
        taken = {work.uuid for work in works}
        left = [uuid for uuid in uuids if uuid not in taken]
        self._forget(left)
        for work in works:
            work.select_answered = fresh
        if len(works) > 1:
            flows.FLOWS['boot'].begin_together(
                [
                    work
                    for work in works
                    if work.kind == 'boot' and work.position == 0 and not (work.failed or work.cancelled)
                ]
            )
        for work in works[1:]:
            self.workers.add(functools.partial(self.run, work), work.is_urgent)
        for uuid in set(left).difference(row.uuid for row in rows):
            self._cancels.before(db, uuid)
        return functools.partial(self.run, works[0]) if works else None

    def _work(self, db: Database, row: operations.OperationRow, owner: str) -> Work[Any] | None:
        """Return the ``Work`` of an operation row, or None if the row cannot be parsed or its kind is unknown.

        ``owner`` is the owner id of this process. If the result is None, an error is logged, and no conductor takes the
        row for ``UNREADABLE_PAUSE`` seconds.
        """
        why = row.unreadable or ('' if row.kind in flows.FLOWS else 'kind (this release knows no such operation)')
        if not why:
            try:
                return Work(row, db, self.env, owner, flows.FLOWS[row.kind].outputs)
            except Exception as error:
                why = f'outputs or context ({type(error).__name__}: {error})'
        LOG.error(
            'Operation %s (%s) of %s cannot be read: %s. It is neither run nor undone, and is checked again in '
            "%.0f s; 'kilonova-manage operation list' says what to do",
            row.uuid,
            row.kind,
            row.instance_uuid,
            why,
            UNREADABLE_PAUSE,
            instance_uuid=row.instance_uuid,
        )
        try:
            operation_leases.set_aside(db, row.uuid, owner, UNREADABLE_PAUSE)
        except Exception as error:
            LOG.warning(
                'Operation %s cannot be read, and its next check could not be postponed: %s. The next periodic search '
                '([conductor]sweep_interval) checks it again',
                row.uuid,
                error,
                instance_uuid=row.instance_uuid,
            )
        return None

    def run(self, work: Work[Any]) -> None:
        """Run one operation in the calling worker thread."""
        # From now on, log lines and notifications of this thread carry the context of the request.
        work.ctxt.update_store()
        try:
            flows.FLOWS[work.kind].run(work)
        except WaitingForHostSlot:
            return
        except Exception:
            LOG.exception(
                'Operation %s (%s): unexpected error; the next periodic search ([conductor]sweep_interval) resumes it',
                work.uuid,
                work.kind,
                instance_uuid=work.instance_uuid,
            )
            work.lost()

    def _go_on(self, work: Work[Any]) -> None:
        self.workers.add(functools.partial(self._resume, work), work.slot_urgent)

    def _resume(self, work: Work[Any]) -> Job | None:
        """Return the job that continues an operation after it waited for a slot of a host.

        First the operation row is read, to check that this process still owns the operation. Returns None if another
        conductor owns it, or if the database does not answer. In the second case the operation is retried later.
        """
        try:
            work.resumed()
        except LeaseLost:
            LOG.info(
                'Operation %s (%s): another conductor took it over while it waited; stopping here',
                work.uuid,
                work.kind,
                instance_uuid=work.instance_uuid,
            )
            work.lost()
        except Exception as error:
            work.give_back(error)
        else:
            return functools.partial(self.run, work)
        return None

    def was_cancelled(self, db: Database, uuid: str) -> None:
        """Tell the hosts that work for an operation that it was cancelled, and try to take it to undo it.

        This process takes the operation row only if no conductor with a valid lease owns it. Otherwise the owner undoes
        the operation. The owner learns of the cancel from the hosts, or when it next searches the database.
        """
        self._cancels.again(db, uuid)

    def finished(self, work: Work[Any], retry_in: float | None = None) -> None:
        """Forget an operation that this process no longer runs.

        If ``retry_in`` is given, the runner tries to take the operation's row again after that many seconds.
        """
        self._forget([work.uuid])
        if retry_in is not None:
            self.workers.call_later(
                retry_in + 0.05, functools.partial(self.wake, work.db, [work.uuid], urgent=work.is_urgent)
            )

    def _forget(self, uuids: Sequence[str]) -> None:
        with self.workers.lock:
            self._held.difference_update(uuids)

    def _drop_parked(self, owner: str) -> None:
        """Forget the operations that wait for a host and belong to ``owner``, because the owner's lease has expired.

        Running operations need not be stopped here: their next check of the lease raises LeaseLost.
        """
        for work in self.slots.unpark_all(owner):
            work.lost()
