"""Read from the databases on which hosts servers are, and which servers still need a host.

All functions raise Unanswered if a database does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from kilonova.db.engine import Connection, Databases
from kilonova.db.queries import build_requests, changes, instance_groups, snapshot
from kilonova.db.queries.operations import waiting_boots
from kilonova.scheduler.hosts.cells import CellReader, CellReaders, reading
from kilonova.scheduler.hosts.columns import Row

V = TypeVar('V')
# Maximum number of hosts that an SQL statement names. For more hosts, the servers of all hosts are read.
MANY_HOSTS = 500


class Servers:
    """Reads servers from the databases for the scheduler. Nothing is cached, so each call of a method reads again.

    Only cells that answered the last refresh are read.
    """

    def __init__(self, databases: Databases, cells: CellReaders) -> None:
        self._databases, self._cells = databases, cells

    def on(self, hosts: Collection[str] = ()) -> OnHosts:
        """Return an object that reads the servers of these hosts, or of all hosts if none are given.

        The servers are read once, when a filter first calls the object.
        """
        return OnHosts(self._cells.usable, hosts if len(hosts) <= MANY_HOSTS else ())

    def hosts_of(self, uuids: Collection[str]) -> dict[str, tuple[str, str | None]]:
        """Return {server: (host, node)}. Servers that are not on a host of an enabled cell are left out."""
        found: dict[str, tuple[str, str | None]] = {}
        for cell in self._cells.usable:
            with reading(cell.database) as connection:
                found |= changes.hosts_of(connection, uuids)
        return found

    def places_of(self, uuids: Collection[str]) -> dict[str, set[str]]:
        """Return {server: hosts} of these servers, including both hosts of a server that is being moved.

        Runs one SQL statement for each cell.
        """
        found: dict[str, set[str]] = {}
        for cell in self._cells.usable if uuids else ():
            with reading(cell.database) as connection:
                here = instance_groups.places(connection, uuids)
            for uuid, hosts in here.items():
                found.setdefault(uuid, set()).update(hosts)
        return found

    def waiting(self, operations: Sequence[str]) -> set[str]:
        """Return the servers whose boot operations have no host yet and were not cancelled.

        ``operations`` are the uuids of the boot operations to consider.
        """
        with reading(self._databases.api()) as connection:
            return waiting_boots(connection, operations)

    def coming(self, uuids: Collection[str]) -> set[str]:
        """Return the servers of ``uuids`` that still have a build request, because they may not be in any cell yet.

        Call this before reading the cells. A new server is written to its cell before its build request is deleted, so
        with this order each existing server is found. A server that has no build request and is in no cell was deleted,
        or its boot failed.
        """
        if not uuids:
            return set()
        with reading(self._databases.api()) as connection:
            return build_requests.existing(connection, uuids)

    def group(self, uuid: str) -> tuple[Row, list[str]] | None:
        """Return the current row of a server group and its members' uuids, or None if the group was deleted.

        Runs at most three SQL statements.
        """
        with reading(self._databases.api()) as connection:
            found = instance_groups.cells_of_members(connection, uuid)
        return None if found is None else (found[0], list(found[1]))


class OnHosts:
    """The servers of some hosts.

    They are read once for each cell, when a filter first needs the servers of any host.
    """

    def __init__(self, cells: list[CellReader], hosts: Collection[str]) -> None:
        self._cells, self._hosts = cells, hosts
        self._rows: dict[str, list[Row]] | None = None
        self._images: dict[str, dict[str, dict[str, str]]] | None = None

    def __call__(self, host: str) -> list[Row]:
        """Return the rows of a host's servers."""
        if self._rows is None:
            self._rows = self._read(snapshot.servers_on)
        return self._rows.get(host, [])

    def image_properties(self, host: str) -> dict[str, dict[str, str]]:
        """Return {server: properties of its image} for the servers of a host."""
        if self._images is None:
            self._images = self._read(snapshot.image_properties_on)
        return self._images.get(host, {})

    def _read(self, query: Callable[[Connection, Collection[str]], dict[str, V]]) -> dict[str, V]:
        found: dict[str, V] = {}
        for cell in self._cells:
            with reading(cell.database) as connection:
                found |= query(connection, self._hosts)
        return found
