"""Delete what was soft-deleted long enough ago: [DEFAULT]reclaim_instance_interval.

    reclaim = Reclaim(env, interval=86400)
    reclaim.start()             # looks from time to time until stop()

Each expired server gets a delete operation, as if somebody had asked for it; the state's compare-and-swap decides
between several conductors, and between this and a restore.
"""
from __future__ import annotations

import logging
import threading

from kilonova import concurrency
from kilonova.conductor.environment import Environment
from kilonova.context import get_admin_context
from kilonova.db.engine import Database
from kilonova.db.queries import instances, operations
from kilonova.errors import InstanceInvalidState, InstanceNotFound

LOG = logging.getLogger(__name__)

# Servers that one look takes from a cell; the next look takes the next ones.
BATCH = 200
# Longest time between two looks, in seconds.
PERIOD = 60.0


class Reclaim:
    """``interval``: seconds that a soft-deleted server can be restored; 0: nothing is ever reclaimed."""

    def __init__(self, env: Environment, interval: float) -> None:
        self._env, self._interval = env, interval
        self._stopping = threading.Event()

    def start(self) -> None:
        """Look from time to time, if there is an interval at all."""
        if self._interval > 0:
            concurrency.spawn(self._loop, name='reclaim')

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _loop(self) -> None:
        while not self._stopping.wait(min(self._interval, PERIOD)):
            self.run()

    def run(self) -> int:
        """One look at all cells; how many deletes were accepted."""
        accepted = 0
        for db in self._env.cells.databases():
            try:
                accepted += self._of_cell(db)
            except Exception as error:  # noqa: BLE001 - a periodic that raised would be the last one
                LOG.warning('soft-deleted servers of %s not reclaimed now: %s', db.name, error)
        return accepted

    def _of_cell(self, db: Database) -> int:
        with db.read() as conn:
            expired = instances.to_reclaim(conn, self._interval, BATCH)
        accepted = [uuid for uuid in (self._accept(db, server) for server in expired) if uuid is not None]
        for uuid in accepted:
            self._env.runner.wake(db, [uuid], urgent=True)
        return len(accepted)

    def _accept(self, db: Database, server: str) -> str | None:
        ctxt = get_admin_context()
        try:
            uuid: str | None = operations.accept_delete(
                db, instance_uuid=server, event='reclaim.start',
                operation=operations.Operation.new(ctxt, 'delete', server, {}),
                action={'action': 'delete', 'request_id': ctxt.request_id, 'user_id': None, 'project_id': None})
        except (InstanceInvalidState, InstanceNotFound) as error:
            LOG.debug('server %s is not reclaimed: %s', server, error)
            return None
        LOG.info('Reclaiming deleted instance %s', server)
        return uuid
