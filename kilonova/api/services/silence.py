"""Questions to all cells, some of which may not answer.

    silent: list = []
    for cell, rows in ask_cells(backend.all_cells(), lambda cell: …, silent): …
    if silent: ...                                          # what was found is not all
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kilonova.db import engine
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)

R = TypeVar('R')


def is_silence(error: BaseException) -> bool:
    """Whether a cell didn't answer, in contrast to an answer that is an error."""
    return isinstance(error, Unanswered) or engine.is_unreachable(error)


def ask_cells(cells: Iterable[Any], ask: Callable[[Any], R], silent: list[Any] | None = None) -> list[tuple[Any, R]]:
    """What each cell answers; cells that don't are added to ``silent`` (without such a list: the error)."""
    found = []
    for cell in cells:
        try:
            found.append((cell, ask(cell)))
        except Exception as error:
            if silent is None or not is_silence(error):
                raise
            LOG.warning('Cell %s is not responding and hence only partial results are available from this cell: %s',
                        cell.name, error)
            silent.append(cell)
    return found


def refuse_if_any(silent: Iterable[Any]) -> None:
    """Unanswered (503): what was looked for may be in a cell that didn't answer."""
    names = ', '.join(cell.name for cell in silent)
    if names:
        raise Unanswered(who=f'Cell {names}', reason='its database is silent')
