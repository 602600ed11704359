"""Time by the database's own clock, as SQL expressions that SQLite, MySQL, MariaDB and PostgreSQL understand.

    connection.execute(update(leases).values(expires=db_now() + 30))
    select(services.c.id, (db_age(services.c.last_seen_up) <= 60).label('up'))

Leases and heartbeats are compared with this clock alone, so that the clocks of the daemons' hosts may differ.
"""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import expression
from sqlalchemy.sql.compiler import SQLCompiler

from kilonova.db.models.base import DateTime


class db_now(expression.ColumnElement[float]):  # noqa: N801 - used like sqlalchemy's function names
    """Epoch seconds (float) when the statement started."""

    inherit_cache = True
    type = sa.Double()


class db_utcnow(expression.ColumnElement[Any]):  # noqa: N801 - as above
    """Naive UTC time when the statement started, in the form in which columns store it."""

    inherit_cache = True
    type = DateTime


class db_age(expression.FunctionElement[float]):  # noqa: N801 - as above
    """Seconds (float) from a naive UTC time to the start of the statement; NULL for NULL."""

    inherit_cache = True
    name = 'db_age'
    type = sa.Double()


@compiles(db_now, 'sqlite')
def _now_sqlite(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, 'mysql')
@compiles(db_now, 'mariadb')
def _now_mysql(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # "+ 0e0" turns the DECIMAL into a double, so that drivers return a float.
    return '(UNIX_TIMESTAMP(NOW(6)) + 0e0)'


@compiles(db_now, 'postgresql')
def _now_postgresql(element: db_now, compiler: SQLCompiler, **kw: Any) -> str:
    # statement_timestamp(), unlike now(), moves inside a transaction and, unlike clock_timestamp(), allows an
    # index.
    return 'CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)'


@compiles(db_utcnow, 'sqlite')
def _utcnow_sqlite(element: db_utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    # SQLAlchemy stores and reads six digits of fraction; the text must compare with those.
    return "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"


@compiles(db_utcnow, 'mysql')
@compiles(db_utcnow, 'mariadb')
def _utcnow_mysql(element: db_utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return 'UTC_TIMESTAMP(6)'


@compiles(db_utcnow, 'postgresql')
def _utcnow_postgresql(element: db_utcnow, compiler: SQLCompiler, **kw: Any) -> str:
    return "timezone('utc', statement_timestamp())"


@compiles(db_age, 'sqlite')
def _age_sqlite(element: db_age, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday('now') - julianday({compiler.process(element.clauses, **kw)})) * 86400.0)"


@compiles(db_age, 'mysql')
@compiles(db_age, 'mariadb')
def _age_mysql(element: db_age, compiler: SQLCompiler, **kw: Any) -> str:
    return f'(TIMESTAMPDIFF(MICROSECOND, {compiler.process(element.clauses, **kw)}, UTC_TIMESTAMP(6)) / 1e6)'


@compiles(db_age, 'postgresql')
def _age_postgresql(element: db_age, compiler: SQLCompiler, **kw: Any) -> str:
    return ("CAST(EXTRACT(EPOCH FROM (timezone('utc', statement_timestamp()) - "
            f'{compiler.process(element.clauses, **kw)})) AS DOUBLE PRECISION)')
