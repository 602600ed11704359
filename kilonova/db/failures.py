"""Classify database errors: a violated unique key, an error to retry, or a database that does not answer.

    try:
        rows = operation_leases.take(database, uuids, owner)
    except Exception as error:
        if is_unreachable(error): ...           # no answer: the row stays unchanged, and its operation goes on later

The codes are from "Server Error Message Reference" of MySQL and MariaDB, appendix A (SQLSTATE) of PostgreSQL, and
sqlite.org/rescode.html.
"""

from __future__ import annotations

import contextlib
import contextvars
import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from oslo_log import log as logging
from sqlalchemy import exc
from sqlalchemy.engine import ExceptionContext

from kilonova.errors import KilonovaError, Unanswered

LOG = logging.getLogger(__name__)

# True if the present call repeats a function because a connection was lost (see ``engine.retried``).
REPEATED: contextvars.ContextVar[bool] = contextvars.ContextVar('repeated', default=False)

# The name of the attribute by which an error refers to its database.
_DATABASE = 'kilonova_database'
# Errors to retry: 1020 (MariaDB's snapshot isolation), 1205 (lock wait timeout), 1213 (deadlock, Galera conflict).
_MYSQL_AGAIN = frozenset((1020, 1205, 1213))
# MySQL's errors for "no answer": statement too long (1969, 3024), connection lost (20xx), shutdown and others.
_MYSQL_SILENT = frozenset(
    (
        1040,
        1042,
        1043,
        1047,
        1053,
        1077,
        1152,
        1158,
        1159,
        1160,
        1161,
        1203,
        1205,
        1226,
        1927,
        1969,
        2002,
        2003,
        2005,
        2006,
        2013,
        2014,
        2045,
        2055,
        3024,
        4031,
    )
)
# PyMySQL's codes for an error of the socket while it writes (2006) and while it reads (2013).
_MYSQL_LOST = frozenset((2006, 2013))
_POSTGRESQL_AGAIN = frozenset(('40001', '40P01', '55P03'))
# SQLSTATEs, or their beginnings, of the errors that mean that PostgreSQL gives no answer.
# 08 means that the connection was lost, 53300 that no connection is left, and 57P that the server is shut down.
# 57014 means that a statement took too long, 55P03 a wait for a lock, and 25P03 an idle transaction.
_POSTGRESQL_SILENT = ('08', '25P03', '53300', '55P03', '57014', '57P')
_SQLITE_SILENT = ('database is locked', 'unable to open database file', 'disk i/o error', 'interrupted')


# MySQL's error codes for a missing database, for a refused account, and for a missing table or column.
_MYSQL_MISSING, _MYSQL_REFUSED, _MYSQL_LACKS = (
    frozenset((1049,)),
    frozenset((1044, 1045, 1698)),
    frozenset((1054, 1146)),
)
# PostgreSQL's errors for a missing database, for a refused account, and for a missing table or column.
# A missing database and a refused account are recognized by the error's text.
# psycopg2 has no SQLSTATE for errors that occur when a connection is opened.
_POSTGRESQL_MISSING, _POSTGRESQL_REFUSED, _POSTGRESQL_LACKS = (
    re.compile(r'database "[^"]*" does not exist'),
    re.compile(r'authentication failed|role "[^"]*" does not exist|permission denied for database|pg_hba\.conf'),
    frozenset(('42P01', '42703')),
)
_SQLITE_LACKS = re.compile(r'no such (table|column)|table \S+ has no column')


def _mysql_code(original: BaseException) -> int | None:
    code = original.args[0] if original.args else None
    return code if isinstance(code, int) else None


def _sqlstate(original: BaseException) -> str | None:
    return getattr(original, 'pgcode', None)


def is_duplicate(error: BaseException) -> bool:
    """Return whether a unique constraint was violated. Other constraints (foreign key, NOT NULL) don't count."""
    if not isinstance(error, exc.IntegrityError) or error.orig is None:
        return False
    return (
        _mysql_code(error.orig) == 1062
        or _sqlstate(error.orig) == '23505'
        or str(error.orig).startswith('UNIQUE constraint failed')
    )


def timed_out(original: BaseException | None) -> bool:
    """Return whether a driver's error means that the server did not answer in time.

    ``original`` is the attribute ``orig`` of SQLAlchemy's error.
    """
    # ``db.timeouts`` raises psycopg2's OperationalError after a timeout, with a TimeoutError as ``__cause__``.
    # PyMySQL's error after a timeout of the socket has the TimeoutError as ``__context__``.
    if original is None:
        return False
    return isinstance(original.__cause__, TimeoutError) or (
        _mysql_code(original) in _MYSQL_LOST and isinstance(original.__context__, TimeoutError)
    )


def is_retriable(error: BaseException) -> bool:
    """Return whether the same transaction may succeed if it is repeated at once.

    The result is True for a deadlock, a lock wait timeout and a broken connection. It is False if the server did not
    answer in time, because a second attempt would have to wait as long.
    """
    if not isinstance(error, exc.DBAPIError) or error.orig is None or timed_out(error.orig):
        return False
    return (
        error.connection_invalidated
        or _mysql_code(error.orig) in _MYSQL_AGAIN
        or _sqlstate(error.orig) in _POSTGRESQL_AGAIN
    )


def is_unreachable(error: BaseException) -> bool:
    """Return whether the error means that the database didn't answer. Then the statement's result is unknown.

    See rule 16 of operations.md. The result is True in these cases:

    - A connection was refused or lost.
    - The server is starting or stopping, or has no connection left.
    - The connection pool is exhausted.
    - A statement or a lock took longer than allowed.
    - A SQLite file stayed locked for SQLITE_BUSY seconds.
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
        # psycopg2's errors have no SQLSTATE if no connection was established.
        # Each OperationalError of psycopg2 without a SQLSTATE counts as "no answer".
        return _is_of_postgresql(original) and isinstance(error, exc.OperationalError)
    return state.startswith(_POSTGRESQL_SILENT)


def note_database(context: ExceptionContext, database: object) -> None:
    """Store the database in the error of a statement or a connection. ``database_of`` reads it."""
    if context.sqlalchemy_exception is not None:
        setattr(context.sqlalchemy_exception, _DATABASE, database)


def database_of(error: exc.SQLAlchemyError) -> Any:
    """Return the database whose statement or connection failed with this error, or None if it is unknown."""
    return getattr(error, _DATABASE, None)


def is_missing(error: exc.SQLAlchemyError) -> bool:
    """Return whether the server answered that the database named in the URL does not exist."""
    original = getattr(error, 'orig', None)
    return original is not None and (
        _mysql_code(original) in _MYSQL_MISSING
        or (_is_of_postgresql(original) and _POSTGRESQL_MISSING.search(str(original)) is not None)
    )


def is_refused(error: exc.SQLAlchemyError) -> bool:
    """Return whether the server answered that the account named in the URL may not use the database."""
    original = getattr(error, 'orig', None)
    return original is not None and (
        _mysql_code(original) in _MYSQL_REFUSED
        or (_is_of_postgresql(original) and _POSTGRESQL_REFUSED.search(str(original)) is not None)
    )


def lacks_tables(error: exc.SQLAlchemyError) -> bool:
    """Return whether a statement failed because a table or a column does not exist."""
    original = getattr(error, 'orig', None)
    return original is not None and (
        _mysql_code(original) in _MYSQL_LACKS
        or _sqlstate(original) in _POSTGRESQL_LACKS
        or (isinstance(original, sqlite3.Error) and _SQLITE_LACKS.search(str(original)) is not None)
    )


def _is_of_postgresql(original: BaseException) -> bool:
    return type(original).__module__.startswith('psycopg2')


def pause(number: int) -> float:
    """Return the seconds to wait after the failed attempt ``number`` (counted from 0).

    The wait doubles from 10 ms to 1 s, multiplied by a random factor from 0.5 to 1.5.
    """
    longest: float = min(0.01 * 2 ** min(number, 10), 1.0)
    return longest * random.uniform(0.5, 1.5)


def before_repeating(function: Callable[..., object], number: int, error: exc.DBAPIError) -> None:
    """Wait before ``function`` is called again after a retriable error.

    If ``error`` says that the connection was lost, ``repeated()`` returns True while ``function`` runs again.
    """
    LOG.debug('Retrying %s after a database error: %s', getattr(function, '__name__', function), error.orig)
    if error.connection_invalidated:
        REPEATED.set(True)
    time.sleep(pause(number))


def repeated() -> bool:
    """Return whether ``engine.retried`` calls the present function again because a connection was lost.

    If True, the previous call may have been committed, and only the database's answer was lost.
    """
    return REPEATED.get()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """In a ``with`` block, replace the error of a database that can't be reached by Unanswered.

    Callers treat Unanswered as an unknown result, not as a failure.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, KilonovaError) and is_unreachable(error):
            raise Unanswered(who='the database', reason=str(error)) from error
        raise
