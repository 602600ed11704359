"""Cancels: who holds an operation that somebody cancelled learns it, and so do the hosts that are at its step.

A delete is accepted beside what runs, and waits for it; whoever takes the waiting row comes here (operations.md
rule 17). So does the sweep, as a cancel may be lost.
"""
from __future__ import annotations

import logging
from typing import Any

from kilonova.conductor.environment import Environment
from kilonova.conductor.flows import hosts_of
from kilonova.context import RequestContext
from kilonova.db.engine import Database
from kilonova.db.queries import instances, operations

LOG = logging.getLogger(__name__)


class Cancels:
    """``before``: a waiting row's way to what runs; ``again``: a cancelled row's whose work doesn't know it yet."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    def before(self, db: Database, uuid: str) -> None:
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
                instance = instances.get(conn, waiting.instance_uuid)
            if not rows:
                self._promote(db, waiting.instance_uuid)
            for row in rows:
                self._cancel(db, row, instance)
        except Exception as error:  # noqa: BLE001 - the next sweep tries again
            LOG.warning('cancel of what runs before %s not sent: %s', uuid, error)

    def again(self, db: Database, uuid: str) -> None:
        """A row of ours that somebody cancelled, and whose work doesn't know it yet: the cancel may have been lost."""
        with db.read() as conn:
            row = operations.get(conn, uuid)
            # The api database has rows of servers that are in no cell yet, and no servers.
            instance = (instances.get(conn, row.instance_uuid)
                        if row is not None and db is not self._env.api else None)
        if row is not None:
            self._cancel(db, row, instance)

    def _promote(self, db: Database, instance_uuid: str) -> None:
        """Nothing runs before it: the delete may."""
        with db.write() as conn:
            uuid = operations.promote(conn, instance_uuid)
        if uuid is not None:
            self._env.runner.wake(db, [uuid], urgent=True)

    def _cancel(self, db: Database, row: operations.Operation, instance: dict[str, Any] | None) -> None:
        hosts = {instance['host']} if instance and instance['host'] else set()
        hosts.update(hosts_of(row.outputs, row.attempt))
        ctxt = RequestContext.from_dict(row.context)
        ctxt.cell = db
        for host in sorted(hosts):
            self._env.compute.cancel(ctxt, server=host, key_prefix=f'{row.uuid}/')
        self._env.runner.wake(db, [row.uuid], urgent=True)

    def _elsewhere(self, db: Database, uuid: str) -> None:
        """A row that isn't in the database where it was looked for: wake it where it is."""
        for other in self._env.all_databases():
            if other is not db:
                with other.read() as conn:
                    there = operations.existing(conn, [uuid])
                if there:
                    self._env.runner.wake(other, [uuid], urgent=True)
