"""The hosts as they stand: compute nodes of all enabled cells with their services, and the aggregates they are in.

    snapshot = Snapshot(conf, databases, cells)
    silent = snapshot.refresh()             # reads what changed since the last time
    hosts = snapshot.states(uuids)

Everything is kept in memory (``table``); each request reads what changed, one statement a cell and one for aggregates
when nothing did. Rows are stamped by their database's clock, and the reader looks ``OVERLAP`` seconds back, longer than
a transaction takes. Cells are asked at the same time; one that doesn't answer costs its hosts, and ``silent`` names it.
"""
from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from oslo_config import cfg

from kilonova import errors
from kilonova.db import engine
from kilonova.db.queries import aggregates, build_requests, changes, instance_groups, snapshot
from kilonova.db.queries.operations import waiting_boots
from kilonova.scheduler.host_state import Answers, HostState
from kilonova.scheduler.reservations import Request
from kilonova.scheduler.table import Row, Table

LOG = logging.getLogger(__name__)

# Cells asked at the same time.
CELL_THREADS = 16
# Seconds that the writer of a row may need from its statement to the end of its transaction.
OVERLAP = 10.0
# Stamps younger than this (seconds) may be given twice by a clock of milliseconds.
UNSETTLED = 0.05
# Who is silent is asked for this often (seconds); heartbeats are further apart.
DOWN_EVERY = 1.0
# A statement that names more hosts than this reads all instead.
MANY_HOSTS = 500
# All is read again this often (seconds), so that nothing that was missed stays so.
RELOAD_EVERY = 600.0


class _Cell:
    """What is known of one cell: the stamps of its rows, and until when (its database's clock) they were read."""

    def __init__(self, database: Any) -> None:
        self.database, self.uuid = database, database.cell.uuid
        self.read_until: dt.datetime | None = None
        self.nodes: dict[int, dt.datetime | None] = {}
        self.services: dict[int, dt.datetime | None] = {}
        self.loaded = self.asked_down = float('-inf')


class Snapshot:
    """One a scheduler process; its methods may run in many threads at once."""

    def __init__(self, conf: cfg.ConfigOpts, databases: Any, cells: Any) -> None:
        """``cells.enabled()``: the databases of the enabled cells, each with its mapping as ``cell``."""
        self._conf, self._databases, self._cells = conf, databases, cells
        self.table = Table()
        self.aggregates: list[Row] = []
        self._aggregates_of: dict[str, list[Row]] = {}
        self._mark: Any = None
        self._unmapped: set[str] = set()
        self._known: dict[str, _Cell] = {}
        self._usable: list[_Cell] = []
        self._silent: list[str] = []
        self._turn, self._began = threading.Lock(), float('-inf')
        self._pool = ThreadPoolExecutor(CELL_THREADS, thread_name_prefix='cells')

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown()

    # -- reading -------------------------------------------------------------------------------------------------------
    def refresh(self) -> list[str]:
        """Read what changed; names of the cells that don't answer. All silent: Unanswered.

        Requests that come while somebody reads share the next reading.
        """
        arrived = time.monotonic()
        with self._turn:
            if self._began < arrived:
                began = time.monotonic()
                self._refresh()
                self._began = began
            return self._silent

    def outdated(self) -> bool:
        """Whether what a refusal rests on no longer holds: a host that counted as down is up by now, or a server that
        was sent somewhere needs nothing there any more (its boot failed, it is gone, or its host counts it). Then they
        no longer so count. One to three statements for each cell that has any, and one more for all; asked before a
        refusal is told."""
        found, ended = False, False
        with self.table.lock:
            known = [(cell, self.table.down(cell.uuid), self.table.unsettled(cell.uuid)) for cell in self._usable]
        coming = self._coming({uuid for _, _, sent in known for uuid in sent})
        for cell, before, sent in known:
            if not before and not sent:
                continue
            try:
                with cell.database.read() as connection:
                    now = changes.down(connection, self._conf.service_down_time) if before else before
                    settled = changes.settled(connection, sent) if sent else set()
                    missing = set(sent) - coming - settled
                    if missing:
                        settled |= changes.unknown(connection, missing)
            except Exception as error:  # noqa: BLE001 - _meant raises all but silence
                LOG.warning('Cell %s does not answer: %s', cell.database.name, _meant(error))
                continue
            with self.table.lock:
                if before:
                    self.table.put_down(cell.uuid, now)
                for uuid in settled:
                    self.table.give_back(uuid)
            found = found or not before <= now
            ended = ended or bool(settled)
        if ended:
            # After that, as always: what a host took in between counts twice for a moment, never not at all.
            self.refresh()
        return found or ended

    def _coming(self, uuids: Collection[str]) -> set[str]:
        """Those of these servers that no cell holds yet. Asked before the cells: a server is in its cell before it is
        no longer here. Who is in neither was deleted, or failed, on the way."""
        return self._api(lambda connection: build_requests.existing(connection, uuids)) if uuids else set()

    def _refresh(self) -> None:
        try:
            databases = self._cells.enabled()
        except Exception as error:
            raise _meant(error) from error
        cells = [self._cell(database) for database in databases]
        for gone in self._known.keys() - {cell.uuid for cell in cells}:
            with self.table.lock:
                self.table.forget_cell(gone)
            del self._known[gone]
        with self.table.lock:
            self.table.forget_old()

        def ask(cell: _Cell) -> bool:
            try:
                self._read(cell)
            except Exception as error:  # noqa: BLE001 - _meant raises all but silence
                LOG.warning('Cell %s does not answer: %s', cell.database.name, _meant(error))
                return False
            return True
        answered = list(self._pool.map(ask, cells)) if len(cells) > 1 else [ask(cell) for cell in cells]
        self._usable = [cell for cell, there in zip(cells, answered, strict=True) if there]
        self._silent = [cell.database.name for cell, there in zip(cells, answered, strict=True) if not there]
        if self._silent and not self._usable:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(self._silent)} are silent')
        self._read_aggregates()

    def _cell(self, database: Any) -> _Cell:
        known = self._known.get(database.cell.uuid)
        if known is None or known.database is not database:
            known = self._known[database.cell.uuid] = _Cell(database)
        return known

    def _read(self, cell: _Cell) -> None:
        began = time.monotonic()
        with cell.database.read() as connection:
            settled: set[str] = set()
            if cell.read_until is None or began - cell.loaded > RELOAD_EVERY:
                settled = self._settled(connection, cell)
                now, nodes, services = changes.everything(connection)
                whole = True
                stamps: list[dict[int, Any]] = [{row['id']: _stamp(row) for row in nodes},
                                                dict.fromkeys(row['id'] for row in services)]
            else:
                now, *stamps = changes.changed(connection, cell.read_until - dt.timedelta(seconds=OVERLAP))
                whole = False
                newer = [[row_id for row_id, stamp in seen.items() if known.get(row_id) != stamp]
                         for known, seen in zip((cell.nodes, cell.services), stamps, strict=True)]
                # Before the rows: a server that a host takes in between may count twice for a moment, never not at all.
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
            known.update({row_id: stamp if stamp is not None and stamp < fresh else None
                          for row_id, stamp in seen.items()})
        cell.read_until = now
        if whole:
            cell.loaded = began
        if down is not None:
            cell.asked_down = began

    def _settled(self, connection: Any, cell: _Cell) -> set[str]:
        with self.table.lock:
            pending = self.table.unsettled(cell.uuid)
        return changes.settled(connection, pending) if pending else set()

    def _take_over(self, cell: _Cell, nodes: list[Row], services: list[Row], down: set[int] | None,
                   settled: Iterable[str], whole: bool) -> None:
        table = self.table
        with table.lock:
            if whole:
                table.forget_cell(cell.uuid, {row['id'] for row in nodes}, {row['id'] for row in services})
            for uuid in settled:
                table.give_back(uuid)
            for row in services:
                table.put_service(cell.uuid, row)
            for row in nodes:
                if row['deleted'] and table.place(row['uuid']) is not None:
                    LOG.info('Removing dead compute node %s:%s from scheduler', row['host'],
                             row['hypervisor_hostname'])
                try:
                    table.put(cell.uuid, row)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    # One host's nonsense is not to take the others along.
                    LOG.error('The record of compute node %s:%s cannot be read, it is left out: %r', row['host'],
                              row['hypervisor_hostname'], error)
                    table.drop(cell.uuid, row['id'])
                self._tell_unmapped(row)
            if down is not None:
                table.put_down(cell.uuid, down)

    def _tell_unmapped(self, node: Row) -> None:
        """Once for each host, as long as it is so."""
        host = node['host']
        if node['mapped'] or node['deleted']:
            self._unmapped.discard(host)
        elif host not in self._unmapped:
            self._unmapped.add(host)
            LOG.warning("No host-to-cell mapping found for host %s: it gets no servers until 'kilonova-manage cell_v2 "
                        "discover_hosts' maps it", host)

    def _read_aggregates(self) -> None:
        def read(connection: Any) -> tuple[Any, list[Row] | None]:
            mark = changes.aggregates_mark(connection)
            return mark, None if mark == self._mark else aggregates.snapshot(connection)
        mark, found = self._api(read)
        if found is None:
            return
        of_host: dict[str, list[Row]] = {}
        for row in found:
            for host in row['hosts']:
                of_host.setdefault(host, []).append(row)
        # A stamp of this very moment may be given once more.
        young = any(stamp is not None and (dt.datetime.now(dt.UTC).replace(tzinfo=None) - stamp).total_seconds()
                    < OVERLAP for stamp in mark if isinstance(stamp, dt.datetime))
        with self.table.lock:
            self.aggregates, self._aggregates_of = found, of_host
        self._mark = None if young else mark

    def _api(self, read: Callable[[Any], Any]) -> Any:
        try:
            with self._databases.api().read() as connection:
                return read(connection)
        except Exception as error:
            raise _meant(error) from error

    # -- looking -------------------------------------------------------------------------------------------------------
    @property
    def silent(self) -> list[str]:
        """Names of the cells that didn't answer when they were last asked."""
        return self._silent

    @property
    def cells(self) -> set[str]:
        """uuids of the enabled cells that answered."""
        return {cell.uuid for cell in self._usable}

    def by_uuids(self, uuids: Collection[str]) -> tuple[dict[str, HostState], list[str]]:
        """``{node uuid: HostState}`` of those that exist, and the names of the cells that didn't answer."""
        silent = self.refresh()
        return self.states(uuids), silent

    def unusable(self, uuids: Iterable[str]) -> set[str]:
        """Those of these nodes that get no servers, as far as was read."""
        with self.table.lock:
            usable = self.table.usable(self.cells)
            return {uuid for uuid in uuids if (place := self.table.place(uuid)) is None or not usable[place]}

    def tell_serviceless(self, uuids: Iterable[str]) -> None:
        """Log which of these nodes have no service: nobody would start a server there."""
        with self.table.lock:
            places = [place for place in map(self.table.place, uuids) if place is not None]
            hosts = [self.table.host(place) for place in places if not self.table['live'][place]]
        for host in hosts:
            LOG.warning('No compute service record found for host %s', host)

    def states(self, uuids: Iterable[str]) -> dict[str, HostState]:
        """The same of what was read last."""
        cells, found = self.cells, {}
        with self.table.lock:
            places = [place for place in map(self.table.place, uuids) if place is not None]
            servers_of = self.servers_of([self.table.node(place)[1]['host'] for place in places])
            for place in places:
                state = self.state(place, servers_of)
                if state is not None and state.cell_uuid in cells:
                    found[state.uuid] = state
        return found

    def state(self, place: int, servers_of: Callable[[str], list[Row]] | None = None,
              offered: Callable[[HostState], list[Request] | None] = lambda host: [],
              look: Answers | None = None) -> HostState | None:
        """One host as filters see it; None without a service or a host mapping."""
        cell_uuid, node = self.table.node(place)
        if node['service'] is None or not node['mapped']:
            return None
        return HostState(node, cell_uuid, self._aggregates_of.get(node['host']),
                         servers_of or self.servers_of(), self.table.taken_at(place), offered, look, place)

    def servers_of(self, hosts: Collection[str] = ()) -> Callable[[str], list[Row]]:
        """Reads the servers of these hosts (none given: of all), once a request and only when asked."""
        return _Servers([cell.database for cell in self._usable], hosts if len(hosts) <= MANY_HOSTS else ())

    def named(self, hosts: Iterable[str], nodes: Iterable[str]) -> list[str]:
        """uuids of the nodes that have one of these host names and one of these node names (case aside)."""
        self.refresh()
        wanted = [{name.lower() for name in names} for names in (hosts, nodes)]
        with self.table.lock:
            return [node['uuid'] for _, node in self.table.nodes()
                    if (not wanted[0] or node['host'].lower() in wanted[0])
                    and (not wanted[1] or node['hypervisor_hostname'].lower() in wanted[1])]

    def zone_aggregates(self, zone: str) -> list[str]:
        """uuids of the aggregates of an availability zone."""
        return [row['uuid'] for row in self.aggregates if row['metadata'].get(snapshot.ZONE_KEY) == zone]

    def aggregate_hosts(self, uuids: Collection[str]) -> set[str]:
        """Names of the hosts that are in one of these aggregates."""
        return {host for row in self.aggregates if row['uuid'] in uuids for host in row['hosts']}

    def metadata_of_hosts(self) -> dict[str, list[Row]]:
        """{host: metadata of each aggregate that it is in}."""
        return {host: [row['metadata'] for row in rows] for host, rows in self._aggregates_of.items()}

    def overridden(self, key: str) -> dict[str, list[str]]:
        """{host: values} that aggregates' metadata has for a key."""
        found: dict[str, list[str]] = {}
        for row in self.aggregates:
            if key in row['metadata']:
                for host in row['hosts']:
                    found.setdefault(host, []).append(row['metadata'][key])
        return found

    def hosts_of(self, uuids: Collection[str]) -> dict[str, tuple[str, str | None]]:
        """{server: (host, node)} of those of these servers that are on a host of an enabled cell."""
        found: dict[str, tuple[str, str | None]] = {}
        for part in self._of_cells(lambda connection: changes.hosts_of(connection, uuids)):
            found |= part
        return found

    def waiting(self, operations: Sequence[str]) -> set[str]:
        """The servers of those of these operations that still wait for a host."""
        return self._api(lambda connection: waiting_boots(connection, operations))

    def group(self, uuid: str) -> tuple[Row, list[str]] | None:
        """A server group as it is now, and its members; None when it is gone. Three statements at most."""
        found = self._api(lambda connection: instance_groups.cells_of_members(connection, uuid))
        return None if found is None else (found[0], list(found[1]))

    def places_of(self, uuids: Collection[str]) -> dict[str, set[str]]:
        """{server: hosts} of these servers, those of moves under way too; one statement a cell."""
        found: dict[str, set[str]] = {}
        for part in self._of_cells(lambda connection: instance_groups.places(connection, uuids)) if uuids else ():
            for uuid, hosts in part.items():
                found.setdefault(uuid, set()).update(hosts)
        return found

    def _of_cells(self, read: Callable[[Any], Any]) -> Iterable[Any]:
        for cell in self._usable:
            try:
                with cell.database.read() as connection:
                    yield read(connection)
            except Exception as error:
                raise _meant(error) from error


def _stamp(row: Row) -> dt.datetime | None:
    return row['deleted_at'] or row['updated_at'] or row['created_at']


def _meant(error: Exception) -> errors.Unanswered:
    """A database that can't be reached is silence; whatever else it was is raised as it is."""
    if isinstance(error, errors.KilonovaError) or not (engine.is_unreachable(error) or engine.is_retriable(error)):
        raise error
    return errors.Unanswered(who='the database', reason=str(error))


class _Servers:
    """The servers of hosts, read once a cell when a filter asks for those of any host."""

    def __init__(self, databases: list[Any], hosts: Collection[str]) -> None:
        self._databases, self._hosts = databases, hosts
        self._rows: dict[str, list[Row]] | None = None
        self._images: dict[str, dict[str, dict[str, str]]] | None = None

    def __call__(self, host: str) -> list[Row]:
        if self._rows is None:
            self._rows = self._read(snapshot.servers_on)
        return self._rows.get(host, [])

    def image_properties(self, host: str) -> dict[str, dict[str, str]]:
        """{server: properties of its image}."""
        if self._images is None:
            self._images = self._read(snapshot.image_properties_on)
        return self._images.get(host, {})

    def _read(self, query: Callable[[Any, Collection[str]], dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for database in self._databases:
            try:
                with database.read() as connection:
                    found |= query(connection, self._hosts)
            except Exception as error:
                raise _meant(error) from error
        return found
