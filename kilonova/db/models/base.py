"""What both databases' tables are made of: column types, mixins, names of constraints, and the two operation
tables.

Columns, indexes and constraint names are the field's.
"""
from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import declared_attr, mapped_column

_MYSQL = ('mysql', 'mariadb')

MediumText = sa.Text().with_variant(mysql.MEDIUMTEXT(), *_MYSQL)
# MySQL's DATETIME rounds to whole seconds unless told: times of one server would differ from those of
# another.
DateTime = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), *_MYSQL)

# MySQL's default collation ignores case; SQLite and PostgreSQL compare exactly, and so do UUIDs, keys and
# host names.
TABLE_OPTIONS = {'mysql_engine': 'InnoDB', 'mysql_charset': 'utf8mb4', 'mysql_collate': 'utf8mb4_bin',
                 'mariadb_engine': 'InnoDB', 'mariadb_charset': 'utf8mb4', 'mariadb_collate': 'utf8mb4_bin'}

NAMING = {'fk': 'fk_%(table_name)s_%(column_0_name)s'}


def utcnow() -> dt.datetime:
    """Naive UTC, as all datetime columns hold it."""
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


def unique(table: str, *columns: str) -> sa.UniqueConstraint:
    """A unique constraint under the field's name, ``uniq_<table>0<column>0<column>``."""
    return sa.UniqueConstraint(*columns, name='0'.join((f'uniq_{table}', *columns)))


def index(table: str, *columns: str, name: str | None = None,
          prefixes: dict[str, int] | None = None) -> sa.Index:
    """An index ``<table>_<column>_idx``; ``prefixes`` bounds columns where MySQL's key gets too long."""
    lengths: dict[str, Any] = {f'{dialect}_length': prefixes for dialect in _MYSQL} if prefixes else {}
    return sa.Index(name or '_'.join((table, *columns, 'idx')), *columns, **lengths)


class Timestamps:
    """created_at and updated_at, set by Core inserts and updates."""

    created_at = mapped_column(DateTime, default=utcnow, sort_order=100)
    updated_at = mapped_column(DateTime, onupdate=utcnow, sort_order=101)


class SoftDelete(Timestamps):
    """A deleted row stays, with ``deleted`` = its id; live rows have 0."""

    deleted_at = mapped_column(DateTime, sort_order=102)
    deleted = mapped_column(sa.Integer, default=0, sort_order=103)


def shadow_of(table: sa.Table) -> sa.Table:
    """``shadow_<table>`` in the same metadata: the same columns, but nothing that binds their values.

    Its key is its own: SQLite gives the id of an archived row out again.
    """
    columns = [sa.Column(column.name, sa.String(255) if isinstance(column.type, sa.Enum) else column.type,
                         nullable=column.nullable) for column in table.columns]
    options: dict[str, Any] = {**TABLE_OPTIONS}
    return sa.Table(f'shadow_{table.name}', table.metadata, sa.Column('shadow_id', sa.Integer, primary_key=True),
                    *columns, **options)


class OperationColumns(Timestamps):
    """Work of an instance that somebody has to finish (operations.md §1).

    ``slot`` makes "one running row a server" a unique key: 'run', 'wait', or the row's own uuid for a pending
    release. ``not_before`` is in epoch seconds by the database's clock; args, context, outputs and error hold JSON.
    ``undoing``: the host of this attempt refused, its steps are being undone before the next attempt. ``written``: the
    key of the last write of a host (``queries.claims``).
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
        return (unique('operations', 'uuid'), unique('operations', 'instance_uuid', 'slot'),
                index('operations', 'owner'), index('operations', 'not_before'), TABLE_OPTIONS)


class LeaseColumns:
    """A conductor process that is alive until ``expires`` (epoch seconds by the database's clock)."""

    owner = mapped_column(sa.String(36), primary_key=True)
    host = mapped_column(sa.String(255))
    expires = mapped_column(sa.Double, nullable=False)

    __table_args__ = (TABLE_OPTIONS,)
