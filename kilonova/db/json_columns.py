"""Read JSON in text columns by SQL, for modules of ``db.queries``."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def of(dialect: str, column: sa.ColumnElement[Any]) -> Any:
    """Return a text column as a column in which SQL can read JSON. A text that isn't valid JSON counts as NULL.

    ``dialect`` is the name of the database's dialect. PostgreSQL before release 16 has no test for valid JSON, so on
    PostgreSQL an invalid text makes the statement fail.
    """
    if dialect == 'postgresql':
        # PostgreSQL's operators need the JSON type. The functions of the other databases accept text.
        return sa.cast(column, sa.JSON)
    return sa.type_coerce(sa.case((sa.func.json_valid(column) == 1, column)), sa.JSON)
