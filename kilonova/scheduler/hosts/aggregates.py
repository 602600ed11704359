"""Current host aggregates, kept in memory for the scheduler."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Collection
from typing import Any

from kilonova.db.engine import Databases
from kilonova.db.queries import aggregates, changes
from kilonova.db.queries.snapshot import ZONE_KEY
from kilonova.scheduler.hosts.cells import OVERLAP, reading
from kilonova.scheduler.hosts.columns import Row


class Aggregates:
    """All host aggregates, as last read from the API database.

    ``rows`` has one row for each aggregate, with its ``hosts`` and ``metadata``. A new list replaces it while the host
    table's lock is held.
    """

    def __init__(self, databases: Databases, lock: threading.RLock) -> None:
        self._databases, self._lock = databases, lock
        self.rows: list[Row] = []
        self._of_host: dict[str, list[Row]] = {}
        self._mark: tuple[Any, ...] | None = None

    def refresh(self) -> None:
        """Read the aggregates again if any of them was written since the last call.

        Runs one SQL statement if none was written. Raises Unanswered if the API database does not answer.
        """
        with reading(self._databases.api()) as connection:
            mark = changes.aggregates_mark(connection)
            if mark == self._mark:
                return
            found = aggregates.snapshot(connection)
        # If a timestamp is very recent, read again at the next call: a later write may get the same timestamp.
        young = any(
            (dt.datetime.now(dt.UTC).replace(tzinfo=None) - stamp).total_seconds() < OVERLAP
            for stamp in mark
            if isinstance(stamp, dt.datetime)
        )
        self.put(found)
        self._mark = None if young else mark

    def put(self, rows: list[Row]) -> None:
        """Replace all stored aggregates with these rows."""
        of_host: dict[str, list[Row]] = {}
        for row in rows:
            for host in row['hosts']:
                of_host.setdefault(host, []).append(row)
        with self._lock:
            self.rows, self._of_host = rows, of_host

    def of_host(self, host: str) -> list[Row] | None:
        """Return the aggregates that contain a host, or None if no aggregate contains it."""
        return self._of_host.get(host)

    def of_zone(self, zone: str) -> list[str]:
        """Return the uuids of the aggregates that belong to an availability zone."""
        return [row['uuid'] for row in self.rows if row['metadata'].get(ZONE_KEY) == zone]

    def hosts(self, uuids: Collection[str]) -> set[str]:
        """Return the names of the hosts that are in at least one of the aggregates with these uuids."""
        return {host for row in self.rows if row['uuid'] in uuids for host in row['hosts']}

    def metadata_of_hosts(self) -> dict[str, list[Row]]:
        """Return {host: metadata of each aggregate that contains the host}."""
        return {host: [row['metadata'] for row in rows] for host, rows in self._of_host.items()}

    def overridden(self, key: str) -> dict[str, list[str]]:
        """Return {host: values of the metadata key ``key`` in the host's aggregates}.

        Hosts without a value are left out.
        """
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if key in row['metadata']:
                for host in row['hosts']:
                    found.setdefault(host, []).append(row['metadata'][key])
        return found
