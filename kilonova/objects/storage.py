"""Access of the versioned objects to the databases.

Only remotable methods use this module, and only in processes that have a database. A compute service imports the
objects but has no database, so ``kilonova.db`` is imported only when a function of this module is called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kilonova.context import RequestContext


def database(ctxt: RequestContext) -> Any:
    """Return the database of the context's cell.

    If the context has no cell, return the database of the option group ``[database]``.
    """
    if ctxt.cell is not None:
        return ctxt.cell
    return importlib.import_module('kilonova.db.engine').main()


def queries(table: str) -> ModuleType:
    """Return the module ``kilonova.db.queries.<table>``."""
    return importlib.import_module(f'kilonova.db.queries.{table}')
