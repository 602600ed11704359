"""The databases (SQLite files), Placement and Cyborg as the processes see them: each request takes time, hangs, fails,
is lost.

    stores.install(timeline, links)             # after kilonova is imported
    client = PlacementClient(stores.wire(adapter))

Whatever opens an ``engine.Database`` afterwards gets one of these. Faults: ``links``, and ``Faults`` here.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from keystoneauth1 import exceptions as ks_exceptions
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

from kilonova.db import clock as db_clock
from kilonova.db import engine
from tests.fixtures.cyborg import SERVICE
from tests.simulation import clock
from tests.simulation.links import CUT, HANG, OPEN, REFUSE, Links
from tests.simulation.timeline import Crash, Timeline

# Seconds that a client waits for a server that is cut off or hangs.
DATABASE_PATIENCE, SERVICE_PATIENCE = 30.0, 60.0
LOST = 'disk I/O error: connection lost (simulated)'


class _Dialect(SQLiteDialect_pysqlite):
    """All databases share their compiled statements, so that each is compiled once and not once a process."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dialect)

    def __hash__(self) -> int:
        return 1


_COMPILED: Any = LRUCache(5000)


class Stores:
    """Hooks of all databases of this run. ``offsets``: seconds that a database's clock is ahead, by its name.

    ``lost_commits`` is the chance that the answer of a COMMIT is lost, ``lost_answers`` that one of a service is.
    ``committed(name, statements)`` is called after each commit that wrote.
    """

    def __init__(self, timeline: Timeline, links: Links) -> None:
        self.timeline, self.links = timeline, links
        self.offsets: dict[str, float] = {}
        self.lost_commits = 0.0
        self.lost_answers: dict[str, float] = {}
        self.committed: Callable[[str, list[str]], None] = lambda name, tables: None
        self.statements = self.requests = 0

    # -- databases ----------------------------------------------------------------------------------------------------
    def install(self) -> None:
        """Databases that are opened from now on are simulated; their clock is virtual."""
        _virtual_clock()
        original, stores = engine.Database.__init__, self

        def init(database: engine.Database, *args: Any, **kwargs: Any) -> None:
            original(database, *args, **kwargs)
            stores.attach(database)

        engine.Database.__init__ = init  # type: ignore[method-assign]

    def attach(self, database: engine.Database) -> None:
        """Hook one database's engine."""
        made = database._engine
        name = database.url.rpartition(':')[2].partition('.')[0]
        dialect = made.dialect
        dialect.__class__ = _Dialect
        dialect.__dict__.pop('_supports_statement_cache', None)
        made._compiled_cache = database._writer._compiled_cache = _COMPILED
        event.listen(made, 'connect', lambda connection, _record: self._connected(connection, name))
        event.listen(made, 'do_connect', lambda *_: self._before(name, 'connect'))
        event.listen(made, 'begin', lambda connection: self._begin(connection, name), insert=True)
        execute, many = dialect.do_execute, dialect.do_executemany
        commit, rollback, is_disconnect = dialect.do_commit, dialect.do_rollback, dialect.is_disconnect
        written: dict[int, list[str]] = {}

        def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            self._before(name, statement)
            _note(written, cursor, statement)
            execute(cursor, statement, parameters, context)

        def do_executemany(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
            self._before(name, statement)
            _note(written, cursor, statement)
            many(cursor, statement, parameters, context)

        def do_commit(connection: Any) -> None:
            tables = written.pop(id(connection.driver_connection), [])
            try:
                self._before(name, 'COMMIT')
                commit(connection)
                if tables:
                    self.timeline.tell(f'{name}: COMMIT {" ".join(dict.fromkeys(tables))}')
            finally:
                self.timeline.current().writing = False
            if tables:
                self.committed(name, tables)
                if self.lost_commits and self.timeline.random().random() < self.lost_commits:
                    self.timeline.tell(f'{name}: the answer of the COMMIT is lost')
                    raise sqlite3.OperationalError(LOST)
                self.timeline.step()

        def do_rollback(connection: Any) -> None:
            written.pop(id(connection.driver_connection), None)
            self.timeline.current().writing = False
            rollback(connection)

        dialect.do_execute, dialect.do_executemany = do_execute, do_executemany
        dialect.do_commit, dialect.do_rollback = do_commit, do_rollback
        dialect.is_disconnect = lambda error, connection, cursor: (
            LOST in str(error) or is_disconnect(error, connection, cursor)
        )

    def _connected(self, connection: sqlite3.Connection, name: str) -> None:
        def now() -> float:
            return clock.EPOCH + self.timeline.now + self.offsets.get(name, 0.0)

        def utcnow() -> str:
            return datetime.datetime.fromtimestamp(now(), datetime.UTC).strftime('%Y-%m-%d %H:%M:%S.%f')

        connection.create_function('sim_now', 0, now)
        connection.create_function('sim_utcnow', 0, utcnow)

    def _begin(self, connection: sa.Connection, name: str) -> None:
        sim = self.timeline.current()
        try:
            self._before(name, 'BEGIN')
        except sqlite3.OperationalError:
            # SQLAlchemy takes what goes wrong here for an error of ours: the first statement fails in its place.
            sim.broken = True
        if 'kilonova_writes' in connection.get_execution_options():
            sim.writing = True

    def _before(self, name: str, what: str) -> None:
        sim = self.timeline.current()
        process = sim.process
        if process.dead:
            raise Crash
        if sim.broken:
            sim.broken = False
            raise sqlite3.OperationalError(LOST)
        if what == 'connect':
            if self.links.state(process.name, name) == REFUSE:
                raise sqlite3.OperationalError('unable to open database file')
            return
        if self.links.state(process.name, name) != OPEN:
            self.timeline.tell(f'{name} does not answer: {what[:60]}')
            # Who waits with SQLite's write lock stops everybody.
            patience = 0.0 if sim.writing else DATABASE_PATIENCE
            if self.links.reach(process.name, name, patience) != OPEN:
                raise sqlite3.OperationalError(LOST)
        self.statements += 1
        self.timeline.step(0.5 if what == 'BEGIN' else 1.0)

    # -- Placement and Cyborg -----------------------------------------------------------------------------------------
    def wire(self, adapter: Any, party: str = 'placement') -> Wire:
        """An adapter of a service as the running process reaches it."""
        return Wire(self, adapter, party)


def _note(written: dict[int, list[str]], cursor: Any, statement: str) -> None:
    words = statement.split(None, 3)
    verb = words[0].upper()
    if verb in ('INSERT', 'UPDATE', 'DELETE'):
        table = words[2] if verb != 'UPDATE' else words[1]
        written.setdefault(id(cursor.connection), []).append(f'{verb.lower()}:{table.strip("(")}')


def _virtual_clock() -> None:
    for element, texts, text in (
        (db_clock.db_now, db_clock.NOW, 'sim_now()'),
        (db_clock.db_utcnow, db_clock.UTCNOW, 'sim_utcnow()'),
        (db_clock.db_age, db_clock.AGE, '(sim_now() - (julianday({time}) - 2440587.5) * 86400.0)'),
    ):
        db_clock._register(element, {**texts, 'sqlite': text})


class Wire:
    """What stands where keystoneauth1's Adapter stands. ``party``: the service."""

    def __init__(self, stores: Stores, adapter: Any, party: str) -> None:
        self._stores, self._adapter, self._party, self._who = stores, adapter, party, party.capitalize()
        self.session = adapter.session

    def get_endpoint(self) -> str:
        """Where the service is."""
        return f'http://{self._party}.test'

    def get_project_id(self) -> str:
        """Of the account that asks."""
        return SERVICE

    def request(self, path: str, method: str, **kwargs: Any) -> Any:
        """One request, whose answer may be lost."""
        stores, timeline, party, who = self._stores, self._stores.timeline, self._party, self._who
        process = timeline.current().process
        stores.requests += 1
        timeline.step(2.0)
        state = stores.links.state(process.name, party)
        if state != OPEN:
            timeline.tell(f'{who} does not answer: {method} {path[:60]}')
        if state in (CUT, HANG):
            state = stores.links.reach(process.name, party, SERVICE_PATIENCE)
        if state != OPEN:
            raise ks_exceptions.ConnectFailure(f'Unable to establish connection to {party} ({state})')
        response = self._adapter.request(path, method, **kwargs)
        if method != 'GET':
            timeline.tell(f'{who}: {method} {path[:60]} -> {response.status_code}')
        if (chance := stores.lost_answers.get(party)) and timeline.random().random() < chance:
            timeline.tell(f'{who}: the answer of {method} {path[:60]} is lost')
            timeline.step(10.0)
            raise ks_exceptions.ConnectFailure(f'the answer of {who} is lost')
        timeline.step(2.0)
        if stores.links.state(process.name, party) == CUT:
            timeline.step(10.0)
            raise ks_exceptions.ConnectFailure(f'the answer of {who} is lost')
        return response
