"""The door from the objects to the databases, opened only where a remotable method really runs.

A compute node imports the objects but has no database: nothing of ``kilonova.db`` is loaded there.
"""
from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kilonova.context import RequestContext


def database(ctxt: RequestContext) -> Any:
    """The cell database that this context works in: its own cell, else the one of ``[database]``."""
    if ctxt.cell is not None:
        return ctxt.cell
    return importlib.import_module('kilonova.db.engine').main()


def queries(table: str) -> ModuleType:
    """The module ``kilonova.db.queries.<table>``."""
    return importlib.import_module(f'kilonova.db.queries.{table}')
