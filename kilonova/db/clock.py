"""SQL expressions for the time by the database's own clock, for SQLite, MySQL, MariaDB and PostgreSQL.

    connection.execute(update(leases).values(expires=db_now() + 30))
    select(services.c.id, (db_age(services.c.last_seen_up) <= 60).label('up'))

Leases and heartbeats are compared only with the database's clock, so the clocks of the daemons' hosts may differ.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import expression
from sqlalchemy.sql.compiler import SQLCompiler

from kilonova.db.models.base import DateTime


class db_now(expression.FunctionElement[float]):  # noqa: N801 - used like sqlalchemy's function names
    """The time when the statement started, in epoch seconds (float)."""

    inherit_cache = True
    name = 'db_now'
    type = sa.Double()


class db_utcnow(expression.FunctionElement[Any]):  # noqa: N801 - as above
    """The UTC time when the statement started, without a time zone (naive), as database columns store times."""

    inherit_cache = True
    name = 'db_utcnow'
    type = DateTime


class db_age(expression.FunctionElement[float]):  # noqa: N801 - as above
    """The seconds (float) from a naive UTC time until the start of the statement. It is NULL if the time is NULL."""

    inherit_cache = True
    name = 'db_age'
    type = sa.Double()


# MySQL's UNIX_TIMESTAMP(NOW(6)) is a DECIMAL. Adding 0e0 makes it a double, which the driver returns as a float.
# PostgreSQL's now() would return the begin of the transaction, so statement_timestamp() is used.
# PostgreSQL's clock_timestamp() is not used, because a comparison of a column with it can't use an index.
NOW = {
    'sqlite': "((julianday('now') - 2440587.5) * 86400.0)",
    'mysql': '(UNIX_TIMESTAMP(NOW(6)) + 0e0)',
    'postgresql': 'CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)',
}
# In SQLite, SQLAlchemy stores a time as text, with six digits for the fraction of a second.
# SQLite's expression returns a text with six such digits, too, so that SQLite can compare it with stored times.
UTCNOW = {
    'sqlite': "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
    'mysql': 'UTC_TIMESTAMP(6)',
    'postgresql': "timezone('utc', statement_timestamp())",
}
AGE = {
    'sqlite': "((julianday('now') - julianday({time})) * 86400.0)",
    'mysql': '(TIMESTAMPDIFF(MICROSECOND, {time}, UTC_TIMESTAMP(6)) / 1e6)',
    'postgresql': "CAST(EXTRACT(EPOCH FROM (timezone('utc', statement_timestamp()) - {time})) AS DOUBLE PRECISION)",
}


def _register(element_class: type, texts: dict[str, str]) -> None:
    for dialect, text in {**texts, 'mariadb': texts['mysql']}.items():

        def render(element: sa.ColumnElement[Any], compiler: SQLCompiler, text: str = text, **kw: Any) -> str:
            if isinstance(element, db_age):
                return text.format(time=compiler.process(element.clauses, **kw))
            return text

        compiles(element_class, dialect)(render)


_register(db_now, NOW)
_register(db_utcnow, UTCNOW)
_register(db_age, AGE)
