"""``Cancels``, which sends a cancel to the hosts that work on a cancelled operation.

A delete is accepted while another operation of the server runs, and waits for it. The conductor that takes the waiting
row cancels the running operation here (operations.md, rule 17). The sweep does so as well, because a cancel may be
lost.
"""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import hosts_of
from kilonova.context import RequestContext
from kilonova.db.engine import Database
from kilonova.db.queries import instances, operations

LOG = logging.getLogger(__name__)


class Cancels:
    """Sends cancels to hosts.

    ``before`` starts from a waiting delete, ``again`` from an operation that was cancelled.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env

    def before(self, db: Database, uuid: str) -> None:
        """Cancel the operations that a waiting delete waits for.

        Their hosts receive the cancel, so that the conductor which owns them undoes them at once. If no operation runs
        any more, the delete itself may run. Never raises, because the next sweep tries again.
        """
        try:
            with db.read() as conn:
                waiting = operations.get(conn, uuid)
                if waiting is not None and waiting.slot != operations.WAIT:
                    return
            if waiting is None:
                self._elsewhere(db, uuid)
                return
            with db.read() as conn:
                rows = [
                    row for row in operations.of_instance(conn, waiting.instance_uuid) if row.slot == operations.RUN
                ]
                instance = instances.get(conn, waiting.instance_uuid)
            if not rows:
                self._promote(db, waiting.instance_uuid)
            for row in rows:
                self._cancel(db, row, instance)
        except Exception as error:  # noqa: BLE001 - the next sweep tries again
            LOG.warning('Could not cancel the running operation that operation %s waits for: %s', uuid, error)

    def again(self, db: Database, uuid: str) -> None:
        """Cancel a cancelled operation again at its hosts, because the first cancel may have been lost."""
        with db.read() as conn:
            row = operations.get(conn, uuid)
            # The API database has operation rows of servers that are in no cell yet, and no servers.
            instance = instances.get(conn, row.instance_uuid) if row is not None and db is not self._env.api else None
        if row is not None:
            self._cancel(db, row, instance)

    def _promote(self, db: Database, instance_uuid: str) -> None:
        """Let the waiting delete of a server run, because no other operation of the server runs."""
        with db.write() as conn:
            uuid = operations.promote(conn, instance_uuid)
        if uuid is not None:
            self._env.runner.wake(db, [uuid], urgent=True)

    def _cancel(self, db: Database, row: operations.OperationRow, instance: dict[str, Any] | None) -> None:
        hosts = {instance['host']} if instance and instance['host'] else set()
        hosts.update(hosts_of(row.outputs, row.attempt))
        ctxt = RequestContext.from_dict(row.context)
        ctxt.cell = db
        for host in sorted(hosts):
            self._env.compute.cancel(ctxt, server=host, key_prefix=f'{row.uuid}/')
        self._env.runner.wake(db, [row.uuid], urgent=True)

    def _elsewhere(self, db: Database, uuid: str) -> None:
        """Look for a row in the other databases, and wake the runner for it."""
        for other in self._env.all_databases():
            if other is not db:
                with other.read() as conn:
                    there = operations.existing(conn, [uuid])
                if there:
                    self._env.runner.wake(other, [uuid], urgent=True)
