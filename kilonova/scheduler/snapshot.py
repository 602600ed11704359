"""The hosts as they stand: compute nodes of all enabled cells with their services, and the aggregates they are in.

    snapshot = Snapshot(conf, databases, cells)
    silent = snapshot.refresh()             # reads what changed since the last time
    hosts = snapshot.states(uuids)

Everything is kept in memory (``table``, ``aggregates``); each request reads what changed (``cells``), one statement a
cell and one for aggregates when nothing did. Where servers are is read when it is wanted (``servers``).
"""
from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable

from oslo_config import cfg

from kilonova import errors
from kilonova.db import engine
from kilonova.db.queries import cells as cell_queries
from kilonova.db.queries import changes
from kilonova.scheduler.aggregates import Aggregates
from kilonova.scheduler.cells import Cell, Cells, reading
from kilonova.scheduler.host_state import Answers, HostState, ServersOf
from kilonova.scheduler.reservations import Request
from kilonova.scheduler.servers import Servers
from kilonova.scheduler.table import Table

LOG = logging.getLogger(__name__)


class Snapshot:
    """One a scheduler process; its methods may run in many threads at once."""

    def __init__(self, conf: cfg.ConfigOpts, databases: engine.Databases, enabled: cell_queries.Cells) -> None:
        self._conf = conf
        self.table = Table()
        self.cells = Cells(conf, enabled, self.table)
        self.aggregates = Aggregates(databases, self.table.lock)
        self.servers = Servers(databases, self.cells)
        self._turn, self._began = threading.Lock(), float('-inf')

    def close(self) -> None:
        """Let go of the threads."""
        self.cells.close()

    # -- reading -------------------------------------------------------------------------------------------------------
    def refresh(self) -> list[str]:
        """Read what changed; names of the cells that don't answer. All silent: Unanswered.

        Requests that come while somebody reads share the next reading.
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
        """Whether what a refusal rests on no longer holds: a host that counted as down is up by now, or a server that
        was sent somewhere needs nothing there any more (its boot failed, it is gone, or its host counts it). Then they
        no longer so count. One to three statements for each cell that has any, and one more for all; asked before a
        refusal is told."""
        with self.table.lock:
            known = [(cell, self.table.services.down(cell.uuid), self.table.unsettled(cell.uuid))
                     for cell in self.cells.usable]
        coming = self.servers.coming({uuid for _, _, sent in known for uuid in sent})
        found = [self._look_again(cell, before, sent, coming) for cell, before, sent in known if before or sent]
        if any(ended for _, ended in found):
            # After that, as always: what a host took in between counts twice for a moment, never not at all.
            self.refresh()
        return any(itertools.chain.from_iterable(found))

    def _look_again(self, cell: Cell, before: set[int], sent: list[str], coming: set[str]) -> tuple[bool, bool]:
        """Whether a host of a cell is up by now, and whether a server that was sent there needs nothing any more."""
        try:
            with reading(cell.database) as connection:
                now = changes.down(connection, self._conf.service_down_time) if before else before
                settled = changes.settled(connection, sent) if sent else set()
                missing = set(sent) - coming - settled
                if missing:
                    settled |= changes.unknown(connection, missing)
        except errors.Unanswered as error:
            LOG.warning('Cell %s does not answer: %s', cell.database.name, error)
            return False, False
        with self.table.lock:
            if before:
                self.table.services.put_down(cell.uuid, now)
            for uuid in settled:
                self.table.reservations.reported(uuid)
        return not before <= now, bool(settled)

    # -- looking -------------------------------------------------------------------------------------------------------
    def by_uuids(self, uuids: Collection[str]) -> tuple[dict[str, HostState], list[str]]:
        """``{node uuid: HostState}`` of those that exist, and the names of the cells that didn't answer."""
        silent = self.refresh()
        return self.states(uuids), silent

    def unusable(self, uuids: Iterable[str]) -> set[str]:
        """Those of these nodes that get no servers, as far as was read."""
        with self.table.lock:
            usable = self.table.usable(self.cells.uuids())
            return {uuid for uuid in uuids if (place := self.table.places.of(uuid)) is None or not usable[place]}

    def tell_serviceless(self, uuids: Iterable[str]) -> None:
        """Log which of these nodes have no service: nobody would start a server there."""
        with self.table.lock:
            places = [place for place in map(self.table.places.of, uuids) if place is not None]
            hosts = [self.table.host(place) for place in places if not self.table['live'][place]]
        for host in hosts:
            LOG.warning('No compute service record found for host %s', host)

    def states(self, uuids: Iterable[str]) -> dict[str, HostState]:
        """The same of what was read last."""
        cells, found = self.cells.uuids(), {}
        with self.table.lock:
            places = [place for place in map(self.table.places.of, uuids) if place is not None]
            servers_of = self.servers.on([self.table.host(place) for place in places])
            for place in places:
                state = self.state(place, servers_of)
                if state is not None and state.cell_uuid in cells:
                    found[state.uuid] = state
        return found

    def state(self, place: int, servers_of: ServersOf | None = None,
              offered: Callable[[HostState], list[Request] | None] = lambda host: [],
              look: Answers | None = None) -> HostState | None:
        """One host as filters see it; None without a service or a host mapping."""
        cell_uuid, node = self.table.node(place)
        if node['service'] is None or not node['mapped']:
            return None
        return HostState(node, cell_uuid, self.aggregates.of_host(node['host']),
                         servers_of or self.servers.on(), self.table.reservations.on(place), offered, look, place)

    def named(self, hosts: Iterable[str], nodes: Iterable[str]) -> list[str]:
        """uuids of the nodes that have one of these host names and one of these node names (case aside)."""
        self.refresh()
        wanted = [{name.lower() for name in names} for names in (hosts, nodes)]
        with self.table.lock:
            return [node['uuid'] for _, node in self.table.nodes()
                    if (not wanted[0] or node['host'].lower() in wanted[0])
                    and (not wanted[1] or node['hypervisor_hostname'].lower() in wanted[1])]
