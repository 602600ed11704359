"""The hosts as they stand: compute nodes of all enabled cells with their services, and the aggregates they are in.

    hosts, silent = Snapshot(conf, databases, cells).by_uuids(uuids)

Two statements with one cell: nodes joined with services, aggregates. Cells are asked at the same time; one that doesn't
answer costs its hosts, and ``silent`` names it.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oslo_config import cfg

from kilonova import errors
from kilonova.db import engine
from kilonova.db.queries import compute_nodes, snapshot
from kilonova.scheduler.host_state import HostState

LOG = logging.getLogger(__name__)

# Cells asked at the same time.
CELL_THREADS = 16


class Snapshot:
    """Reads; one a scheduler process."""

    def __init__(self, conf: cfg.ConfigOpts, databases: Any, cells: Any) -> None:
        """``cells.enabled()``: the databases of the enabled cells, each with its mapping as ``cell``."""
        self._conf, self._databases, self._cells = conf, databases, cells
        self._seen: dict[str, tuple[str, str]] = {}
        self._pool = ThreadPoolExecutor(CELL_THREADS, thread_name_prefix='cells')

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown()

    def by_uuids(self, uuids: Collection[str]) -> tuple[dict[str, HostState], list[str]]:
        """``{node uuid: HostState}`` of those that exist, and the names of the cells that didn't answer."""
        down_time = self._conf.service_down_time
        found, silent = self._scatter(
            lambda connection: compute_nodes.snapshot(connection, list(uuids), down_time=down_time))
        states = self._states(found)
        if not silent:
            self._forget(set(uuids) - states.keys())
        return states, silent

    def all_of(self, hosts: Collection[str]) -> tuple[dict[str, HostState], list[str]]:
        """The same for all nodes of these hosts (none given: of all hosts)."""
        down_time = self._conf.service_down_time
        found, silent = self._scatter(
            lambda connection: compute_nodes.list_nodes(connection, down_time, hosts=list(hosts) or None))
        return self._states(found), silent

    def named(self, hosts: Iterable[str], nodes: Iterable[str]) -> list[str]:
        """uuids of the nodes that have one of these host names and one of these node names (case aside)."""
        hosts, nodes = list(hosts), list(nodes)
        found, _ = self._scatter(lambda connection: snapshot.nodes_named(connection, hosts, nodes))
        return [row['uuid'] for _, rows in found for row in rows]

    def zone_aggregates(self, zone: str) -> list[str]:
        """uuids of the aggregates of an availability zone."""
        return self._api(lambda connection: snapshot.zone_aggregates(connection, zone))

    def _states(self, found: list[tuple[Any, list[dict[str, Any]]]]) -> dict[str, HostState]:
        hosts = {row['host'] for _, rows in found for row in rows}
        if not hosts:
            return {}
        aggregates = self._api(lambda connection: snapshot.aggregates_of(connection, hosts))
        states = {}
        for database, rows in found:
            servers_of = _Servers(database, [row['host'] for row in rows])
            for row in rows:
                if row['service'] is None:
                    LOG.warning('No compute service record found for host %s', row['host'])
                    continue
                states[row['uuid']] = HostState(row, database.cell.uuid, aggregates.get(row['host']), servers_of)
                self._seen[row['uuid']] = (row['host'], row['hypervisor_hostname'])
        return states

    def _forget(self, missing: Iterable[str]) -> None:
        for uuid in missing:
            if uuid in self._seen:
                LOG.info('Removing dead compute node %s:%s from scheduler', *self._seen.pop(uuid))

    def _api(self, read: Callable[[Any], Any]) -> Any:
        try:
            with self._databases.api().read() as connection:
                return read(connection)
        except Exception as error:
            raise _meant(error) from error

    def _scatter(self, read: Callable[[Any], list[dict[str, Any]]]
                 ) -> tuple[list[tuple[Any, list[dict[str, Any]]]], list[str]]:
        """[(cell's database, rows)] of the cells that answered, and the names of the others; all silent: Unanswered."""
        try:
            databases = self._cells.enabled()
        except Exception as error:
            raise _meant(error) from error

        def ask(database: Any) -> list[dict[str, Any]] | None:
            try:
                with database.read() as connection:
                    return read(connection)
            except Exception as error:  # noqa: BLE001 - _meant raises all but silence
                LOG.warning('Cell %s does not answer: %s', database.name, _meant(error))
                return None

        if len(databases) > 1:
            answers = list(self._pool.map(ask, databases))
        else:
            answers = [ask(database) for database in databases]
        silent = [database.name for database, rows in zip(databases, answers, strict=True) if rows is None]
        if silent and len(silent) == len(databases):
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} are silent')
        return [(database, rows) for database, rows in zip(databases, answers, strict=True) if rows is not None], silent


def _meant(error: Exception) -> errors.Unanswered:
    """A database that can't be reached is silence; whatever else it was is raised as it is."""
    if isinstance(error, errors.KilonovaError) or not (engine.is_unreachable(error) or engine.is_retriable(error)):
        raise error
    return errors.Unanswered(who='the database', reason=str(error))


class _Servers:
    """The servers of a cell's hosts, read once when a filter asks for those of any host."""

    def __init__(self, database: Any, hosts: list[str]) -> None:
        self._database, self._hosts = database, hosts
        self._rows: dict[str, list[dict[str, Any]]] | None = None

    def __call__(self, host: str) -> list[dict[str, Any]]:
        if self._rows is None:
            try:
                with self._database.read() as connection:
                    self._rows = snapshot.servers_on(connection, self._hosts)
            except Exception as error:
                raise _meant(error) from error
        return self._rows.get(host, [])
