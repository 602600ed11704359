"""Access of the versioned objects to the databases; only remotable methods use it, in processes with a database.

A compute service imports the objects but has no database, so it never imports ``kilonova.db``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kilonova.context import RequestContext


def database(ctxt: RequestContext) -> Any:
    """Return the database of the context's cell, or that of ``[database]`` if the context has no cell."""
    if ctxt.cell is not None:
        return ctxt.cell
    return importlib.import_module('kilonova.db.engine').main()


def queries(table: str) -> ModuleType:
    """Return the module ``kilonova.db.queries.<table>``."""
    return importlib.import_module(f'kilonova.db.queries.{table}')
