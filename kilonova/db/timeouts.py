"""Limits of the time that a statement may take, as settings of the database servers and their drivers.

    connect_args = timeouts.arguments('mysql', 'pymysql', 10.0)       # for sa.create_engine
    timeouts.tell_postgresql(cursor, 10.0)                            # for each new session

First the server ends a statement that takes longer than the limit, and releases the statement's locks. A server that
hangs (a frozen machine, a stopped process, a lost address) can't do this, so the client closes the connection a little
later. ``limit`` is in seconds, and 0 means no limit.

A client that hangs inside a transaction keeps its locks. Then no conductor could take over its operations. So
PostgreSQL and MariaDB servers also end a transaction that is idle for the time of the limit. MySQL has no such setting.
"""

from __future__ import annotations

import select
import sqlite3
import time
from typing import Any

from sqlalchemy.engine.interfaces import DBAPICursor

# The client waits for the limit and this many seconds more, so that the server can report the timeout first.
GRACE = 1.0
# The maximum time in seconds to open a connection.
CONNECT_TIMEOUT = 10.0
# TCP keepalives (in seconds) close a connection whose database server has disappeared without closing it.
_KEEPALIVES = {'keepalives': 1, 'keepalives_idle': 30, 'keepalives_interval': 10, 'keepalives_count': 3}
# SQLite checks the time limit of a statement after this many of its internal instructions (a few milliseconds).
_STEPS = 100_000
# ``info[UNTIL]`` of a SQLite connection is the deadline (time.monotonic) of the running statement.
UNTIL = 'kilonova_until'


def arguments(dialect: str, driver: str, limit: float) -> dict[str, Any]:
    """Return the driver's arguments for connections to a MySQL, MariaDB or PostgreSQL server.

    A statement may take ``limit`` seconds; 0 means no limit.
    """
    connecting = min(CONNECT_TIMEOUT, limit or CONNECT_TIMEOUT)
    if dialect == 'mysql':
        waits = {'read_timeout': limit + GRACE, 'write_timeout': limit + GRACE} if limit else {}
        return {
            'connect_timeout': connecting,
            'init_command': "SET SESSION time_zone = '+00:00'" + _of_mysql(limit),
            **waits,
        }
    # Round the timeout to at least 2 seconds, because libpq takes only whole seconds, and treats 1 second as 2.
    found: dict[str, Any] = {'connect_timeout': max(2, round(connecting)), **_KEEPALIVES}
    if driver == 'psycopg2':
        found['connection_factory'] = _watched(connecting + GRACE, limit + GRACE if limit else None)
    return found


def _of_mysql(limit: float) -> str:
    """Return the settings with time limits for a SET SESSION statement of MySQL and MariaDB.

    MariaDB and MySQL (which limits only SELECTs) have different names for the settings. Each setting is in a comment
    that only the intended server executes: https://mariadb.com/kb/en/comment-syntax/.
    """
    if not limit:
        return ''
    seconds = max(1, int(limit))
    return (
        f', innodb_lock_wait_timeout = {seconds} /*M!100101 , max_statement_time = {limit} */'
        f' /*M!100300 , idle_transaction_timeout = {seconds} */'
        f' /*!50708 , max_execution_time = {int(limit * 1000)} */'
    )


def tell_postgresql(cursor: DBAPICursor, limit: float) -> None:
    """Set the limits of a PostgreSQL session by a statement, because connection poolers refuse start-up options."""
    # Turn jit off, because PostgreSQL compiles even short queries on tables without statistics, which takes 0.45 s.
    # Set only settings that pg_settings lists, because some PostgreSQL servers do not have the setting jit.
    cursor.execute(
        "SELECT set_config(name, CASE name WHEN 'jit' THEN 'off' ELSE %s END, false) "
        "FROM pg_settings WHERE name IN ('jit', 'statement_timeout', 'idle_in_transaction_session_timeout')",
        (str(int(limit * 1000)),),
    )


def _watched(connecting: float, running: float | None) -> type:
    """Return a psycopg2 connection class that raises OperationalError if the server does not answer in time.

    ``connecting`` limits the opening of a connection and ``running`` each statement, in seconds (None: no limit).
    psycopg2 alone has no such limits. So this function also installs ``_wait`` as the wait callback of all psycopg2
    connections of the process. Connections of other classes have no limit.
    """
    from psycopg2 import extensions

    extensions.set_wait_callback(_wait)

    class Watched(extensions.connection):  # type: ignore[misc]  # psycopg2 has no type hints
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.patience: float | None = connecting
            super().__init__(*args, **kwargs)
            self.patience = running

    return Watched


def _wait(connection: Any) -> None:
    """Wait for the server's answer. psycopg2 calls this for each statement, and other green threads run meanwhile."""
    from psycopg2 import OperationalError, extensions

    patience = getattr(connection, 'patience', None)
    deadline = None if patience is None else time.monotonic() + patience
    while (state := connection.poll()) != extensions.POLL_OK:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not _ready(connection.fileno(), state == extensions.POLL_WRITE, left):
            # psycopg2 closes the connection after an OperationalError, so that no later statement gets the late answer.
            raise OperationalError(f'no answer within {patience:g} s') from TimeoutError()


def _ready(descriptor: int, writing: bool, seconds: float | None) -> bool:
    """Return whether the descriptor can be read (or written) within ``seconds``.

    select() works only for descriptors below 1024, so poll() is used if it exists. eventlet removes poll() and replaces
    select() by a function that works for all descriptors.
    """
    if hasattr(select, 'poll'):
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    wanted = [descriptor]
    return any(select.select([] if writing else wanted, wanted if writing else [], [], seconds))


def watch_sqlite(connection: sqlite3.Connection, info: dict[Any, Any]) -> None:
    """Interrupt a statement that still runs at the time ``info[UNTIL]``, which is a time of the monotonic clock."""

    def late() -> bool:
        return bool(time.monotonic() > info.get(UNTIL, float('inf')))

    connection.set_progress_handler(late, _STEPS)
