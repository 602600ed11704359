"""The access of objects to the databases, used only in remotable methods that run in a process with a database.

A compute service imports the objects but has no database: it never imports ``kilonova.db``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kilonova.context import RequestContext


def database(ctxt: RequestContext) -> Any:
    """Return the cell database of a context: that of its own cell, otherwise the one of ``[database]``."""
    if ctxt.cell is not None:
        return ctxt.cell
    return importlib.import_module('kilonova.db.engine').main()


def queries(table: str) -> ModuleType:
    """Return the module ``kilonova.db.queries.<table>``."""
    return importlib.import_module(f'kilonova.db.queries.{table}')
