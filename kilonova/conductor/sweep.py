"""``Sweep``, which finds operation rows that no conductor works on, for example because an RPC message was lost.

One such search in a database is called a sweep. It also sends cancels again that may have been lost. This module
implements rules 1 and 7 of operations.md. ``runner.Runner`` calls it periodically for each database:

    sweep = Sweep(env, cancels, host='ctl1')
    sweep.of(db, YOUNG)                 # returns the number of operations that were found
"""

from __future__ import annotations

from collections.abc import Sequence

from oslo_log import log as logging

from kilonova.conductor import process
from kilonova.conductor.cancels import Cancels
from kilonova.conductor.environment import Environment
from kilonova.conductor.work import URGENT_KINDS
from kilonova.db.engine import Database
from kilonova.db.queries import operation_leases, operations
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)

# Maximum number of operations that one search of a database starts.
SWEEP_BATCH = 200
# Minimum age in seconds of the rows that a search finds. The RPC message for a younger row may still arrive.
YOUNG = 2.0


class Sweep:
    """Finds the operation rows of a database that no conductor owns, and makes this process run their operations.

    ``host`` is the service host of this process, which is used to recognise dead processes of the same machine.
    """

    def __init__(self, env: Environment, cancels: Cancels, host: str) -> None:
        self._env, self._cancels, self._host = env, cancels, host
        self._behind: dict[str, int] = {}

    def of(self, db: Database, age: float) -> int:
        """Find operation rows that no conductor owns, let this process run their operations, and return the number.

        Operations that this process already has are left out. ``age`` is the minimum age of a row in seconds. The
        cancels of cancelled operations are sent again, and the leases of dead processes are ended. Never raises,
        because the next call tries again.
        """
        try:
            owner = self._env.leases.owner_in(db)
            with db.read() as conn:
                living = operation_leases.living(conn)
                rows = operation_leases.free(conn, owner, SWEEP_BATCH, age)
                waiting, cancelled, behind = operation_leases.stopped(
                    conn, owner, SWEEP_BATCH, age, self._behind.get(db.url, 0)
                )
            # ``stopped`` reads a limited number of waiting and cancelled rows.
            # The next search continues after the row with the id ``behind``, or with the first row if ``behind`` is 0.
            self._behind[db.url] = behind
            if self._end_leases_of_the_dead(db, living):
                return self.of(db, age)
            found = self._find(db, age, rows)
            for uuid in waiting:
                self._cancels.before(db, uuid)
            for uuid in cancelled:
                self._cancels.again(db, uuid)
        except Exception as error:  # noqa: BLE001 - what one database comes to must not end the thread
            LOG.warning(
                'Could not search database %s for operations; the next search tries again: %s',
                db.name,
                error,
            )
            return 0
        return found

    def _find(self, db: Database, age: float, rows: list[operations.OperationRow]) -> int:
        """Find operation rows that no conductor owns, and let this process run their operations.

        Returns the number of operations that were found. ``rows`` are the first of these rows. Further rows are read
        until ``SWEEP_BATCH`` operations were found. Operations that this process already has are skipped and not
        counted. ``age`` is the minimum age of further rows in seconds.
        """
        found = 0
        while True:
            for row in self._without_twins(db, [row for row in rows if not self._env.runner.holds(row.uuid)]):
                found += 1
                self._env.runner.wake(db, [row.uuid], urgent=row.kind in URGENT_KINDS or row.failed)
            if len(rows) < SWEEP_BATCH or found >= SWEEP_BATCH:
                return found
            with db.read() as conn:
                rows = operation_leases.free(conn, self._env.leases.owner_in(db), SWEEP_BATCH, age, rows[-1].id)

    def _end_leases_of_the_dead(self, db: Database, living: Sequence[tuple[str, str]]) -> bool:
        """Delete the leases of dead conductor processes of this machine, and return whether a lease was deleted.

        ``living`` has a pair (owner id, description of the process) for each lease that has not expired. Some of these
        processes may be dead. After a lease is deleted, other conductors can take the operations of its process at
        once, and need not wait until the lease expires.
        """
        buried = False
        for owner, text in living:
            if owner != self._env.leases.owner_in(db) and process.is_dead(text, self._host):
                LOG.info(
                    'Conductor process %s (%s) is dead; other conductors take over its operations in database %s',
                    owner,
                    text,
                    db.name,
                )
                operation_leases.drop_lease(db, owner)
                buried = True
        return buried

    def _without_twins(self, db: Database, rows: list[operations.OperationRow]) -> list[operations.OperationRow]:
        """Return the rows of a cell, except rows of boots that also have a row in the API database.

        As long as such a boot has two rows, only the row in the API database may be taken: a conductor is moving the
        boot into the cell (operations.md, rule 19). Raises Unanswered if the API database does not answer.
        """
        boots = [row.uuid for row in rows if row.kind == 'boot']
        if db is self._env.api or not boots:
            return rows
        try:
            with self._env.api.read() as conn:
                twins = operations.existing(conn, boots)
        except Exception as error:
            raise Unanswered(who='the api database', reason=str(error)) from error
        return [row for row in rows if row.uuid not in twins]
