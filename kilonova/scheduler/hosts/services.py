"""The compute services of the scheduler's hosts: which hosts have a service, and whether it is disabled or up.

Callers must hold the host table's lock.
"""

from __future__ import annotations

from collections.abc import Collection

from kilonova.scheduler.hosts.columns import HostColumns, HostIndex, Row


class Services:
    """The compute services of all hosts. This class writes the table's columns ``live``, ``disabled``, ``up``."""

    def __init__(self, columns: HostColumns[str], places: HostIndex) -> None:
        self._columns, self._places = columns, places
        self._rows: dict[tuple[str, str], Row] = {}

    def get(self, cell_uuid: str, host: str) -> Row | None:
        """Return the row of the host's compute service with the additional key ``up``, or None if it has no service."""
        return self._rows.get((cell_uuid, host))

    def put(self, cell_uuid: str, service: Row) -> None:
        """Store the current row of a compute service. If the row is marked as deleted, remove the service instead."""
        key = cell_uuid, service['host']
        known = self._rows.get(key)
        if service['deleted']:
            if known is not None and known['id'] == service['id']:
                del self._rows[key]
        else:
            self._rows[key] = {**service, 'up': known['up'] if known is not None else True}
        self._write(*key)

    def put_down(self, cell_uuid: str, down: Collection[int]) -> None:
        """Mark the services with these ids as down, and all other services of the cell as up."""
        for (cell, host), service in self._rows.items():
            if cell == cell_uuid and service['up'] == (service['id'] in down):
                service['up'] = not service['up']
                self._write(cell, host)

    def down(self, cell_uuid: str) -> set[int]:
        """Return the ids of a cell's services that are marked as down."""
        return {service['id'] for (cell, _), service in self._rows.items() if cell == cell_uuid and not service['up']}

    def forget_cell(self, cell_uuid: str, keep: Collection[int]) -> None:
        """Remove the services of a cell, except those with the ids in ``keep``."""
        for (cell, _), service in list(self._rows.items()):
            if cell == cell_uuid and service['id'] not in keep:
                self.put(cell_uuid, {**service, 'deleted': service['id']})

    def write(self, host_index: int, service: Row | None) -> None:
        """Write the columns ``live``, ``disabled`` and ``up`` of the host at ``host_index``.

        ``service`` is the row of the host's compute service, or None if the host has none.
        """
        self._columns['live'][host_index] = service is not None
        self._columns['disabled'][host_index] = bool(service and service['disabled'])
        self._columns['up'][host_index] = bool(service and service['up'])

    def _write(self, cell_uuid: str, host: str) -> None:
        for host_index in self._places.of_host(cell_uuid, host):
            self.write(host_index, self.get(cell_uuid, host))
