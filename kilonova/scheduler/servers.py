"""Where servers are and which are wanted, by the databases; Unanswered when one of them is silent."""
from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from kilonova.db.engine import Connection, Databases
from kilonova.db.queries import build_requests, changes, instance_groups, snapshot
from kilonova.db.queries.operations import waiting_boots
from kilonova.scheduler.cells import Cell, Cells, reading
from kilonova.scheduler.columns import Row

V = TypeVar('V')
# A statement that names more hosts than this reads all instead.
MANY_HOSTS = 500


class Servers:
    """Nothing is kept: each method reads. Of cells those that answered the last refresh."""

    def __init__(self, databases: Databases, cells: Cells) -> None:
        self._databases, self._cells = databases, cells

    def on(self, hosts: Collection[str] = ()) -> OnHosts:
        """Reads the servers of these hosts (none given: of all), once a request and only when asked."""
        return OnHosts(self._cells.usable, hosts if len(hosts) <= MANY_HOSTS else ())

    def hosts_of(self, uuids: Collection[str]) -> dict[str, tuple[str, str | None]]:
        """{server: (host, node)} of those of these servers that are on a host of an enabled cell."""
        found: dict[str, tuple[str, str | None]] = {}
        for cell in self._cells.usable:
            with reading(cell.database) as connection:
                found |= changes.hosts_of(connection, uuids)
        return found

    def places_of(self, uuids: Collection[str]) -> dict[str, set[str]]:
        """{server: hosts} of these servers, those of moves under way too; one statement a cell."""
        found: dict[str, set[str]] = {}
        for cell in self._cells.usable if uuids else ():
            with reading(cell.database) as connection:
                here = instance_groups.places(connection, uuids)
            for uuid, hosts in here.items():
                found.setdefault(uuid, set()).update(hosts)
        return found

    def waiting(self, operations: Sequence[str]) -> set[str]:
        """The servers of those of these operations that still wait for a host."""
        with reading(self._databases.api()) as connection:
            return waiting_boots(connection, operations)

    def coming(self, uuids: Collection[str]) -> set[str]:
        """Those of these servers that no cell holds yet. Asked before the cells: a server is in its cell before it is
        no longer here. Who is in neither was deleted, or failed, on the way."""
        if not uuids:
            return set()
        with reading(self._databases.api()) as connection:
            return build_requests.existing(connection, uuids)

    def group(self, uuid: str) -> tuple[Row, list[str]] | None:
        """A server group as it is now, and its members; None when it is gone. Three statements at most."""
        with reading(self._databases.api()) as connection:
            found = instance_groups.cells_of_members(connection, uuid)
        return None if found is None else (found[0], list(found[1]))


class OnHosts:
    """The servers of hosts, read once a cell when a filter asks for those of any host."""

    def __init__(self, cells: list[Cell], hosts: Collection[str]) -> None:
        self._cells, self._hosts = cells, hosts
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

    def _read(self, query: Callable[[Connection, Collection[str]], dict[str, V]]) -> dict[str, V]:
        found: dict[str, V] = {}
        for cell in self._cells:
            with reading(cell.database) as connection:
                found |= query(connection, self._hosts)
        return found
