"""Convert query results to plain dicts, and run statements that are the same for many tables.

    one(connection.execute(select(table).where(...)))          # dict or None
    insert_missing(connection, host_mappings, [{'host': 'a', 'cell_id': 1}])

Modules of ``db.queries`` use these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from kilonova.db.clock import db_utcnow

Row = dict[str, Any]


def one(result: sa.CursorResult[Any]) -> Row | None:
    """Return the first row of a result as a dict, or None if the result is empty."""
    row = result.mappings().first()
    return None if row is None else dict(row)


def many(result: sa.CursorResult[Any]) -> list[Row]:
    """Return all rows of a result as dicts."""
    return [dict(row) for row in result.mappings()]


def insert_missing(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Row], **expressions: sa.ColumnElement[Any]
) -> None:
    """Insert the rows that violate no unique key, in one SQL statement. Existing rows are left unchanged.

    All rows must have the same keys, otherwise ValueError is raised. ``expressions`` are SQL values that all rows get.
    In contrast to an INSERT whose error is caught, this doesn't abort a PostgreSQL transaction. In contrast to MySQL's
    INSERT IGNORE, other errors are still raised.
    """
    if not rows:
        return
    if any(row.keys() != rows[0].keys() for row in rows):
        # An INSERT of many rows would silently omit columns that the first row doesn't have.
        raise ValueError(f'all rows of {table.name} must have the same columns')
    statement: sa.Insert
    if connection.dialect.name in ('mysql', 'mariadb'):
        key = next(iter(table.primary_key.columns))
        statement = mysql.insert(table).on_duplicate_key_update({key.name: key})
    elif connection.dialect.name == 'postgresql':
        statement = postgresql.insert(table).on_conflict_do_nothing()
    else:
        statement = sqlite.insert(table).on_conflict_do_nothing()
    connection.execute(statement.values(expressions) if expressions else statement, list(rows))


def soft_delete(connection: sa.Connection, table: sa.Table, *criteria: sa.ColumnElement[bool]) -> int:
    """Mark the rows that meet the criteria as deleted (``deleted`` = id), and return their number."""
    # updated_at keeps its value, because it is the time of the last change before the row's deletion.
    result = connection.execute(
        sa.update(table)
        .where(table.c.deleted == 0, *criteria)
        .values(deleted=table.c.id, deleted_at=db_utcnow(), updated_at=table.c.updated_at)
    )
    return result.rowcount
