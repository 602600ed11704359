"""What a database error means: lost race, try again, or nobody there.

    try:
        rows = operation_leases.take(database, uuids, owner)
    except Exception as error:
        if is_unreachable(error): ...           # silence: the row stays as it is and goes on later

Codes: MySQL and MariaDB "Server Error Message Reference", PostgreSQL appendix A (SQLSTATE),
sqlite.org/rescode.html.
"""
from __future__ import annotations

import contextlib
import contextvars
import logging
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import ExceptionContext

from kilonova.errors import KilonovaError, Unanswered

LOG = logging.getLogger(__name__)

# Whether what runs now is repeated after a connection was lost (``engine.retried``).
REPEATED: contextvars.ContextVar[bool] = contextvars.ContextVar('repeated', default=False)

# The attribute of an error that names its database.
_DATABASE = 'kilonova_database'
# 1020 is MariaDB's snapshot isolation, 1205 the lock wait timeout, 1213 the deadlock (Galera's certification
# too).
_MYSQL_AGAIN = frozenset((1020, 1205, 1213))
# Too many connections, shutdown, aborted, access to a node that is not ready, the client's 20xx of lost links; a lock
# or a statement (1969 of MariaDB, 3024 of MySQL) that took too long.
_MYSQL_SILENT = frozenset((1040, 1042, 1043, 1047, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1226, 1927,
                           1969, 2002, 2003, 2005, 2006, 2013, 2014, 2045, 2055, 3024, 4031))
# What PyMySQL makes of a socket's error while it writes, and while it reads.
_MYSQL_LOST = frozenset((2006, 2013))
_POSTGRESQL_AGAIN = frozenset(('40001', '40P01', '55P03'))
# 57014 is a statement that took too long, 55P03 a lock, 25P03 a transaction in which nothing happened for too long.
_POSTGRESQL_SILENT = ('08', '25P03', '53300', '55P03', '57014', '57P')
_SQLITE_SILENT = ('database is locked', 'unable to open database file', 'disk i/o error', 'interrupted')


# Of a database, an account, a table or a column that isn't there. psycopg2 knows no SQLSTATE of a connection that the
# server refused: then only the text tells.
_MYSQL_MISSING, _MYSQL_REFUSED, _MYSQL_LACKS = (frozenset((1049,)), frozenset((1044, 1045, 1698)),
                                                frozenset((1054, 1146)))
_POSTGRESQL_MISSING, _POSTGRESQL_REFUSED, _POSTGRESQL_LACKS = (
    re.compile(r'database "[^"]*" does not exist'),
    re.compile(r'authentication failed|role "[^"]*" does not exist|permission denied for database|pg_hba\.conf'),
    frozenset(('42P01', '42703')))
_SQLITE_LACKS = re.compile(r'no such (table|column)|table \S+ has no column')


def _mysql_code(original: BaseException) -> int | None:
    code = original.args[0] if original.args else None
    return code if isinstance(code, int) else None


def _sqlstate(original: BaseException) -> str | None:
    return getattr(original, 'pgcode', None)


def is_duplicate(error: BaseException) -> bool:
    """Whether a unique constraint refused the row (and not a foreign key or NOT NULL)."""
    if not isinstance(error, exc.IntegrityError) or error.orig is None:
        return False
    return (_mysql_code(error.orig) == 1062 or _sqlstate(error.orig) == '23505'
            or str(error.orig).startswith('UNIQUE constraint failed'))


def timed_out(original: BaseException | None) -> bool:
    """Whether it is a driver's error (``orig`` of SQLAlchemy's) that ended the waiting for a server's answer."""
    # Our psycopg2 connections raise it from a TimeoutError, PyMySQL while it handles the socket's.
    if original is None:
        return False
    return isinstance(original.__cause__, TimeoutError) or (
        _mysql_code(original) in _MYSQL_LOST and isinstance(original.__context__, TimeoutError))


def is_retriable(error: BaseException) -> bool:
    """Whether the same transaction may succeed at once: deadlock, lock wait timeout, broken connection. A server that
    left its client waiting will do so again."""
    if not isinstance(error, exc.DBAPIError) or error.orig is None or timed_out(error.orig):
        return False
    return (error.connection_invalidated or _mysql_code(error.orig) in _MYSQL_AGAIN
            or _sqlstate(error.orig) in _POSTGRESQL_AGAIN)


def is_unreachable(error: BaseException) -> bool:
    """Whether the database didn't answer: silence (operations.md §16), not an outcome.

    True for refused and lost connections, servers that start, stop or have no connection left, an exhausted
    pool, a statement or a lock that took longer than it may, and a SQLite file that stayed locked for the whole busy
    timeout.
    """
    if isinstance(error, exc.TimeoutError):
        return True
    if not isinstance(error, exc.DBAPIError) or error.orig is None:
        return False
    if error.connection_invalidated:
        return True
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return str(original).lower().startswith(_SQLITE_SILENT)
    if _mysql_code(original) in _MYSQL_SILENT:
        return True
    state = _sqlstate(original)
    if state is None:
        # psycopg2 knows no SQLSTATE for a connection that never came about.
        return _is_of_postgresql(original) and isinstance(error, exc.OperationalError)
    return state.startswith(_POSTGRESQL_SILENT)


def note_database(context: ExceptionContext, database: object) -> None:
    """Note in the error of a statement or a connection which database it is of."""
    if context.sqlalchemy_exception is not None:
        setattr(context.sqlalchemy_exception, _DATABASE, database)


def database_of(error: exc.SQLAlchemyError) -> Any:
    """Return the ``engine.Database`` that failed with this error, or None if it is not known."""
    return getattr(error, _DATABASE, None)


def is_missing(error: exc.SQLAlchemyError) -> bool:
    """Return whether the server answered that the database of the URL does not exist."""
    original = getattr(error, 'orig', None)
    return original is not None and (_mysql_code(original) in _MYSQL_MISSING or (
        _is_of_postgresql(original) and _POSTGRESQL_MISSING.search(str(original)) is not None))


def is_refused(error: exc.SQLAlchemyError) -> bool:
    """Return whether the server answered that the account of the URL may not use the database."""
    original = getattr(error, 'orig', None)
    return original is not None and (_mysql_code(original) in _MYSQL_REFUSED or (
        _is_of_postgresql(original) and _POSTGRESQL_REFUSED.search(str(original)) is not None))


def lacks_tables(error: exc.SQLAlchemyError) -> bool:
    """Return whether a statement failed because a table or a column is not there."""
    original = getattr(error, 'orig', None)
    return original is not None and (
        _mysql_code(original) in _MYSQL_LACKS or _sqlstate(original) in _POSTGRESQL_LACKS
        or (isinstance(original, sqlite3.Error) and _SQLITE_LACKS.search(str(original)) is not None))


def _is_of_postgresql(original: BaseException) -> bool:
    return type(original).__module__.startswith('psycopg2')


def pause(number: int) -> float:
    """The wait in seconds after the attempt of this number (from 0): doubling from 10 ms to 1 s, spread."""
    longest: float = min(0.01 * 2 ** min(number, 10), 1.0)
    return longest * random.uniform(0.5, 1.5)


def before_repeating(function: Callable[..., object], number: int, error: exc.DBAPIError) -> None:
    """``function`` ended with an error that ``is_retriable``: wait before it is called again."""
    LOG.debug('%s is tried again: %s', getattr(function, '__name__', function), error.orig)
    if error.connection_invalidated:
        REPEATED.set(True)
    time.sleep(pause(number))


def repeated() -> bool:
    """Whether the function that asks is called again by ``engine.retried`` after a connection was lost: what it did may
    have been committed, and only the answer lost."""
    return REPEATED.get()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """A database that can't be reached is silence (Unanswered), not a failure."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, KilonovaError) and is_unreachable(error):
            raise Unanswered(who='the database', reason=str(error)) from error
        raise
