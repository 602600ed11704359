"""From results to plain dicts, and the statements that many tables share.

    one(connection.execute(select(table).where(...)))          # dict or None
    insert_missing(connection, host_mappings, [{'host': 'a', 'cell_id': 1}])
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from kilonova.db.clock import db_utcnow

Row = dict[str, Any]


def one(result: sa.CursorResult[Any]) -> Row | None:
    """The first row as a dict, or None."""
    row = result.mappings().first()
    return None if row is None else dict(row)


def many(result: sa.CursorResult[Any]) -> list[Row]:
    """All rows as dicts."""
    return [dict(row) for row in result.mappings()]


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Sequence[Row],
                   **expressions: sa.ColumnElement[Any]) -> None:
    """Insert those rows that break no unique key, in one statement; rows that are there stay as they are.

    All rows have the same keys; ``expressions`` are SQL values that they share. Unlike an INSERT whose error
    is caught, it doesn't end PostgreSQL's transaction; unlike MySQL's IGNORE it hides no other error.
    """
    if not rows:
        return
    if any(row.keys() != rows[0].keys() for row in rows):
        # An executemany would silently leave out what the first row doesn't have.
        raise ValueError(f'rows of {table.name} with different columns')
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
    """Mark live rows deleted (``deleted`` = id); returns how many."""
    # updated_at is kept: it says when the row last meant something.
    result = connection.execute(sa.update(table).where(table.c.deleted == 0, *criteria).values(
        deleted=table.c.id, deleted_at=db_utcnow(), updated_at=table.c.updated_at))
    return result.rowcount
