"""``Cancels``, which tells hosts that an operation on which they work was cancelled.

A delete is accepted while another operation of the server runs. Its row waits for the end of the running operation.
The conductor that finds the waiting row cancels the running operation with this module (operations.md, rule 17). The
cancel is sent again every few seconds, because the message to a host may be lost.
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
    """Tells hosts that an operation was cancelled.

    The method ``before`` cancels the running operations of a server that a delete waits for. The method ``again``
    repeats the message about one cancelled operation.
    """

    def __init__(self, env: Environment) -> None:
        self._env = env

    def before(self, db: Database, uuid: str) -> None:
        """Tell the hosts of a server's running operations that the operations were cancelled by a waiting delete.

        ``uuid`` is the uuid of the delete's operation row. The hosts end their calls, so that the conductor which owns
        a running operation undoes it at once. If no operation of the server runs any more, the delete is started. Never
        raises an error, because the periodic search for waiting rows (``sweep``) tries again.
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
            LOG.warning(
                'Could not cancel the running operation that operation %s waits for; the next search tries again: %s',
                uuid,
                error,
            )

    def again(self, db: Database, uuid: str) -> None:
        """Tell the hosts of an operation again that it was cancelled, because the first message may have been lost."""
        with db.read() as conn:
            row = operations.get(conn, uuid)
            # The API database has no instance rows. Operations in it belong to servers that have no cell yet.
            instance = instances.get(conn, row.instance_uuid) if row is not None and db is not self._env.api else None
        if row is not None:
            self._cancel(db, row, instance)

    def _promote(self, db: Database, instance_uuid: str) -> None:
        """Let the waiting operation of a server run, for example a delete, and wake a conductor for it.

        An operation waits while another operation of the server runs. Called when no operation of the server runs.
        """
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
        """Search all databases except ``db`` for the operation row ``uuid``. If it exists, let this process take it.

        An operation row may have been moved from the API database into a cell.
        """
        for other in self._env.all_databases():
            if other is not db:
                with other.read() as conn:
                    there = operations.existing(conn, [uuid])
                if there:
                    self._env.runner.wake(other, [uuid], urgent=True)
