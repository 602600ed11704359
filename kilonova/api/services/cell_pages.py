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
    """Return one page of a list: at most ``limit`` rows, first those of the first cell, then those of the next cell.

    ``marker`` names the last row of the page before, or is None for the first page. ``find(conn, marker)`` returns the
    id of this row in a cell's table, or None if the cell does not have the row. ``read(conn, after, limit)`` returns
    rows of one cell whose id is greater than ``after`` (None: from the first row on). A cell whose database does not
    answer is appended to the list ``silent``, which the caller passes empty.

    Raises MarkerNotFound if no cell has the row ``marker``, and Unanswered (503) if it may be in a cell that does not
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
