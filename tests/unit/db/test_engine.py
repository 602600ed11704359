"""Transactions, their guards, and what listeners are told."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from kilonova import errors
from kilonova.conf import api_database, database
from kilonova.db import access, engine
from kilonova.db.models.cell import Service

services = Service.__table__
COUNT_UP = sa.update(services).values(report_count=services.c.report_count + 1)
ROW = {'host': 'node1', 'binary': 'nova-compute', 'topic': 'compute'}


def increment(connection):
    count = connection.execute(sa.select(services.c.report_count)).scalar_one()
    # Other threads get the chance to spoil it.
    time.sleep(0.001)
    connection.execute(sa.update(services).values(report_count=count + 1))


def counted(cell):
    with cell.read() as connection:
        return connection.execute(sa.select(services.c.report_count)).scalar_one()


def insert(cell):
    with cell.write() as connection:
        connection.execute(sa.insert(services).values(ROW))


def run_threads(function, number):
    failures = []

    def guarded():
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever it was, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_read_then_write_transactions_of_threads_never_fail(cell):
    insert(cell)

    def ten():
        for _ in range(10):
            with cell.write() as connection:
                increment(connection)

    assert run_threads(ten, 8) == []
    assert counted(cell) == 80


def test_two_objects_of_one_file_wait_for_each_other(cell):
    insert(cell)
    other = engine.Database(cell.url, 'other')

    def five(which):
        for _ in range(5):
            with which.write() as connection:
                increment(connection)

    failures = run_threads(lambda: five(cell), 2) + run_threads(lambda: five(other), 2)
    turns = iter([cell, other] * 2)
    failures += run_threads(lambda: five(next(turns)), 4)
    other.dispose()
    assert failures == []
    assert counted(cell) == 40


def test_readers_go_on_beside_a_writer(cell):
    insert(cell)
    with cell.write() as connection:
        increment(connection)
        seen = []
        assert run_threads(lambda: seen.append(counted(cell)), 2) == []
        assert seen == [0, 0]
    assert counted(cell) == 1


def test_green_threads_may_yield_inside_a_write_transaction(cell):
    insert(cell)
    script = textwrap.dedent(f"""
        from kilonova import concurrency
        concurrency.setup('eventlet')
        import threading, time
        import sqlalchemy as sa
        from kilonova.db import engine
        from kilonova.db.models.cell import Service
        services = Service.__table__
        one, two = engine.Database({cell.url!r}, 'one'), engine.Database({cell.url!r}, 'two')
        def ten(which):
            for _ in range(10):
                with which.write() as connection:
                    count = connection.execute(sa.select(services.c.report_count)).scalar_one()
                    time.sleep(0)
                    connection.execute(sa.update(services).values(report_count=count + 1))
        threads = [threading.Thread(target=ten, args=(which,)) for which in (one, two) * 4]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """)
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert counted(cell) == 80


def test_an_exception_rolls_back(cell):
    with pytest.raises(sa.exc.IntegrityError), cell.write() as connection:
        connection.execute(sa.insert(services), [ROW, ROW])
    with cell.read() as connection:
        assert connection.execute(sa.select(services)).all() == []


def test_a_read_transaction_sees_one_state(cell):
    insert(cell)
    with cell.read() as connection:
        before = connection.execute(sa.select(services.c.report_count)).scalar_one()
        with engine.Database(cell.url, 'other').write() as writer:
            increment(writer)
        assert connection.execute(sa.select(services.c.report_count)).scalar_one() == before


def test_a_read_transaction_refuses_to_write(cell):
    with pytest.raises(RuntimeError, match='must not write'), cell.read() as connection:
        connection.execute(sa.insert(services).values(ROW))


def test_a_write_transaction_is_not_nested(cell):
    with cell.write(), pytest.raises(RuntimeError, match='nested'), cell.write():
        pass
    insert(cell)
    assert counted(cell) == 0


def test_a_lock_that_is_held_too_long_is_silence(cell, monkeypatch):
    insert(cell)
    monkeypatch.setattr(engine, 'SQLITE_BUSY', 0.05)
    outside = sqlite3.connect(cell.url.removeprefix('sqlite:///'), isolation_level=None)
    outside.execute('BEGIN IMMEDIATE')
    try:
        with pytest.raises(sa.exc.OperationalError) as caught, cell.write():
            pass
    finally:
        outside.execute('ROLLBACK')
        outside.close()
    assert engine.is_unreachable(caught.value)
    assert not engine.is_retriable(caught.value)
    with cell.write() as connection:
        increment(connection)
    assert counted(cell) == 1


ENDLESS = sa.text('WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c')


def test_a_statement_that_takes_too_long_is_silence(cell):
    insert(cell)
    hurried = engine.Database(cell.url, 'hurried', engine.PoolOptions(statement_timeout=0.05))
    with pytest.raises(sa.exc.OperationalError) as caught, hurried.read() as connection:
        connection.execute(ENDLESS)
    assert engine.is_unreachable(caught.value)
    assert not engine.is_retriable(caught.value)
    with hurried.write() as connection:
        # Each statement has its own time.
        time.sleep(0.1)
        increment(connection)
    hurried.dispose()
    assert counted(cell) == 1


def test_settings_of_a_connection(cell):
    with cell.write() as connection:
        pragma = {
            name: connection.exec_driver_sql(f'PRAGMA {name}').scalar()
            for name in ('journal_mode', 'synchronous', 'foreign_keys')
        }
    assert pragma == {'journal_mode': 'wal', 'synchronous': 1, 'foreign_keys': 1}


def test_listeners_hear_statements_and_commits_only(cell, statements):
    with cell.write() as connection:
        connection.execute(sa.insert(services), [ROW, ROW | {'host': 'node2'}])
        with connection.begin_nested():
            increment_all = sa.update(services).values(report_count=1)
            connection.execute(increment_all)
    with cell.read() as connection:
        connection.execute(sa.select(services.c.id)).all()
    assert [(name, text.split()[0], many) for name, text, many in statements] == [
        ('main', 'INSERT', True),
        ('main', 'UPDATE', False),
        ('main', 'COMMIT', False),
        ('main', 'SELECT', False),
    ]


def test_a_listener_that_ended_hears_nothing(cell):
    seen = []
    engine.listen(lambda *event: seen.append(event))()
    insert(cell)
    assert seen == []


def test_forbidden_processes_get_no_database(databases, cell):
    engine.install(databases)
    access.forbid('kilonova-compute')
    try:
        for asked in (
            engine.api,
            engine.main,
            lambda: engine.open(cell.url),
            lambda: databases.open('sqlite://'),
            lambda: engine.Database(cell.url, 'cell'),
        ):
            with pytest.raises(errors.DBNotAllowed, match='kilonova-compute attempted direct database access'):
                asked()
    finally:
        access.forbid(None)
        engine.install(None)
    assert databases.main() is cell


def test_configure_reads_both_sections(tmp_path):
    conf = cfg.ConfigOpts()
    for module in (database, api_database):
        conf.register_opts(module.OPTS, group=module.GROUP)
    path = tmp_path / 'kilonova.conf'
    path.write_text(
        f'[database]\nconnection = sqlite:///{tmp_path}/main.sqlite\nmax_retries = 3\n'
        f'[api_database]\nconnection = sqlite:///{tmp_path}/api.sqlite\nmax_pool_size = 2\n'
    )
    conf(['--config-file', str(path)])
    databases = engine.configure(conf)
    try:
        assert engine.api().url.endswith('api.sqlite')
        assert engine.main().url.endswith('main.sqlite')
        assert engine.main().options.max_retries == 3
        assert engine.api().options == engine.PoolOptions(max_pool_size=2)
        assert engine.open(engine.main().url) is engine.main()
        assert databases.options.max_retries == 3
    finally:
        engine.install(None)


def test_what_is_otherwise_than_configured():
    conf = cfg.ConfigOpts()
    for module in (database, api_database):
        conf.register_opts(module.OPTS, group=module.GROUP)
    conf(['--config-file', '/dev/null'])
    conf.set_override('connection', 'sqlite://', 'database')
    conf.set_override('max_retries', 3, 'database')
    databases = engine.configure(conf, statement_timeout=0)
    engine.install(None)
    assert databases.main().options == engine.PoolOptions(statement_timeout=0, max_retries=3)


@pytest.mark.parametrize('access', [engine.api, engine.main])
def test_a_database_that_is_not_configured(access):
    engine.install(engine.Databases(None, None))
    try:
        with pytest.raises(engine.NotConfigured, match='connection is empty'):
            access()
    finally:
        engine.install(None)
    with pytest.raises(engine.NotConfigured):
        access()


def test_one_object_a_url_and_a_name_that_comes_later(databases, cell):
    assert cell.name == 'main'
    assert databases.open(cell.url, 'cell1') is cell
    assert cell.name == 'cell1'
    other = databases.open(cell.url + '_cell0')
    assert other is not cell
    assert other.name == 'main.sqlite_cell0'


def test_passwords_stay_out_of_messages():
    database = engine.Database('postgresql+psycopg2://user:secret@nowhere/kilonova', 'cell1')
    assert 'secret' not in repr(database)
    assert database.dialect == 'postgresql'
    assert engine.Database('mariadb+pymysql://user:secret@nowhere/kilonova', 'cell1').dialect == 'mysql'


def test_a_database_in_memory_is_shared_by_threads():
    database = engine.Database('sqlite://', 'memory')
    with database.write() as connection:
        services.create(connection)
        connection.execute(sa.insert(services).values(ROW))

    def five():
        for _ in range(5):
            with database.write() as connection:
                increment(connection)
            counted(database)

    assert run_threads(five, 4) == []
    assert counted(database) == 20


def _child(database, answer):
    with database.write() as connection:
        connection.execute(COUNT_UP)
    answer.put('done')


def test_a_forked_child_has_connections_of_its_own(cell):
    insert(cell)
    context = multiprocessing.get_context('fork')
    answer = context.Queue()
    child = context.Process(target=_child, args=(cell, answer))
    child.start()
    with cell.write() as connection:
        connection.execute(COUNT_UP)
    assert answer.get(timeout=30) == 'done'
    child.join()
    with cell.write() as connection:
        connection.execute(COUNT_UP)
    assert counted(cell) == 3
