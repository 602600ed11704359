"""Read JSON in text columns by SQL; ``db.queries`` calls this."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def of(dialect: str, column: sa.ColumnElement[Any]) -> Any:
    """Return a text column as one that SQL reads JSON in. A text that is no JSON counts as NULL.

    ``dialect``: the name of the database's dialect. PostgreSQL before its release 16 has no such test, so a text
    that is no JSON fails the statement there.
    """
    if dialect == 'postgresql':
        # PostgreSQL's operators want the type, the others' functions take the text.
        return sa.cast(column, sa.JSON)
    return sa.type_coerce(sa.case((sa.func.json_valid(column) == 1, column)), sa.JSON)
