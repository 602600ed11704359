"""How long a statement may take: what the servers and the drivers are told.

    connect_args = timeouts.arguments('mysql', 'pymysql', 10.0)       # for sa.create_engine
    timeouts.tell_postgresql(cursor, 10.0)                            # for each new session

The server is told first: it then ends the statement itself and frees its locks. A server that stands still (a frozen
machine, a stopped process, a lost address) ends nothing, so the client waits a moment longer than that and then breaks
the connection. ``limit`` is in seconds, 0: none.

A client that stands still inside a transaction keeps its locks, and nobody could take over its operations: the server
ends a transaction in which nothing happens for that long, too. MySQL has no setting for that.
"""
from __future__ import annotations

import select
import sqlite3
import time
from typing import Any

from sqlalchemy.engine.interfaces import DBAPICursor

# Seconds that the client gives the server to say itself that a statement took too long.
GRACE = 1.0
# Seconds that a new connection may take, at most.
CONNECT_TIMEOUT = 10.0
# A silent peer is asked for a sign of life after 30 s, then each 10 s: this ends a connection without a limit when the
# other machine is gone.
_KEEPALIVES = {'keepalives': 1, 'keepalives_idle': 30, 'keepalives_interval': 10, 'keepalives_count': 3}
# Steps of SQLite's machine between two looks at the clock: some milliseconds.
_STEPS = 100_000
# Until when the present statement of a SQLite connection may run, in its info.
UNTIL = 'kilonova_until'


def arguments(dialect: str, driver: str, limit: float) -> dict[str, Any]:
    """What the driver is given for each connection to a MySQL, MariaDB or PostgreSQL server."""
    connecting = min(CONNECT_TIMEOUT, limit or CONNECT_TIMEOUT)
    if dialect == 'mysql':
        waits = {'read_timeout': limit + GRACE, 'write_timeout': limit + GRACE} if limit else {}
        return {'connect_timeout': connecting, 'init_command': "SET SESSION time_zone = '+00:00'" + _of_mysql(limit),
                **waits}
    # libpq counts whole seconds, and takes one for two.
    found: dict[str, Any] = {'connect_timeout': max(2, round(connecting)), **_KEEPALIVES}
    if driver == 'psycopg2':
        found['connection_factory'] = _watched(connecting + GRACE, limit + GRACE if limit else None)
    return found


def _of_mysql(limit: float) -> str:
    """The rest of SET SESSION. MariaDB and MySQL (which limits SELECTs only) have names of their own for it, and each
    reads a comment that the other skips: https://mariadb.com/kb/en/comment-syntax/."""
    if not limit:
        return ''
    seconds = max(1, int(limit))
    return (f', innodb_lock_wait_timeout = {seconds} /*M!100101 , max_statement_time = {limit} */'
            f' /*M!100300 , idle_transaction_timeout = {seconds} */'
            f' /*!50708 , max_execution_time = {int(limit * 1000)} */')


def tell_postgresql(cursor: DBAPICursor, limit: float) -> None:
    """Settings of a session. As a statement: poolers in between refuse start-up options."""
    # jit: the planner takes tables that it has no statistics of for large and compiles each statement with many
    # columns: 0.45 s of a list of servers whose rows take 5 ms. Servers that were built without it don't know it.
    cursor.execute("SELECT set_config(name, CASE name WHEN 'jit' THEN 'off' ELSE %s END, false) "
                   "FROM pg_settings WHERE name IN ('jit', 'statement_timeout', 'idle_in_transaction_session_timeout')",
                   (str(int(limit * 1000)),))


def _watched(connecting: float, running: float | None) -> type:
    """A class of psycopg2 connections that wait no longer than this; psycopg2 itself has no limit for an answer.

    Its hook for waiting is one a process. Connections of other classes go on waiting without a limit.
    """
    from psycopg2 import extensions
    extensions.set_wait_callback(_wait)

    class Watched(extensions.connection):  # type: ignore[misc]  # psycopg2 has no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.patience: float | None = connecting
            super().__init__(*args, **kwargs)
            self.patience = running
    return Watched


def _wait(connection: Any) -> None:
    """Wait for the server's answer: psycopg2 calls this for each statement. Other green threads run meanwhile."""
    from psycopg2 import OperationalError, extensions
    patience = getattr(connection, 'patience', None)
    deadline = None if patience is None else time.monotonic() + patience
    while (state := connection.poll()) != extensions.POLL_OK:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not _ready(connection.fileno(), state == extensions.POLL_WRITE, left):
            # psycopg2 closes the connection then: nobody knows what the server will still send.
            raise OperationalError(f'no answer within {patience:g} s') from TimeoutError()


def _ready(descriptor: int, writing: bool, seconds: float | None) -> bool:
    """Whether it can be read (or written) in time. select() knows descriptors below 1024 only; eventlet's own, which
    takes its place and poll()'s, knows all."""
    if hasattr(select, 'poll'):
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT if writing else select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))
    wanted = [descriptor]
    return any(select.select([] if writing else wanted, wanted if writing else [], [], seconds))


def watch_sqlite(connection: sqlite3.Connection, info: dict[Any, Any]) -> None:
    """Interrupt statements that run on after ``info[UNTIL]`` by the monotonic clock."""
    def late() -> bool:
        return bool(time.monotonic() > info.get(UNTIL, float('inf')))
    connection.set_progress_handler(late, _STEPS)
