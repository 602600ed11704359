"""Pages over the rows of all cells, cell by cell."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kilonova.api.services.silence import ask_cells, refuse_if_any
from kilonova.db.engine import Connection, Database
from kilonova.errors import MarkerNotFound

Row = Mapping[str, Any]


def page(cells: Iterable[Database], limit: int, marker: str | None, silent: list[Database], *,
         find: Callable[[Connection, str], int | None],
         read: Callable[[Connection, int | None, int], Iterable[Row]]) -> list[Row]:
    """At most ``limit`` rows behind ``marker``; cells that don't answer are added to ``silent``.

    ``find(conn, marker)``: the id of the marker's row, None: it isn't in this cell; ``read(conn, after, limit)``: rows
    behind that id. MarkerNotFound; Unanswered when the marker may be in a silent cell.
    """
    found: list[Row] = []
    skip = marker is not None

    def ask(cell: Database) -> None:
        nonlocal skip
        if len(found) == limit:
            return
        with cell.read() as conn:
            after = None
            if skip:
                after = find(conn, marker or '')
                if after is None:
                    return
                skip = False
            found.extend(read(conn, after, limit - len(found)))
    ask_cells(cells, ask, silent)
    if skip:
        refuse_if_any(silent)
        raise MarkerNotFound(marker=marker)
    return found
