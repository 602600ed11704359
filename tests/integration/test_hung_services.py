"""Services that accept connections and never answer: silence, within a set time, under both backends.

Finding 1.6. Databases stand still by SIGSTOP, as in a frozen machine; their connections stay open. Nothing here
measures time: what waits without a limit doesn't end while the service stands still.
"""
from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import sqlalchemy as sa

from kilonova.db import engine
from tests.integration import database_servers
from tests.integration.database_servers import Server

BACKENDS = ('threading', 'eventlet')
# Far beyond all limits that are set here.
PATIENCE = 40
LIMIT = 1
SLEEP = {'mysql': 'SELECT SLEEP(60)', 'postgresql': 'SELECT pg_sleep(60)'}


class Script:
    """A program under one of the backends. It tells a line of JSON at a time, and waits where it calls ``stop()``."""

    START = textwrap.dedent("""
        import json, sys
        from kilonova import concurrency
        concurrency.setup(sys.argv[1])
        import threading, time

        def tell(value):
            print(json.dumps(value), flush=True)

        def stop(value):
            tell(value)
            sys.stdin.readline()

        def outcome(act):
            try:
                return act()
            except Exception as error:
                return judge(error)

        def at_once(**acts):
            found = {}
            threads = [threading.Thread(target=lambda name, act: found.update({name: outcome(act)}), args=pair)
                       for pair in acts.items()]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return found
    """)

    def __init__(self, backend: str, text: str, *arguments: Any) -> None:
        command = [sys.executable, '-W', 'ignore', '-c', self.START + textwrap.dedent(text), backend,
                   *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def go_on(self) -> None:
        """End its ``stop()``."""
        assert self._process.stdin is not None
        self._process.stdin.write('\n')
        self._process.stdin.flush()

    def told(self) -> Any:
        """What it tells next."""
        assert self._process.stdout is not None
        end = threading.Timer(PATIENCE, self._process.kill)
        end.start()
        line = self._process.stdout.readline()
        end.cancel()
        assert line, f'it waits for more than {PATIENCE} s, or ended'
        return json.loads(line)


@pytest.fixture(scope='module', params=['mariadb', 'postgresql'])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with getattr(database_servers, request.param)() as started:
        started.create('hung')
        yield started


# --- databases -------------------------------------------------------------------------------------------------------
HUNG_DATABASE = """
    from kilonova.db import engine

    url, other, limit = sys.argv[2], sys.argv[3], int(sys.argv[4])

    def opened(url, **options):
        return engine.Database(url, 'one', engine.Options(statement_timeout=limit, pool_timeout=limit, **options))

    def ask(database):
        with database.read() as connection:
            engine.now(connection)
        return 'answered'

    def judge(error):
        return 'silence' if engine.is_unreachable(error) and not engine.is_retriable(error) else repr(error)

    databases = dict(pooled=opened(url), small=opened(url, max_pool_size=1, max_overflow=0))
    engine.install(engine.Databases(None, url, main_options=databases['pooled'].options))
    calls, beats = [], []

    @engine.retried
    def repeated():
        calls.append(1)
        with engine.main().write() as connection:
            engine.now(connection)

    def full():
        # All but one find no connection free.
        return sorted(at_once(**{str(n): lambda: ask(databases['small']) for n in range(4)}).values())

    def in_the_middle():
        with databases['pooled'].write() as connection:
            engine.now(connection)
            begun.set()
            go.wait()
            engine.now(connection)

    def beat():
        healthy = opened(other)
        while True:
            beats.append(ask(healthy))
            time.sleep(0.02)

    for database in databases.values(): ask(database)
    begun, go, middle = threading.Event(), threading.Event(), []
    threading.Thread(target=lambda: middle.append(outcome(in_the_middle)), daemon=True).start()
    threading.Thread(target=beat, daemon=True).start()
    begun.wait()
    stop('ready')
    go.set()
    before = len(beats)
    found = at_once(pooled=lambda: ask(databases['pooled']), new=lambda: ask(opened(url)), full=full, repeated=repeated)
    while not middle: time.sleep(0.01)
    stop(found | dict(middle=middle[0], calls=len(calls), beats=len(beats) - before))
    tell(at_once(pooled=lambda: ask(databases['pooled']), small=lambda: ask(databases['small']),
                 main=lambda: ask(engine.main())))
"""


def test_a_database_that_stands_still(server: Server, tmp_path: Path) -> None:
    """Pooled connections, new ones, a full pool, an open transaction: all end in silence, nothing is repeated, another
    database goes on being served, and afterwards everything works again."""
    given = (HUNG_DATABASE, server.url('hung'), f'sqlite:///{tmp_path}/other.sqlite', LIMIT)
    with Script('threading', *given) as native, Script('eventlet', *given) as green:
        assert [script.told() for script in (native, green)] == ['ready', 'ready']
        server.freeze()
        try:
            for script in (native, green):
                script.go_on()
            for found in (native.told(), green.told()):
                # The other database was asked every 20 ms, for a second at least.
                assert found.pop('beats') > 10
                assert found == {'pooled': 'silence', 'new': 'silence', 'full': ['silence'] * 4, 'repeated': 'silence',
                                 'middle': 'silence', 'calls': 1}
        finally:
            server.thaw()
        for script in (native, green):
            script.go_on()
            assert script.told() == {'pooled': 'answered', 'small': 'answered', 'main': 'answered'}


@pytest.fixture
def hurried(server: Server) -> Iterator[engine.Database]:
    found = engine.Database(server.url('hung'), 'hurried', engine.Options(statement_timeout=LIMIT))
    yield found
    found.dispose()


def test_the_server_ends_a_statement_that_takes_too_long(server: Server, hurried: engine.Database) -> None:
    """Its connection is as good as before, and nothing of it goes on in the server."""
    with hurried.read() as connection:
        own = connection.connection.dbapi_connection
        with pytest.raises(sa.exc.DBAPIError) as caught:
            connection.exec_driver_sql(SLEEP[server.dialect])
    assert engine.is_unreachable(caught.value) and not engine.is_retriable(caught.value)
    with hurried.read() as connection:
        assert connection.connection.dbapi_connection is own
        engine.now(connection)


def test_a_lock_that_is_held_too_long(server: Server, hurried: engine.Database) -> None:
    with hurried.write() as connection:
        connection.exec_driver_sql('CREATE TABLE IF NOT EXISTS held (id INTEGER PRIMARY KEY)')
        connection.exec_driver_sql('DELETE FROM held')
        connection.exec_driver_sql('INSERT INTO held VALUES (1)')
    other = engine.Database(server.url('hung'), 'other')
    with other.write() as holding:
        holding.exec_driver_sql('UPDATE held SET id = 2')
        with pytest.raises(sa.exc.DBAPIError) as caught, hurried.write() as connection:
            connection.exec_driver_sql('UPDATE held SET id = 3')
    assert engine.is_unreachable(caught.value)
    with hurried.write() as connection:
        assert connection.exec_driver_sql('SELECT id FROM held').all() == [(2,)]
    other.dispose()


def test_without_a_limit_a_statement_runs_on(server: Server) -> None:
    """As migrations do."""
    unhurried = engine.Database(server.url('hung'), 'unhurried', engine.Options(statement_timeout=0))
    sleep = SLEEP[server.dialect].replace('60', f'{LIMIT + 0.5}')
    with unhurried.read() as connection:
        connection.exec_driver_sql(sleep)
    unhurried.dispose()
