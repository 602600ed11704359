"""Databases and their transactions.

    databases = configure(conf)                 # [api_database] and [database]
    with databases.api().write() as connection:
        connection.execute(insert(table).values(...))   # committed at the end, rolled back by an exception

On SQLite, a write transaction takes the write lock when it begins. So no other writer can change a row between the
moment when the transaction reads it and the moment when it writes. A read transaction refuses to write. Connections are
SQLAlchemy Core connections. There are no ORM sessions, hence no lazy loads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import event, exc, pool
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from kilonova import errors
from kilonova.db import access, expressions, failures, timeouts
from kilonova.db.clock import db_age, db_now, db_utcnow
from kilonova.db.failures import is_duplicate, is_retriable, is_unreachable, repeated, silence

__all__ = [
    'Connection',
    'Database',
    'Databases',
    'NotConfigured',
    'PoolOptions',
    'after_commit',
    'api',
    'configure',
    'db_age',
    'db_now',
    'db_utcnow',
    'install',
    'is_duplicate',
    'is_retriable',
    'is_unreachable',
    'listen',
    'main',
    'now',
    'open',
    'repeated',
    'retried',
    'silence',
]

P = ParamSpec('P')
R = TypeVar('R')
# The type of the connection that ``Database.read`` and ``Database.write`` yield.
Connection = sa.Connection
Listener = Callable[[str, str, bool], None]

# Seconds that a writer waits for SQLite's lock. If it does not get the lock, the database counts as not answering.
SQLITE_BUSY = 10.0
_WRITES = 'kilonova_writes'
# ``info[_AFTER]`` of a connection is the list of functions that ``after_commit`` got, to be called after the commit.
_AFTER = 'kilonova_after_commit'
# Statements with these first words are not passed to the functions that were given to ``listen``.
_UNCOUNTED = ('BEGIN', 'COMMIT', 'ROLLBACK', 'PRAGMA', 'SAVEPOINT', 'RELEASE')


class NotConfigured(errors.Unavailable):
    """The database has no URL in the configuration."""

    msg_fmt = 'No database is configured: [%(group)s]connection is empty.'


@dataclass(frozen=True)
class PoolOptions:
    """Settings of one configuration section for the connection pool and the sessions. Times are in seconds."""

    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout: int = 10
    statement_timeout: float = 10
    connection_recycle_time: int = 3600
    max_retries: int = 10
    mysql_sql_mode: str = 'TRADITIONAL'

    @classmethod
    def of(cls, group: cfg.ConfigOpts.GroupAttr) -> PoolOptions:
        """Return the settings of a configuration section."""
        return cls(**{name: group[name] for name in cls.__dataclass_fields__})


class Database:
    """One database, with its connection pool and its transactions.

    ``name`` is 'api', 'main', 'cell0' or the name of a cell. Functions that were given to ``listen`` receive this name.
    ``cell`` is the cell mapping (``queries.cells.CellRecord``) if this is a cell's database, else None. ``all_adopted``
    is True if no host of the cell runs nova-compute, False if a host runs it, and None if this is not known yet
    (``queries.adoption``).
    """

    def __init__(self, url: str, name: str, options: PoolOptions | None = None) -> None:
        access.check()
        self.url = url
        self.name = name
        self.cell: Any = None
        self.all_adopted: bool | None = None
        self.options = options or PoolOptions()
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
        self.dialect = 'mysql' if backend == 'mariadb' else backend
        self._driver = parsed.get_driver_name()
        self._memory = self.dialect == 'sqlite' and parsed.database in (None, '', ':memory:')
        # Errors are logged, so their text must not contain parameters of statements (passwords in URLs, user data).
        self._engine = sa.create_engine(parsed, hide_parameters=True, **self._engine_arguments())
        self._writer = self._engine.execution_options(**{_WRITES: True})
        self._writing: set[int] = set()
        self._inherited: list[pool.Pool] = []
        self._lock = threading.Lock() if self.dialect == 'sqlite' else None
        self._listen()
        _databases_of_process.add(self)

    def __repr__(self) -> str:
        return f'<Database {self.name}: {self._engine.url.render_as_string(hide_password=True)}>'

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads.

        On SQLite, all statements of the transaction see one snapshot of the database. MySQL and PostgreSQL use READ
        COMMITTED, so each statement sees the rows that are committed when the statement starts.
        """
        with self._turn() if self._memory else contextlib.nullcontext(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Open a transaction that is committed at the end of the block, and rolled back by an exception.

        A nested call raises RuntimeError, because a second connection would wait for ever for the locks of the first
        one.
        """
        with self._turn(), self._writer.begin() as connection:
            connection.info.pop(_AFTER, None)
            yield connection
            acts = connection.info.pop(_AFTER, ())
        for act in acts:
            act(self)

    def dispose(self) -> None:
        """Close the pooled connections. The database can be used again afterwards."""
        self._engine.dispose()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        me = threading.get_ident()
        if me in self._writing:
            raise RuntimeError(f'a write transaction on {self!r} cannot be nested')
        # Wait in Python: a wait inside SQLite would stop all green threads, also the one that must release the lock.
        if self._lock is not None and not self._lock.acquire(timeout=SQLITE_BUSY):
            raise _locked()
        self._writing.add(me)
        try:
            yield
        finally:
            self._writing.discard(me)
            if self._lock is not None:
                self._lock.release()

    def _engine_arguments(self) -> dict[str, Any]:
        if self._memory:
            return {'poolclass': pool.StaticPool, 'connect_args': {'check_same_thread': False}}
        arguments: dict[str, Any] = {
            'poolclass': pool.QueuePool,
            'pool_size': self.options.max_pool_size,
            'max_overflow': self.options.max_overflow,
            'pool_timeout': self.options.pool_timeout,
            'pool_recycle': self.options.connection_recycle_time,
        }
        if self.dialect == 'sqlite':
            arguments['connect_args'] = {'check_same_thread': False, 'timeout': SQLITE_BUSY}
            return arguments
        connect = timeouts.arguments(self.dialect, self._driver, self.options.statement_timeout)
        if self.dialect == 'mysql' and self.options.mysql_sql_mode:
            connect['sql_mode'] = self.options.mysql_sql_mode
        # With READ COMMITTED, a compare-and-swap sees the newest row, and MySQL takes no gap locks.
        return {**arguments, 'connect_args': connect, 'pool_pre_ping': True, 'isolation_level': 'READ COMMITTED'}

    def _listen(self) -> None:
        if self.dialect == 'sqlite':
            event.listen(self._engine, 'do_connect', _create_sqlite)
            event.listen(self._engine, 'connect', _prepare_sqlite)
            event.listen(self._engine, 'begin', _begin_sqlite)
        elif self.dialect == 'postgresql':
            event.listen(self._engine, 'connect', self._prepare_postgresql)
        event.listen(self._engine, 'handle_error', _judge_ping)
        event.listen(self._engine, 'handle_error', lambda context: failures.note_database(context, self))
        event.listen(self._engine, 'before_cursor_execute', self._before_statement)
        event.listen(self._engine, 'commit', self._before_commit)

    def _before_statement(
        self,
        connection: sa.Connection,
        cursor: DBAPICursor,
        statement: str,
        parameters: object,
        context: DefaultExecutionContext | None,
        executemany: bool,
    ) -> None:
        if (
            context is not None
            and (context.isinsert or context.isupdate or context.isdelete)
            and _WRITES not in connection.get_execution_options()
        ):
            raise RuntimeError(f'a read transaction on {self!r} must not write: {statement}')
        if self.dialect == 'sqlite' and self.options.statement_timeout:
            connection.info[timeouts.UNTIL] = time.monotonic() + self.options.statement_timeout
        if _listeners and not statement.startswith(_UNCOUNTED):
            for callback in tuple(_listeners):
                callback(self.name, statement, executemany)

    def _prepare_postgresql(self, connection: DBAPIConnection, _record: pool.ConnectionPoolEntry) -> None:
        with contextlib.closing(connection.cursor()) as cursor:
            timeouts.tell_postgresql(cursor, self.options.statement_timeout)
        connection.commit()

    def _before_commit(self, connection: sa.Connection) -> None:
        for callback in tuple(_listeners):
            callback(self.name, 'COMMIT', False)

    def after_fork(self) -> None:
        """Forget the connections that this process inherited by a fork, but leave them open for the parent process."""
        # Keep the pool, because a child process must never close its parent's SQLite connections.
        # See "How To Corrupt An SQLite Database File", section 2.6, about SQLite connections that a fork copies.
        self._inherited.append(self._engine.pool)
        self._engine.dispose(close=False)


def after_commit(connection: sa.Connection, act: Callable[[Database], None]) -> None:
    """Call ``act(database)`` after the commit of this connection's write transaction.

    ``act`` is not called after a rollback, and must not raise an exception.
    """
    connection.info.setdefault(_AFTER, []).append(act)


def _locked() -> exc.OperationalError:
    return exc.OperationalError('BEGIN IMMEDIATE', None, sqlite3.OperationalError('database is locked'))


def _create_sqlite(
    _dialect: sa.Dialect, _record: pool.ConnectionPoolEntry, arguments: Sequence[Any], _keywords: dict[str, Any]
) -> None:
    """Create a missing database file that only its owner can access.

    SQLite gives the -wal and -shm files the same mode as the database file.
    """
    path = str(arguments[0])
    if path not in ('', ':memory:') and not path.startswith('file:'):
        # O_EXCL never opens an existing file, because closing the file would release this process's locks on it.
        # See "How To Corrupt An SQLite Database File", section 2.2, about locks that are lost when a file is closed.
        # An OSError because of an invalid path is ignored: SQLite reports the path later with a clear message.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _prepare_sqlite(connection: sqlite3.Connection, record: pool.ConnectionPoolEntry) -> None:
    # Let ``_begin_sqlite`` begin each transaction. The driver would not begin a transaction before its first write.
    connection.isolation_level = None
    connection.execute(f'PRAGMA busy_timeout = {int(SQLITE_BUSY * 1000)}')
    if connection.execute('PRAGMA journal_mode').fetchone()[0] not in ('wal', 'memory'):
        connection.execute('PRAGMA journal_mode = WAL')
    connection.execute('PRAGMA synchronous = NORMAL')
    connection.execute('PRAGMA foreign_keys = ON')
    # Replace SQLAlchemy's regexp function, because it uses Python's re: some expressions would keep it busy for ever.
    connection.create_function('regexp', 2, expressions.find, deterministic=True)
    timeouts.watch_sqlite(connection, record.info)


def _judge_ping(context: sa.ExceptionContext) -> None:
    """Make SQLAlchemy raise the error if a ping (the test of a pooled connection before its use) has timed out.

    Without this, SQLAlchemy would open a new connection, and wait a second time for the server. If the ping shows that
    the connection was closed, SQLAlchemy still opens a new one.
    """
    if context.is_pre_ping and failures.timed_out(context.original_exception):
        context.is_disconnect = False


def _begin_sqlite(connection: sa.Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if _WRITES not in connection.get_execution_options():
        driver.execute('BEGIN')
        return
    # Do not let SQLite wait for the lock, because this would stop all green threads. The loop below waits instead.
    driver.execute('PRAGMA busy_timeout = 0')
    deadline, pause = time.monotonic() + SQLITE_BUSY, 0.001
    try:
        while True:
            try:
                driver.execute('BEGIN IMMEDIATE')
                return
            except sqlite3.OperationalError as error:
                if 'locked' not in str(error):
                    raise
                if time.monotonic() >= deadline:
                    raise _locked() from error
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)
    finally:
        driver.execute(f'PRAGMA busy_timeout = {int(SQLITE_BUSY * 1000)}')


class Databases:
    """The API database, the main database and the databases of cells, with one ``Database`` for each URL."""

    def __init__(
        self,
        api_url: str | None,
        main_url: str | None,
        *,
        api_options: PoolOptions | None = None,
        main_options: PoolOptions | None = None,
    ) -> None:
        self.options = main_options or PoolOptions()
        self.main_url = main_url
        self._opened: dict[str, Database] = {}
        self._opening = threading.Lock()
        self._api = Database(api_url, 'api', api_options) if api_url else None
        self._main = self.open(main_url, 'main') if main_url else None

    def api(self) -> Database:
        """Return the API database. Raises NotConfigured if [api_database]connection is not set."""
        if self._api is None:
            raise NotConfigured(group='api_database')
        return self._api

    def main(self) -> Database:
        """Return the main database. Raises NotConfigured if [database]connection is not set."""
        if self._main is None:
            raise NotConfigured(group='database')
        return self._main

    def open(self, url: str, name: str | None = None) -> Database:
        """Return the database at ``url``, with the settings of [database].

        ``name`` is the name of a new Database object. If the URL is already open as the main database, its name
        changes from 'main' to ``name``.
        """
        with self._opening:
            database = self._opened.get(url)
            if database is None:
                database = Database(url, name or url.rpartition('/')[2], self.options)
                self._opened[url] = database
            elif name and database.name == 'main':
                database.name = name
            return database

    def dispose(self) -> None:
        """Close all connections."""
        with self._opening:
            opened = list(self._opened.values())
        for database in [self._api, *opened]:
            if database is not None:
                database.dispose()


_databases_of_process: weakref.WeakSet[Database] = weakref.WeakSet()
_listeners: list[Listener] = []
_installed: Databases | None = None


def configure(conf: cfg.ConfigOpts, **changed: Any) -> Databases:
    """Create the databases of this process from its options, and use them in ``api()``, ``main()`` and ``open()``.

    Connections are opened when they are first used. ``changed`` are values that override options, such as
    ``statement_timeout=0``.
    """
    api_options, main_options = (
        replace(PoolOptions.of(conf[group]), **changed) for group in ('api_database', 'database')
    )
    databases = Databases(
        conf.api_database.connection, conf.database.connection, api_options=api_options, main_options=main_options
    )
    install(databases)
    return databases


def install(databases: Databases | None) -> None:
    """Set the databases that the functions ``api``, ``main`` and ``open`` of this module use, or remove them (None)."""
    global _installed  # noqa: PLW0603 - one set of databases a process
    _installed = databases


def _current(group: str) -> Databases:
    access.check()
    if _installed is None:
        raise NotConfigured(group=group)
    return _installed


def api() -> Database:
    """Return the API database of this process."""
    return _current('api_database').api()


def main() -> Database:
    """Return the main database of this process."""
    return _current('database').main()


def open(url: str, name: str | None = None) -> Database:  # noqa: A001 - always used as engine.open
    """Return the database at ``url``. All calls with the same URL return the same object."""
    return _current('database').open(url, name)


def listen(callback: Listener) -> Callable[[], None]:
    """Call ``callback(database name, statement, executemany)`` before each statement of this process.

    Before a commit, the statement is 'COMMIT'. Other transaction control, pragmas and pings are left out. Return the
    function that removes the callback.
    """
    _listeners.append(callback)
    return functools.partial(_listeners.remove, callback)


def now(connection: sa.Connection) -> float:
    """Return the time by the database's clock, in epoch seconds. Runs one SQL statement."""
    return connection.execute(sa.select(db_now())).scalar_one()


def retried(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that it is called again after a deadlock or a lost connection.

        @retried
        def accept(database: Database, row: dict) -> None:
            with database.write() as connection: ...

    The function must open its own transaction. It must be safe to call it again even if the first call was committed
    and only the database's answer was lost. If this may have happened, ``failures.repeated()`` returns True.

    The function is called again at most [database]max_retries times, and not after [database]statement_timeout has
    passed. If the database can't be reached, or did not answer in time, the error is raised at once.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        options = _installed.options if _installed else PoolOptions
        # Limit the total time, too, because each call of the function may wait long for locks in the database.
        until = time.monotonic() + options.statement_timeout if options.statement_timeout else float('inf')
        mark, number = failures.REPEATED.set(False), 0
        try:
            while True:
                try:
                    return function(*args, **kwargs)
                except exc.DBAPIError as error:
                    if number == options.max_retries or not is_retriable(error) or time.monotonic() >= until:
                        raise
                    failures.before_repeating(function, number, error)
                number += 1
        finally:
            failures.REPEATED.reset(mark)

    return wrapper


def _after_fork() -> None:
    for database in list(_databases_of_process):
        database.after_fork()


os.register_at_fork(after_in_child=_after_fork)
