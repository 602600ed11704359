"""Read changes of compute nodes and services of all enabled cells into the scheduler's host table.

The timestamp of a row comes from the clock of the row's database. A row becomes visible only when its transaction ends,
some time after its timestamp. So each reading includes rows that changed up to OVERLAP seconds before the previous
reading. Several cells are read in parallel. If the database of a cell does not answer, the cell's hosts get no servers
for the moment.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.db import engine
from kilonova.db.queries import cells as cell_queries
from kilonova.db.queries import changes
from kilonova.scheduler.hosts.columns import Row
from kilonova.scheduler.hosts.table import Table

LOG = logging.getLogger(__name__)

# Maximum number of cells that are read at the same time.
CELL_THREADS = 16
# Maximum seconds between a row's timestamp and the commit that makes the row visible to readers.
OVERLAP = 10.0
# A row read less than this many seconds after its last change is read again: a later change may keep its timestamp.
UNSETTLED = 0.05
# Seconds between two readings of the list of down services. Heartbeats are less frequent than these readings.
DOWN_EVERY = 1.0
# Seconds between two readings of all rows of a cell. Other readings read only changed rows, and may miss a change.
RELOAD_EVERY = 600.0


@contextmanager
def silence() -> Iterator[None]:
    """Raise Unanswered if the block fails because a database can't be reached. Other exceptions are not changed."""
    try:
        yield
    except Exception as error:
        if isinstance(error, errors.KilonovaError) or not (engine.is_unreachable(error) or engine.is_retriable(error)):
            raise
        raise errors.Unanswered(who='the database', reason=str(error)) from error


@contextmanager
def reading(database: engine.Database) -> Iterator[engine.Connection]:
    """Yield a connection for reading.

    Raises Unanswered if the database cannot be reached. Other exceptions that the block raises are not changed.
    """
    with silence(), database.read() as connection:
        yield connection


class CellReader:
    """The state of the scheduler's reading of one cell.

    ``nodes`` and ``services`` are {row id: timestamp of the row that was read}. ``read_until`` is the time of the last
    reading by the clock of the cell's database. The next reading asks for rows that have changed since a few seconds
    before this time.
    """

    def __init__(self, database: engine.Database) -> None:
        self.database, self.uuid = database, database.cell.uuid
        self.read_until: dt.datetime | None = None
        self.nodes: dict[int, dt.datetime | None] = {}
        self.services: dict[int, dt.datetime | None] = {}
        self.loaded = self.asked_down = float('-inf')


class CellReaders:
    """Reads the compute nodes and services of all enabled cells. Only one thread at a time may call ``refresh``.

    ``usable`` has the cells that answered the last refresh. ``silent`` has the names of the cells that did not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, enabled: cell_queries.CellDatabases, table: Table) -> None:
        self._conf, self._enabled, self._table = conf, enabled, table
        self.usable: list[CellReader] = []
        self.silent: list[str] = []
        self._known: dict[str, CellReader] = {}
        self._unmapped: set[str] = set()
        self._pool = ThreadPoolExecutor(CELL_THREADS, thread_name_prefix='cells')

    def close(self) -> None:
        """Stop the threads that read the cells."""
        self._pool.shutdown()

    def uuids(self) -> set[str]:
        """Return the uuids of the enabled cells that answered the last refresh."""
        return {cell.uuid for cell in self.usable}

    def refresh(self) -> None:
        """Read the changes of all cells into the host table.

        Raises Unanswered if no cell answers, or if the list of cells cannot be read.
        """
        with silence():
            databases = self._enabled.enabled()
        found = [self._cell(database) for database in databases]
        for gone in self._known.keys() - {cell.uuid for cell in found}:
            with self._table.lock:
                self._table.forget_cell(gone)
            del self._known[gone]
        with self._table.lock:
            self._table.reservations.forget_old()
        answered = list(self._pool.map(self._ask, found)) if len(found) > 1 else [self._ask(cell) for cell in found]
        self.usable = [cell for cell, there in zip(found, answered, strict=True) if there]
        self.silent = [cell.database.name for cell, there in zip(found, answered, strict=True) if not there]
        if self.silent and not self.usable:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(self.silent)} do not respond')

    def _cell(self, database: engine.Database) -> CellReader:
        known = self._known.get(database.cell.uuid)
        if known is None or known.database is not database:
            known = self._known[database.cell.uuid] = CellReader(database)
        return known

    def _ask(self, cell: CellReader) -> bool:
        try:
            self._read(cell)
        except errors.Unanswered as error:
            LOG.warning('Cell %s does not answer, so its hosts get no servers for now: %s', cell.database.name, error)
            return False
        return True

    def _read(self, cell: CellReader) -> None:
        began = time.monotonic()
        with reading(cell.database) as connection:
            settled: set[str] = set()
            if cell.read_until is None or began - cell.loaded > RELOAD_EVERY:
                settled = self._settled(connection, cell)
                now, nodes, services = changes.everything(connection)
                whole = True
                stamps: list[dict[int, Any]] = [
                    {row['id']: _stamp(row) for row in nodes},
                    dict.fromkeys(row['id'] for row in services),
                ]
            else:
                now, *stamps = changes.changed(connection, cell.read_until - dt.timedelta(seconds=OVERLAP))
                whole = False
                newer = [
                    [row_id for row_id, stamp in seen.items() if known.get(row_id) != stamp]
                    for known, seen in zip((cell.nodes, cell.services), stamps, strict=True)
                ]
                # First query which servers the hosts have reported. Then read the hosts' rows.
                # The reservations of reported servers are removed, because the hosts' rows count these servers.
                # In the opposite order, a server could be reported after its host's row was read.
                # Then its reservation would be removed, although the row that was read does not count the server.
                if newer[0]:
                    settled = self._settled(connection, cell)
                nodes = changes.nodes_by_id(connection, newer[0]) if newer[0] else []
                services = changes.services_by_id(connection, newer[1]) if newer[1] else []
            down = None
            if services or began - cell.asked_down > DOWN_EVERY:
                down = changes.down(connection, self._conf.service_down_time)
        self._take_over(cell, nodes, services, down, settled, whole)
        fresh = now - dt.timedelta(seconds=UNSETTLED)
        for known, seen in zip((cell.nodes, cell.services), stamps, strict=True):
            if whole:
                known.clear()
            known.update(
                {row_id: stamp if stamp is not None and stamp < fresh else None for row_id, stamp in seen.items()}
            )
        cell.read_until = now
        if whole:
            cell.loaded = began
        if down is not None:
            cell.asked_down = began

    def _settled(self, connection: engine.Connection, cell: CellReader) -> set[str]:
        with self._table.lock:
            pending = self._table.unsettled(cell.uuid)
        return changes.settled(connection, pending) if pending else set()

    def _take_over(
        self,
        cell: CellReader,
        nodes: list[Row],
        services: list[Row],
        down: set[int] | None,
        settled: Iterable[str],
        whole: bool,
    ) -> None:
        table = self._table
        with table.lock:
            if whole:
                table.forget_cell(cell.uuid, {row['id'] for row in nodes}, {row['id'] for row in services})
            for uuid in settled:
                table.reservations.reported(uuid)
            for row in services:
                table.services.put(cell.uuid, row)
            for row in nodes:
                if row['deleted'] and table.places.of(row['uuid']) is not None:
                    LOG.info('Removing dead compute node %s:%s from scheduler', row['host'], row['hypervisor_hostname'])
                try:
                    table.put(cell.uuid, row)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    # An invalid row of one host must not affect the other hosts.
                    LOG.error(
                        'The record of compute node %s:%s cannot be read, so the node gets no servers: %r',
                        row['host'],
                        row['hypervisor_hostname'],
                        error,
                    )
                    table.drop(cell.uuid, row['id'])
                self._tell_unmapped(row)
            if down is not None:
                table.services.put_down(cell.uuid, down)

    def _tell_unmapped(self, node: Row) -> None:
        """Log a warning if the node's host is not mapped to a cell. The warning is not repeated for the same host."""
        host = node['host']
        if node['mapped'] or node['deleted']:
            self._unmapped.discard(host)
        elif host not in self._unmapped:
            self._unmapped.add(host)
            LOG.warning(
                "No host-to-cell mapping found for host %s: it gets no servers until 'kilonova-manage cell_v2 "
                "discover_hosts' maps it",
                host,
            )


def _stamp(row: Row) -> dt.datetime | None:
    stamp: dt.datetime | None = row['deleted_at'] or row['updated_at'] or row['created_at']
    return stamp
