"""Make the rows of a table in the target cloud equal to those of the source cloud, in batches.

The source cloud is the cloud whose rows are copied, and the target cloud is the one whose tables are changed. In the
copy of a Nova to Kilonova, Nova is the source cloud. In the copy back, Kilonova is the source cloud.

    table = METADATA['cell'].tables['instances']
    counts = merge.missing(target, table, ('id',), existing)  # deletes rows that the source lacks
    counts = merge.rows(target, table, ('id',), batches)      # inserts and updates

``existing`` is a function that gets primary keys of rows of the table and returns those that the source cloud has.

Each batch is one transaction, and writes only what differs. So a run that is interrupted can simply be started again,
and a run that has nothing to do writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import sqlalchemy as sa

from kilonova.db.engine import Connection
from kilonova.db.migration import METADATA, Schema
from kilonova.db.nova.source import BATCH, among
from kilonova.db.rows import Row

Key = tuple[Any, ...]


class Target(Protocol):
    """A database that gets rows: one of Kilonova's, or a writable one of Nova's."""

    @property
    def dialect(self) -> str:
        """The name of the database software, such as 'postgresql'."""

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Open a transaction that may write."""


@dataclass
class Counts:
    """The numbers of rows of a table that were inserted, changed and deleted, and that were equal already."""

    inserted: int = 0
    changed: int = 0
    deleted: int = 0
    equal: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.inserted + other.inserted,
            self.changed + other.changed,
            self.deleted + other.deleted,
            self.equal + other.equal,
        )

    @property
    def total(self) -> int:
        """The number of rows that were inserted, changed or equal: after a copy, the rows that Nova's table has."""
        return self.inserted + self.changed + self.equal


def key_of(schema: Schema, table: str) -> tuple[str, ...]:
    """Return the names of the columns of a table's primary key. Batches of rows are read in the order of this key.

    ``schema`` is 'api' or 'cell'.
    """
    return tuple(column.name for column in METADATA[schema].tables[table].primary_key)


def rows(target: Target, table: sa.Table, names: Sequence[str], batches: Iterable[Sequence[Row]]) -> Counts:
    """Insert or update the rows of the batches in ``table``, and return the numbers of rows.

    Rows are matched by the primary key, whose columns are ``names``. Rows of the table that are in no batch stay
    unchanged. All rows of a batch have the same columns; the other columns of a new
    row get their default values.
    """
    counts = Counts()
    for batch in batches:
        if not batch:
            continue
        keys = [tuple(row[column] for column in names) for row in batch]
        with target.write() as connection:
            columns = [table.c[column] for column in batch[0]]
            found = connection.execute(sa.select(*columns).where(among(table, names, keys))).mappings()
            known = {tuple(row[column] for column in names): dict(row) for row in found}
            counts += _write(connection, table, names, batch, known)
    if counts.inserted:
        set_sequence(target, table, names)
    return counts


def missing(
    target: Target,
    table: sa.Table,
    names: Sequence[str],
    existing: Callable[[Sequence[Key]], Collection[Key]],
    *where: sa.ColumnElement[bool],
) -> Counts:
    """Delete the rows of ``table`` in ``target`` that the source cloud does not have. Return their number in Counts.

    The source cloud is the cloud whose rows are copied. ``names`` are the columns of the primary key.
    ``existing(keys)`` returns the primary keys in ``keys`` that the source cloud has. If conditions (``where``) are
    given, only rows that meet them are deleted.
    """
    order, counts = [table.c[column] for column in names], Counts()
    query = page = sa.select(*order).where(*where).order_by(*order).limit(BATCH)
    while True:
        with target.write() as connection:
            keys = [tuple(row) for row in connection.execute(page)]
            gone = sorted(set(keys) - set(existing(keys))) if keys else []
            if gone:
                connection.execute(sa.delete(table).where(among(table, names, gone)))
        counts.deleted += len(gone)
        if len(keys) < BATCH:
            return counts
        last = keys[-1]
        page = query.where(order[0] > last[0] if len(order) == 1 else sa.tuple_(*order) > sa.tuple_(*last))


def insert(connection: Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows, which all have the same columns."""
    if rows:
        connection.execute(sa.insert(table), rows)


def delete(connection: Connection, table: sa.Table, names: Sequence[str], keys: Sequence[Key]) -> None:
    """Delete the rows with these keys. ``names`` are the columns of the primary key."""
    if keys:
        connection.execute(sa.delete(table).where(among(table, names, keys)))


def _write(
    connection: Connection, table: sa.Table, names: Sequence[str], batch: Sequence[Row], known: dict[Key, Row]
) -> Counts:
    new, changed = [], []
    for row in batch:
        before = known.get(tuple(row[column] for column in names))
        if before is None:
            new.append(row)
        elif before != row:
            changed.append(row)
    change(connection, table, names, changed)
    insert(connection, table, new)
    return Counts(len(new), len(changed), 0, len(batch) - len(new) - len(changed))


def change(connection: Connection, table: sa.Table, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Update rows of a table to these values. ``names`` are the columns of the primary key.

    Every column is set, also updated_at, which would otherwise become the present time.
    """
    if not rows:
        return
    matches = [table.c[column] == sa.bindparam(f'key_{column}') for column in names]
    others = [column for column in rows[0] if column not in names]
    statement = sa.update(table).where(*matches).values({column: sa.bindparam(f'new_{column}') for column in others})
    connection.execute(
        statement,
        [
            {f'key_{column}': row[column] for column in names} | {f'new_{column}': row[column] for column in others}
            for row in rows
        ],
    )


def set_sequence(target: Target, table: sa.Table, names: Sequence[str]) -> None:
    """Set PostgreSQL's sequence for the column id to the highest id, so that new rows get higher ids.

    The other databases do so by themselves.
    """
    if target.dialect != 'postgresql' or names != ('id',):
        return
    with target.write() as connection:
        sequence = sa.func.pg_get_serial_sequence(table.name, 'id')
        highest = sa.select(sa.func.max(table.c.id)).scalar_subquery()
        connection.execute(sa.select(sa.func.setval(sequence, highest)))
