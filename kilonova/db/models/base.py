"""Common parts of the API and cell tables: column types, mixins, constraint names, and columns of operation tables.

Columns, indexes and constraint names are those of Nova.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import declared_attr, mapped_column

_MYSQL = ('mysql', 'mariadb')

MediumText = sa.Text().with_variant(mysql.MEDIUMTEXT(), *_MYSQL)
# fsp is the number of digits of a fraction of a second. Without it, MySQL's DATETIME rounds to whole seconds.
DateTime = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)

# MySQL's default collation ignores case. The collation utf8mb4_bin compares exactly, as SQLite and PostgreSQL do.
TABLE_OPTIONS = {
    'mysql_engine': 'InnoDB',
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mariadb_engine': 'InnoDB',
    'mariadb_charset': 'utf8mb4',
    'mariadb_collate': 'utf8mb4_bin',
}

NAMING = {'fk': 'fk_%(table_name)s_%(column_0_name)s'}


def utcnow() -> dt.datetime:
    """Return the current time as naive UTC, the form in which all datetime columns store times."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def unique(table: str, *columns: str) -> sa.UniqueConstraint:
    """Return a unique constraint with Nova's name, ``uniq_<table>0<column>0<column>``."""
    return sa.UniqueConstraint(*columns, name='0'.join((f'uniq_{table}', *columns)))


def index(table: str, *columns: str, name: str | None = None, prefixes: dict[str, int] | None = None) -> sa.Index:
    """Return an index named ``<table>_<column>_idx``, or ``name`` if it is given.

    ``prefixes`` is {column: number of characters to index}. It is needed for columns that would make MySQL's key too
    long.
    """
    lengths: dict[str, Any] = {f'{dialect}_length': prefixes for dialect in _MYSQL} if prefixes else {}
    return sa.Index(name or '_'.join((table, *columns, 'idx')), *columns, **lengths)


class Timestamps:
    """The columns created_at and updated_at. Inserts and updates with SQLAlchemy Core set them automatically."""

    created_at = mapped_column(DateTime, default=utcnow, sort_order=100)
    updated_at = mapped_column(DateTime, onupdate=utcnow, sort_order=101)


class SoftDelete(Timestamps):
    """Columns of a table that keeps its deleted rows. ``deleted`` is the row's id in a deleted row, otherwise 0."""

    deleted_at = mapped_column(DateTime, sort_order=102)
    deleted = mapped_column(sa.Integer, default=0, sort_order=103)


def shadow_of(table: sa.Table) -> sa.Table:
    """Return the table ``shadow_<table>``, to which deleted rows of the table are archived.

    It has the same columns, without constraints on their values. It has its own primary key, because SQLite may give
    the id of an archived row to a new row.
    """
    columns = [
        sa.Column(
            column.name, sa.String(255) if isinstance(column.type, sa.Enum) else column.type, nullable=column.nullable
        )
        for column in table.columns
    ]
    options: dict[str, Any] = {**TABLE_OPTIONS}
    return sa.Table(
        f'shadow_{table.name}',
        table.metadata,
        sa.Column('shadow_id', sa.Integer, primary_key=True),
        *columns,
        **options,
    )


class OperationColumns(Timestamps):
    """Columns of an operation, which is work on a server that a conductor must finish (operations.md rule 1).

    Attributes:
        slot: 'run', 'wait', or the row's own uuid if it runs concurrently with the server's other operations.
            A unique key on server and slot ensures that a server has at most one row 'run' and one row 'wait'.
        args: The arguments, as JSON. ``context``, ``outputs`` and ``error`` are JSON, too.
        not_before: Time before which no conductor takes the row, in epoch seconds by the database's clock.
        undoing: True while the steps of this attempt are undone because the attempt's host refused the server. Then
            the next attempt begins.
        written: The name of the last write that a host has made for the operation (``queries.claims``).
    """

    id = mapped_column(sa.Integer, primary_key=True)
    uuid = mapped_column(sa.String(36), nullable=False)
    kind = mapped_column(sa.String(32), nullable=False)
    instance_uuid = mapped_column(sa.String(36), nullable=False)
    slot = mapped_column(sa.String(36), nullable=False, default='run')
    args = mapped_column(MediumText, nullable=False)
    context = mapped_column(MediumText, nullable=False)
    request_id = mapped_column(sa.String(255))
    position = mapped_column(sa.Integer, nullable=False, default=0)
    outputs = mapped_column(MediumText, nullable=False, default='{}')
    attempt = mapped_column(sa.Integer, nullable=False, default=1)
    owner = mapped_column(sa.String(36))
    not_before = mapped_column(sa.Double, nullable=False, default=0.0)
    error = mapped_column(MediumText)
    failed = mapped_column(sa.Boolean, nullable=False, default=False)
    undoing = mapped_column(sa.Boolean, nullable=False, default=False, server_default=sa.false())
    cancelled = mapped_column(sa.Boolean, nullable=False, default=False)
    written = mapped_column(sa.Text, nullable=False, default='{}')
    host = mapped_column(sa.String(255))

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return (
            unique('operations', 'uuid'),
            unique('operations', 'instance_uuid', 'slot'),
            index('operations', 'owner'),
            index('operations', 'not_before'),
            TABLE_OPTIONS,
        )


class LeaseColumns:
    """Columns of a lease, which shows that a conductor process is alive until the time ``expires``.

    ``expires`` is in epoch seconds by the database's clock.
    """

    owner = mapped_column(sa.String(36), primary_key=True)
    host = mapped_column(sa.String(255))
    expires = mapped_column(sa.Double, nullable=False)

    __table_args__ = (TABLE_OPTIONS,)
