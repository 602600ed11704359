"""Paginated lists of rows that are read from all cells, one cell after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kilonova.api.services.scatter_gather import ask_cells, refuse_if_any
from kilonova.db.engine import Connection, Database
from kilonova.errors import MarkerNotFound

Row = Mapping[str, Any]


def page(
    cells: Iterable[Database],
    limit: int,
    marker: str | None,
    silent: list[Database],
    *,
    find: Callable[[Connection, str], int | None],
    read: Callable[[Connection, int | None, int], Iterable[Row]],
) -> list[Row]:
    """Return at most ``limit`` rows after ``marker``, in the order of the cells.

    ``find(conn, marker)`` returns the id of the marker's row, or None if the cell does not have the row. ``read(conn,
    after, limit)`` returns the rows after the id ``after``, or from the first row on if ``after`` is None. Cells that
    don't answer are appended to ``silent``.

    Raises MarkerNotFound if no cell has the marker's row, and Unanswered if the row may be in a cell that does not
    answer.
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
