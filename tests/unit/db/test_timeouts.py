"""What servers and drivers are told about time; tests/integration/test_hung_services.py shows that it works."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psycopg2
import pytest
import sqlalchemy as sa
from psycopg2 import extensions

from kilonova.db import engine, failures, timeouts


def told(url: str, limit: float) -> dict:
    """What the driver gets for each connection."""
    made = engine.Database(url, 'main', engine.PoolOptions(statement_timeout=limit, pool_timeout=7))
    assert made._engine.pool.timeout() == 7
    _, arguments = made._engine.dialect.create_connect_args(sa.make_url(url))
    return arguments | made._engine_arguments()['connect_args']


def test_mysql() -> None:
    found = told('mysql+pymysql://user@nowhere/kilonova', 8)
    assert (found['connect_timeout'], found['read_timeout'], found['write_timeout']) == (8, 9, 9)
    assert found['init_command'].startswith("SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = 8 ")
    assert '/*M!100101 , max_statement_time = 8 */' in found['init_command']
    assert '/*M!100300 , idle_transaction_timeout = 8 */' in found['init_command']
    assert '/*!50708 , max_execution_time = 8000 */' in found['init_command']
    assert found['sql_mode'] == 'TRADITIONAL'


def test_mysql_without_a_limit() -> None:
    found = told('mysql+pymysql://user@nowhere/kilonova', 0)
    assert found['init_command'] == "SET SESSION time_zone = '+00:00'"
    assert found['connect_timeout'] == timeouts.CONNECT_TIMEOUT
    assert 'read_timeout' not in found


@pytest.mark.parametrize(('limit', 'connecting'), [(0.05, 0.05), (30, 0.1), (0, 0.1)])
def test_postgresql(limit: float, connecting: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a connection has a limit even where statements have none."""
    monkeypatch.setattr(timeouts, 'GRACE', 0)
    monkeypatch.setattr(timeouts, 'CONNECT_TIMEOUT', 0.1)
    with socket.create_server(('127.0.0.1', 0)) as silent:
        url = f'postgresql+psycopg2://user@127.0.0.1:{silent.getsockname()[1]}/kilonova'
        # Where the other machine is gone, connections without a limit end, too.
        assert told(url, limit)['keepalives_idle'] <= 60
        with (
            pytest.raises(sa.exc.OperationalError, match=f'no answer within {connecting} s') as caught,
            engine.Database(url, 'main', engine.PoolOptions(statement_timeout=limit)).read(),
        ):
            pass
    assert engine.is_unreachable(caught.value) and not engine.is_retriable(caught.value)


@pytest.mark.parametrize('poll', [True, False])
def test_a_psycopg2_connection_waits_so_long(poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under native threads and, where there is no poll(), under eventlet."""
    if not poll:
        monkeypatch.delattr(timeouts.select, 'poll')
    here, there = socket.socketpair()
    with here, there:
        states = iter([extensions.POLL_WRITE, extensions.POLL_READ, extensions.POLL_OK])
        connection = SimpleNamespace(fileno=here.fileno, poll=lambda: next(states), patience=0.02)
        with pytest.raises(psycopg2.OperationalError, match=r'no answer within 0\.02 s') as caught:
            timeouts._wait(connection)
        assert failures.timed_out(caught.value)
        there.send(b'answer')
        states = iter([extensions.POLL_READ, extensions.POLL_OK])
        timeouts._wait(connection)
        # Somebody else's connection: psycopg2 has one hook a process.
        states = iter([extensions.POLL_READ, extensions.POLL_OK])
        del connection.patience
        timeouts._wait(connection)
