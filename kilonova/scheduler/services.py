"""The compute services of the hosts in ``table.Table``: present, disabled, up. Callers hold the table's lock."""
from __future__ import annotations

from collections.abc import Collection

from kilonova.scheduler.columns import Columns, Places, Row


class Services:
    """Writes the columns ``live``, ``disabled`` and ``up`` of their hosts."""

    def __init__(self, columns: Columns[str], places: Places) -> None:
        self._columns, self._places = columns, places
        self._rows: dict[tuple[str, str], Row] = {}

    def get(self, cell_uuid: str, host: str) -> Row | None:
        """A host's row, with ``up``."""
        return self._rows.get((cell_uuid, host))

    def put(self, cell_uuid: str, service: Row) -> None:
        """A compute service as it is now; a deleted one leaves."""
        key = cell_uuid, service['host']
        known = self._rows.get(key)
        if service['deleted']:
            if known is not None and known['id'] == service['id']:
                del self._rows[key]
        else:
            self._rows[key] = {**service, 'up': known['up'] if known is not None else True}
        self._write(*key)

    def put_down(self, cell_uuid: str, down: Collection[int]) -> None:
        """Which services of a cell are down, by id; all others are up."""
        for (cell, host), service in self._rows.items():
            if cell == cell_uuid and service['up'] == (service['id'] in down):
                service['up'] = not service['up']
                self._write(cell, host)

    def down(self, cell_uuid: str) -> set[int]:
        """Ids of the services of a cell that count as down."""
        return {service['id'] for (cell, _), service in self._rows.items() if cell == cell_uuid and not service['up']}

    def forget_cell(self, cell_uuid: str, keep: Collection[int]) -> None:
        """Drop the services of a cell but those with these ids."""
        for (cell, _), service in list(self._rows.items()):
            if cell == cell_uuid and service['id'] not in keep:
                self.put(cell_uuid, {**service, 'deleted': service['id']})

    def write(self, place: int, service: Row | None) -> None:
        """What a host's service, None without one, says about its place."""
        self._columns['live'][place] = service is not None
        self._columns['disabled'][place] = bool(service and service['disabled'])
        self._columns['up'][place] = bool(service and service['up'])

    def _write(self, cell_uuid: str, host: str) -> None:
        for place in self._places.of_host(cell_uuid, host):
            self.write(place, self.get(cell_uuid, host))
