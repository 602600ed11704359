"""A service that accepts a connection and never answers counts as silent after a set time, under both backends.

Databases and the broker are stopped by SIGSTOP, like a frozen machine: their connections stay open. The tests measure
no time: a call without a limit does not end while the service is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import sqlalchemy as sa

from kilonova.db import engine
from tests.integration import database_servers
from tests.integration.beside import free_port
from tests.integration.database_servers import Server
from tools.cloud import process, render, services
from tools.cloud.layout import Layout, write_private

# Far beyond all limits that are set here.
PATIENCE = 90
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
        command = [
            sys.executable,
            '-W',
            'ignore',
            '-c',
            self.START + textwrap.dedent(text),
            backend,
            *map(str, arguments),
        ]
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


@contextlib.contextmanager
def both(text: str, *arguments: Any) -> Iterator[tuple[Script, Script]]:
    """The same program under both backends."""
    with Script('threading', text, *arguments) as native, Script('eventlet', text, *arguments) as green:
        yield native, green


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
        return engine.Database(url, 'one', engine.PoolOptions(statement_timeout=limit, pool_timeout=limit, **options))

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
    with both(HUNG_DATABASE, server.url('hung'), f'sqlite:///{tmp_path}/other.sqlite', LIMIT) as scripts:
        assert [script.told() for script in scripts] == ['ready', 'ready']
        server.freeze()
        try:
            for script in scripts:
                script.go_on()
            for found in [script.told() for script in scripts]:
                # The other database was asked every 20 ms, for a second at least.
                assert found.pop('beats') > 10
                assert found == {
                    'pooled': 'silence',
                    'new': 'silence',
                    'full': ['silence'] * 4,
                    'repeated': 'silence',
                    'middle': 'silence',
                    'calls': 1,
                }
        finally:
            server.thaw()
        for script in scripts:
            script.go_on()
            assert script.told() == {'pooled': 'answered', 'small': 'answered', 'main': 'answered'}


@pytest.fixture
def hurried(server: Server) -> Iterator[engine.Database]:
    found = engine.Database(server.url('hung'), 'hurried', engine.PoolOptions(statement_timeout=LIMIT))
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
    unhurried = engine.Database(server.url('hung'), 'unhurried', engine.PoolOptions(statement_timeout=0))
    sleep = SLEEP[server.dialect].replace('60', f'{LIMIT + 0.5}')
    with unhurried.read() as connection:
        connection.exec_driver_sql(sleep)
    unhurried.dispose()


# --- broker ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def rabbitmq(directory: Path) -> Iterator[tuple[str, int]]:
    """A node of a test's own: its transport_url, and its process."""
    layout, ports = Layout.at(directory / 'var'), {name: free_port() for name in ('rabbitmq', 'rabbitmq-dist', 'epmd')}
    layout.make_directories()
    etc, home = layout.etc / 'rabbitmq', layout.data('rabbitmq')
    for path, text in (
        (etc / 'rabbitmq.conf', render.rabbitmq(layout, ports, {'rabbitmq': 'secret'})),
        (etc / 'rabbitmq-env.conf', ''),
        (etc / 'enabled_plugins', '[].\n'),
        (home / '.erlang.cookie', 'secret'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, text)
    (home / '.erlang.cookie').chmod(0o400)
    env = process.child_environment(layout, 'rabbitmq', services.rabbitmq_environment(layout, ports))
    with layout.log('rabbitmq-start').open('wb') as log:
        node = subprocess.Popen(
            [str(services.RABBITMQ_SERVER)], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not services.speaks_amqp(ports['rabbitmq']):
            assert node.poll() is None and time.monotonic() < deadline, layout.log('rabbitmq-start').read_text()
            time.sleep(0.1)
        yield f'rabbit://kilonova:secret@127.0.0.1:{ports["rabbitmq"]}/', node.pid
    finally:
        # Its epmd, too.
        for pid in process.marked(layout.var):
            os.kill(pid, signal.SIGKILL)
        node.wait()


HUNG_BROKER = """
    from kilonova.cmd import options
    from kilonova.context import get_admin_context
    from kilonova.errors import Unanswered
    from kilonova.rpc import baseapi
    from kilonova.rpc.transport import OsloTransport

    conf, ctxt = options.new(), get_admin_context()
    conf(['--config-file', sys.argv[2]], project='kilonova')
    url, silent, host = sys.argv[3], sys.argv[4], sys.argv[1]

    def judge(error):
        return 'silence' if isinstance(error, Unanswered) else repr(error)

    def ping(transport):
        baseapi.ping(transport, 'conductor', host, ctxt)
        return 'answered'

    def cast(transport):
        transport.send('cast', 'conductor', None, 'nobody', '1.0', ctxt, 'wake', {})
        return 'left'

    def until_answered(transport):
        while outcome(lambda: ping(transport)) != 'answered': time.sleep(0.1)
        return 'answered'

    OsloTransport(conf, url).serve('conductor', host, []).start()
    known, fresh, other = OsloTransport(conf, url), OsloTransport(conf, url), OsloTransport(conf, silent)
    # Its queue of replies is open, and several of its connections.
    tell(at_once(**{str(n): lambda: ping(known) for n in range(3)}))
    stop('ready')
    tell(at_once(call=lambda: ping(known), cast=lambda: cast(known), first_call=lambda: ping(fresh),
                 first_cast=lambda: cast(fresh), silent_call=lambda: ping(other), silent_cast=lambda: cast(other)))
    tell([outcome(lambda: ping(transport)) for transport in (fresh, other) for _ in range(3)])
    stop(outcome(other.close))
    tell([until_answered(transport) for transport in (known, fresh)])
"""


def test_a_broker_that_stands_still(tmp_path: Path) -> None:
    """Calls end, the first of a process (which opens the queue of its replies) too, and casts hold nobody up; also with
    a broker that never spoke at all."""
    settings = tmp_path / 'kilonova.conf'
    settings.write_text('[DEFAULT]\nrpc_send_timeout = 1\nrpc_response_timeout = 1\n')
    with rabbitmq(tmp_path) as (url, node), socket.create_server(('127.0.0.1', 0)) as silent:
        port = silent.getsockname()[1]
        with both(HUNG_BROKER, settings, url, f'rabbit://user:secret@127.0.0.1:{port}/') as scripts:
            for script in scripts:
                assert script.told() == {'0': 'answered', '1': 'answered', '2': 'answered'}
                assert script.told() == 'ready'
            os.kill(node, signal.SIGSTOP)
            for script in scripts:
                script.go_on()
            for script in scripts:
                assert script.told() == {
                    'call': 'silence',
                    'first_call': 'silence',
                    'silent_call': 'silence',
                    'cast': 'left',
                    'first_cast': 'left',
                    'silent_cast': 'left',
                }
                assert script.told() == ['silence'] * 6
                assert script.told() is None
            os.kill(node, signal.SIGCONT)
            for script in scripts:
                script.go_on()
            assert [script.told() for script in scripts] == [['answered'] * 2] * 2


# --- Placement, the image service, Keystone --------------------------------------------------------------------------
HUNG_WEB = """
    import webob
    from kilonova.api import app
    from kilonova.cmd import options
    from kilonova.cmd.daemon import parts
    from kilonova.errors import Unanswered

    def configured(path):
        conf = options.new()
        conf(['--config-file', path], project='kilonova')
        return conf

    def judge(error):
        return 'silence' if isinstance(error, Unanswered) else repr(error)

    service, keystone = configured(sys.argv[2]), configured(sys.argv[3])
    checked = app.validated(lambda environ, start_response: [], keystone)
    asked = webob.Request.blank('/servers', headers={'X-Auth-Token': 'token'})
    tell(at_once(
        read=lambda: parts.placement(service).get_allocations('uuid'),
        write=lambda: parts.placement(service).delete_allocations('uuid'),
        image=lambda: parts.images(service).get('uuid'),
        read_without_token=lambda: parts.placement(keystone).get_allocations('uuid'),
        image_without_token=lambda: parts.images(keystone).get('uuid'),
        limits=lambda: parts.limits(keystone).limits('project'),
        token=lambda: asked.get_response(checked).status_int))
"""
_ACCOUNT = """auth_type = password
auth_url = {url}
username = kilonova
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
"""


def test_web_services_that_never_answer(tmp_path: Path) -> None:
    """Reads, which are repeated, and writes; those that must ask Keystone first; limits; tokens of users."""
    with socket.create_server(('127.0.0.1', 0), backlog=100) as silent:
        url = f'http://127.0.0.1:{silent.getsockname()[1]}'
        account = _ACCOUNT.format(url=url)
        direct, indirect = tmp_path / 'direct.conf', tmp_path / 'indirect.conf'
        direct.write_text(
            ''.join(
                f'[{name}]\nauth_type = none\nendpoint_override = {url}\ntimeout = 1\n'
                for name in ('placement', 'glance')
            )
        )
        indirect.write_text(
            '[quota]\ndriver = nova.quota.UnifiedLimitsDriver\n'
            + ''.join(
                f'[{name}]\n{account}{more}\n'
                for name, more in (
                    ('placement', 'timeout = 1'),
                    ('glance', 'timeout = 1'),
                    ('oslo_limit', 'timeout = 1\nendpoint_id = x'),
                    ('keystone_authtoken', f'http_connect_timeout = 1\nwww_authenticate_uri = {url}'),
                )
            )
        )
        with both(HUNG_WEB, direct, indirect) as scripts:
            for script in scripts:
                found = script.told()
                assert found.pop('token') == 503
                assert set(found.values()) == {'silence'}, found
