"""Queries to all cells, some of whose databases may not answer.

    silent: list = []
    for cell, rows in ask_cells(backend.all_cells(), lambda cell: …, silent): …
    if silent: ...                                          # the result is not complete

The lists of servers, services and hypervisors use these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from oslo_log import log as logging

from kilonova.db import engine
from kilonova.db.engine import Connection, Database
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)

R = TypeVar('R')


def is_silence(error: BaseException) -> bool:
    """Return whether the error means that a database, another OpenStack service or a Kilonova daemon did not answer.

    Such errors are Unanswered (for example a timeout of an RPC call), and connection errors of the database.
    """
    return isinstance(error, Unanswered) or engine.is_unreachable(error)


def ask_cells(cells: Iterable[Any], ask: Callable[[Any], R], silent: list[Any] | None = None) -> list[tuple[Any, R]]:
    """Call ``ask`` with each cell, and return a list of (cell, result).

    A caller that accepts an incomplete result passes an empty list as ``silent``. Cells whose database does not answer
    are then left out of the result and appended to ``silent``. If ``silent`` is None, such a cell makes this function
    raise the error of the database.
    """
    found = []
    for cell in cells:
        try:
            found.append((cell, ask(cell)))
        except Exception as error:
            if silent is None or not is_silence(error):
                raise
            LOG.warning(
                'Cell %s is not responding and hence only partial results are available from this cell: %s',
                cell.name,
                error,
            )
            silent.append(cell)
    return found


def first(cells: Iterable[Database], find: Callable[[Connection], R | None], missing: Exception) -> R:
    """Call ``find`` with a connection to each cell's database, and return the first result that is not None.

    If there is no result, raise the exception ``missing``. But if a cell did not answer, raise Unanswered (503)
    instead, because this cell may have a result.
    """

    def ask(cell: Database) -> R | None:
        with cell.read() as conn:
            return find(conn)

    silent: list[Any] = []
    for _, found in ask_cells(cells, ask, silent):
        if found is not None:
            return found
    refuse_if_any(silent)
    raise missing


def refuse_if_any(silent: Iterable[Any]) -> None:
    """Raise Unanswered (503) if ``silent``, the list of cells whose database did not answer, is not empty.

    Call this before a 404 error: a row that was not found may be in one of these cells.
    """
    names = ', '.join(cell.name for cell in silent)
    if names:
        raise Unanswered(who=f'Cell {names}', reason='its database did not respond')
