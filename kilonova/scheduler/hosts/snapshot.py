"""In-memory copy of all hosts: compute nodes of all enabled cells, their services, and their aggregates.

    snapshot = HostSnapshot(conf, databases, cells)
    silent = snapshot.refresh()             # reads what changed since the last call
    hosts = snapshot.states(uuids)

Compute nodes and aggregates are kept in memory (attributes ``table`` and ``aggregates``). Each scheduling call reads
only the changes (``cells``), with one SQL statement for each cell and one for aggregates if nothing changed. The hosts
of servers are read only when a filter needs them (``servers``).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors
from kilonova.db import engine
from kilonova.db.queries import cells as cell_queries
from kilonova.db.queries import changes
from kilonova.scheduler.hosts.aggregates import Aggregates
from kilonova.scheduler.hosts.cells import CellReader, CellReaders, reading
from kilonova.scheduler.hosts.host_state import ArrayResults, HostState, ServersOf
from kilonova.scheduler.hosts.reservations import Request
from kilonova.scheduler.hosts.servers import Servers
from kilonova.scheduler.hosts.table import Table

LOG = logging.getLogger(__name__)


class HostSnapshot:
    """In-memory copy of all hosts for one scheduler process. Its methods may be called from many threads at once."""

    def __init__(self, conf: cfg.ConfigOpts, databases: engine.Databases, enabled: cell_queries.CellDatabases) -> None:
        self._conf = conf
        self.table = Table()
        self.cells = CellReaders(conf, enabled, self.table)
        self.aggregates = Aggregates(databases, self.table.lock)
        self.servers = Servers(databases, self.cells)
        self._turn, self._began = threading.Lock(), float('-inf')

    def close(self) -> None:
        """Stop the threads that read the cells."""
        self.cells.close()

    # -- refresh from the databases ------------------------------------------------------------------------------------
    def refresh(self) -> list[str]:
        """Read the changes of all hosts, and return the names of the cells that do not answer.

        Callers that arrive while another thread reads share the next reading. Raises Unanswered if no cell answers, or
        if the API database does not answer.
        """
        arrived = time.monotonic()
        with self._turn:
            if self._began < arrived:
                began = time.monotonic()
                self.cells.refresh()
                self.aggregates.refresh()
                self._began = began
            return self.cells.silent

    def outdated(self) -> bool:
        """Read again which hosts are down and which servers need their reservations. Return whether this has changed.

        If so, the caller repeats a choice that found no host. True means that a host that counted as down is up, or
        that a server no longer needs its reservation on a host (its boot failed, it was deleted, or its host reported
        it). The host table gets the new state. Runs one to three SQL statements for each cell with a down host or a
        reservation, and one more for all cells.
        """
        with self.table.lock:
            known = [
                (cell, self.table.services.down(cell.uuid), self.table.unsettled(cell.uuid))
                for cell in self.cells.usable
            ]
        coming = self.servers.coming({uuid for _, _, sent in known for uuid in sent})
        found = [self._look_again(cell, before, sent, coming) for cell, before, sent in known if before or sent]
        if any(ended for _, ended in found):
            # Read the hosts' rows after it was read which servers no longer need their reservations.
            # In the opposite order, a reservation could be removed before its host's row counts the server.
            self.refresh()
        return any(itertools.chain.from_iterable(found))

    def _look_again(self, cell: CellReader, before: set[int], sent: list[str], coming: set[str]) -> tuple[bool, bool]:
        """Return (whether a down host of the cell is up now, whether a server no longer needs its reservation).

        ``before`` has the ids of the services that have counted as down so far. ``sent`` has the uuids of the servers
        with a reservation, and ``coming`` the uuids of new servers that may not be in a cell yet. The host table gets
        the new state.
        """
        try:
            with reading(cell.database) as connection:
                now = changes.down(connection, self._conf.service_down_time) if before else before
                settled = changes.settled(connection, sent) if sent else set()
                missing = set(sent) - coming - settled
                if missing:
                    settled |= changes.unknown(connection, missing)
        except errors.Unanswered as error:
            LOG.warning('Cell %s does not answer, so its down hosts are not read again: %s', cell.database.name, error)
            return False, False
        with self.table.lock:
            if before:
                self.table.services.put_down(cell.uuid, now)
            for uuid in settled:
                self.table.reservations.reported(uuid)
        return not before <= now, bool(settled)

    # -- lookups -------------------------------------------------------------------------------------------------------
    def by_uuids(self, uuids: Collection[str]) -> tuple[dict[str, HostState], list[str]]:
        """Read the changes of all hosts, and return the hosts with these uuids.

        The result is ({node uuid: HostState} of the nodes that exist, names of the cells that do not answer).
        """
        silent = self.refresh()
        return self.states(uuids), silent

    def unusable(self, uuids: Iterable[str]) -> set[str]:
        """Return which of the nodes with these uuids cannot get servers, as of the last refresh."""
        with self.table.lock:
            usable = self.table.usable(self.cells.uuids())
            return {
                uuid for uuid in uuids if (host_index := self.table.places.of(uuid)) is None or not usable[host_index]
            }

    def tell_serviceless(self, uuids: Iterable[str]) -> None:
        """Log a warning for each node with one of these uuids that has no compute service and so cannot get servers."""
        with self.table.lock:
            places = [host_index for host_index in map(self.table.places.of, uuids) if host_index is not None]
            hosts = [self.table.host(host_index) for host_index in places if not self.table['live'][host_index]]
        for host in hosts:
            LOG.warning('No compute service record found for host %s', host)

    def states(self, uuids: Iterable[str]) -> dict[str, HostState]:
        """Return {node uuid: HostState} for the nodes with these uuids, as of the last refresh.

        Nodes that cannot get servers are left out.
        """
        cells, found = self.cells.uuids(), {}
        with self.table.lock:
            places = [host_index for host_index in map(self.table.places.of, uuids) if host_index is not None]
            servers_of = self.servers.on([self.table.host(host_index) for host_index in places])
            for host_index in places:
                state = self.state(host_index, servers_of)
                if state is not None and state.cell_uuid in cells:
                    found[state.uuid] = state
        return found

    def state(
        self,
        host_index: int,
        servers_of: ServersOf | None = None,
        offered: Callable[[HostState], list[Request] | None] = lambda host: [],
        arrays: ArrayResults | None = None,
    ) -> HostState | None:
        """Return the HostState of the node at ``host_index``, or None if the node has no service or no host mapping.

        The other arguments are passed to HostState.
        """
        cell_uuid, node = self.table.node(host_index)
        if node['service'] is None or not node['mapped']:
            return None
        return HostState(
            node,
            cell_uuid,
            self.aggregates.of_host(node['host']),
            servers_of or self.servers.on(),
            self.table.reservations.on(host_index),
            offered,
            arrays,
            host_index,
        )

    def named(self, hosts: Iterable[str], nodes: Iterable[str]) -> list[str]:
        """Return the uuids of the nodes that have one of these host names and one of these node names, ignoring case.

        An empty collection of names matches every node. The changes of all hosts are read from the databases first.
        """
        self.refresh()
        wanted = [{name.lower() for name in names} for names in (hosts, nodes)]
        with self.table.lock:
            return [
                node['uuid']
                for _, node in self.table.nodes()
                if (not wanted[0] or node['host'].lower() in wanted[0])
                and (not wanted[1] or node['hypervisor_hostname'].lower() in wanted[1])
            ]
