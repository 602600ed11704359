"""MariaDB and PostgreSQL: the same schema and behaviour as SQLite, and what only a server can do.

The tests of tests/unit/db about rows run here once more, on each server.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import sqlalchemy as sa

from kilonova.db import engine, migration
from kilonova.db.models.api import Flavor
from kilonova.db.models.base import utcnow
from kilonova.db.models.cell import Operation, Service
from kilonova.db.queries import cells, changes, compute_nodes, services
from kilonova.db.rows import insert_missing
from tests.unit.db.rows import node
from tests.unit.db.test_addresses import test_fixed_addresses_that_are_found  # noqa: F401 - the same
from tests.unit.db.test_api_tables import (  # noqa: F401 - collected here, with the fixtures of this module
    test_a_host_is_in_an_aggregate_once,
    test_a_snapshot_is_three_statements,
    test_build_requests,
    test_changes_of_an_aggregate,
    test_instance_mappings,
    test_limits_that_are_given_twice_and_taken_back,
    test_names_are_unique,
    test_request_specs,
    test_what_waits_for_a_cell_counts,
    zones,
)
from tests.unit.db.test_archive import (  # noqa: F401 - the same
    test_a_deleted_server_goes_with_all_that_belongs_to_it,
    test_deleted_rows_of_what_lives,
    test_portions,
    test_purge,
    test_what_a_server_did_with_volumes_goes_with_it,
)
from tests.unit.db.test_clock import (  # noqa: F401 - the same
    test_age_in_seconds_and_null,
    test_its_expressions_are_compiled_once,
    test_leases_are_written_and_compared_by_it,
    test_now_is_epoch_seconds,
    test_utcnow_reads_back_as_naive_utc,
)
from tests.unit.db.test_compute_nodes import (  # noqa: F401 - the same
    nodes,
    test_a_deleted_node_comes_back_under_its_uuid,
    test_a_living_node_is_returned_as_it_is,
    test_one_name_under_two_uuids_is_refused,
    test_pages_and_patterns,
    test_schedulers_see_when_a_host_is_mapped,
    test_show_and_get,
    test_snapshot_is_one_statement_with_each_nodes_service,
    test_statistics_count_enabled_services_only,
    test_update,
)
from tests.unit.db.test_engine import (  # noqa: F401 - the same
    test_a_forked_child_has_connections_of_its_own,
    test_a_read_transaction_refuses_to_write,
    test_a_write_transaction_is_not_nested,
    test_an_exception_rolls_back,
    test_listeners_hear_statements_and_commits_only,
    test_readers_go_on_beside_a_writer,
)
from tests.unit.db.test_instance_groups import (  # noqa: F401 - the same
    make_group,
    test_a_deleted_server_is_no_member,
    test_a_group_leaves_its_servers,
    test_claims_at_once_keep_the_policy,
    test_groups_are_two_statements,
    test_servers_by_flavor_are_one_statement,
    test_servers_that_move_are_on_both_hosts,
    test_servers_that_only_the_api_database_knows,
    test_what_a_claim_may,
)
from tests.unit.db.test_migration import check_upgrade
from tests.unit.db.test_migrations import (  # noqa: F401 - the same
    moves,
    test_a_deleted_servers_moves_end,
    test_a_repeated_create_changes_nothing,
    test_filters,
    test_moves_of_servers_and_hosts,
    test_pages_by_marker,
    test_the_newest_come_first_and_of_one_moment_the_later_id,
    test_update_compares_the_status,
)
from tests.unit.db.test_pci_devices import (  # noqa: F401 - the same
    node_id,
    test_a_removed_device_stays_as_a_deleted_row_and_its_address_is_free,
    test_changes_are_one_update_a_set_of_columns,
    test_devices_of_servers,
    test_new_devices_are_one_insert_and_have_uuids,
    test_only_devices_of_the_node_are_removed,
    test_the_list_of_a_cell_tells_the_host,
)
from tests.unit.db.test_quotas import (  # noqa: F401 - the same
    test_a_create_is_taken_back,
    test_a_delete_behind_it_is_not_lost,
    test_an_operation_is_taken_back,
    test_key_pairs,
    test_servers_of_a_period,
    test_what_servers_use_is_one_statement,
)
from tests.unit.db.test_server_parts import (  # noqa: F401 - the same
    here,
    test_keys_that_differ_in_case_are_two,
    test_locks,
    test_states_in_which_nothing_may_change,
    test_writers_at_once_lose_nothing,
)
from tests.unit.db.test_services import (  # noqa: F401 - the same
    service,
    test_a_daemon_finds_its_row_again_and_writes_its_version,
    test_a_deleted_compute_service_takes_its_nodes_and_devices_with_it,
    test_a_heartbeat_is_one_statement_by_the_databases_clock,
    test_filters_of_the_list,
    test_the_lowest_version_counts,
    test_up_by_age_and_by_force,
)
from tests.unit.objects.conftest import ctxt, insert  # noqa: F401 - fixtures of the next ones
from tests.unit.objects.test_volume_usage import (  # noqa: F401 - the same
    give,
    test_a_counter_that_went_back_began_anew,
    test_a_volume_goes_on_counting_with_its_next_server,
    test_counters_of_one_run_are_replaced,
    test_servers_that_share_a_volume_count_for_themselves,
    test_statements_do_not_grow_with_the_volumes,
    withdraw,
)

from . import database_servers

pytestmark = pytest.mark.database

services_table = Service.__table__
operations = Operation.__table__
NAMES = {'api': 'kilonova_api', 'cell': 'kilonova', 'cell0': 'kilonova_cell0'}


@pytest.fixture(scope='module', params=['mariadb', 'postgresql'])
def server(request):
    """A private server with migrated databases."""
    programs = getattr(database_servers, f'{request.param}_programs')
    if programs() is None:
        pytest.skip(f'{request.param} is not installed')
    with getattr(database_servers, request.param)() as running:
        for schema, name in NAMES.items():
            running.create(name)
            database = engine.Database(running.url(name), name)
            migration.sync(database, 'api' if schema == 'api' else 'cell')
            database.dispose()
        yield running


@pytest.fixture
def databases(server):
    """Its databases, empty."""
    found = engine.Databases(server.url(NAMES['api']), server.url(NAMES['cell']))
    empty(found.api(), 'api')
    empty(found.main(), 'cell')
    yield found
    found.dispose()


def empty(database, schema):
    with database.write() as connection:
        for table in reversed(migration.METADATA[schema].sorted_tables):
            connection.execute(sa.delete(table))


@pytest.fixture
def api(databases):
    return databases.api()


@pytest.fixture
def cell(databases):
    return databases.main()


@pytest.fixture
def statements():
    seen = []
    stop = engine.listen(lambda *event: seen.append(event))
    yield seen
    stop()


def run_threads(function, arguments):
    failures = []

    def guarded(argument):
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - whatever it was, the test shows it
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


# --- schema
@pytest.mark.parametrize('schema', ['api', 'cell'])
def test_migrated_tables_are_those_of_the_models(server, databases, schema):
    database = databases.api() if schema == 'api' else databases.main()
    assert migration.version(database, schema) == migration.newest(schema)
    assert migration.differences(database, schema) == []
    assert migration.sync(database, schema) == migration.newest(schema)


@pytest.mark.parametrize('schema', ['api', 'cell'])
def test_a_database_with_rows_is_upgraded(server, schema):
    name = f'upgraded_{schema}'
    server.create(name)
    database = engine.Database(server.url(name), name)
    check_upgrade(database, schema)
    database.dispose()


@pytest.mark.parametrize('schema', ['api', 'cell'])
def test_tables_made_from_the_models_are_the_migrated_ones(server, schema):
    """Fresh and migrated agree in what the models can't tell: the server's own description of each table."""
    name = f'fresh_{schema}'
    server.create(name)
    fresh, migrated = engine.Database(server.url(name), name), engine.Database(server.url(NAMES[schema]), schema)
    with fresh.write() as connection:
        migration.METADATA[schema].create_all(connection)
    with fresh.read() as one, migrated.read() as other:
        assert described(one) == described(other)
    fresh.dispose()
    migrated.dispose()


def described(connection):
    """Columns by name: a migration adds its columns at the end, whatever their place in the models."""
    inspector = sa.inspect(connection)
    found = {}
    for name in inspector.get_table_names():
        if name == 'alembic_version':
            continue
        found[name] = (
            sorted(
                (column['name'], str(column['type']), column['nullable'], str(column['default']))
                for column in inspector.get_columns(name)
            ),
            sorted(
                (index['name'], tuple(index['column_names']), index['unique']) for index in inspector.get_indexes(name)
            ),
            sorted(
                (key['name'], tuple(key['constrained_columns']), key['referred_table'])
                for key in inspector.get_foreign_keys(name)
            ),
        )
    return found


# --- sessions
def test_settings_of_a_session(server, cell):
    with cell.write() as connection:
        if server.dialect == 'mysql':
            mode, zone, isolation = connection.exec_driver_sql(
                'SELECT @@SESSION.sql_mode, @@SESSION.time_zone, @@SESSION.tx_isolation'
            ).one()
            assert 'TRADITIONAL' in mode
            assert zone == '+00:00'
        else:
            isolation = connection.exec_driver_sql('SHOW transaction_isolation').scalar_one()
            assert connection.exec_driver_sql('SHOW jit').scalar_one() == 'off'
        assert isolation.upper().replace('-', ' ') == 'READ COMMITTED'


def test_a_value_that_does_not_fit_is_an_error(cell):
    with pytest.raises(sa.exc.DataError), cell.write() as connection:
        connection.execute(sa.insert(services_table).values(host='x' * 300))


def test_texts_keep_case_and_any_character(api):
    flavors = Flavor.__table__
    common = {'memory_mb': 1, 'vcpus': 1}
    with api.write() as connection:
        connection.execute(
            sa.insert(flavors),
            [
                {'name': 'gpu', 'flavorid': 'a', 'description': '\N{ROCKET} größer', **common},
                {'name': 'GPU', 'flavorid': 'A', 'description': 'x' * 60000, **common},
            ],
        )
    with api.read() as connection:
        assert connection.execute(sa.select(flavors.c.flavorid).where(flavors.c.name == 'GPU')).scalars().all() == ['A']
        texts = connection.execute(sa.select(flavors.c.description).order_by(flavors.c.id)).scalars().all()
    assert texts == ['\N{ROCKET} größer', 'x' * 60000]


def test_times_keep_their_microseconds(cell):
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC).replace(tzinfo=None)
    with cell.write() as connection:
        connection.execute(sa.insert(services_table).values(host='a', binary='b', last_seen_up=moment))
    with cell.read() as connection:
        row = connection.execute(sa.select(services_table)).one()
    assert row.last_seen_up == moment
    assert abs((row.created_at - utcnow()).total_seconds()) < 60
    assert row.disabled is False


def test_stamps_of_changes_are_times(cell):
    """Not strings, as a union of MySQL's makes of a time beside a literal."""
    with cell.write() as connection:
        service = services.get_or_create(connection, 'node1', 'nova-compute', 'compute')
        compute_nodes.get_or_create(connection, node('node1'))
        found = changes.changed(connection, utcnow() - dt.timedelta(minutes=1))
        assert list(found.services) == [service['id']]
        for stamp in (found.now, *found.nodes.values(), *found.services.values()):
            assert abs((stamp - utcnow()).total_seconds()) < 60
        later = changes.changed(connection, utcnow() + dt.timedelta(minutes=1))
        assert (later.nodes, later.services) == ({}, {})


def test_large_json_fits_an_operation(cell):
    with cell.write() as connection:
        connection.execute(
            sa.insert(operations).values(uuid='o1', kind='boot', instance_uuid='i', args='x' * 200000, context='{}')
        )
    with cell.read() as connection:
        row = connection.execute(sa.select(operations)).one()
    assert len(row.args) == 200000
    assert (row.not_before, row.failed, row.attempt, row.outputs) == (0.0, False, 1, '{}')


def test_one_running_row_a_server(cell):
    row = {'kind': 'boot', 'instance_uuid': 'i', 'args': '{}', 'context': '{}'}
    with cell.write() as connection:
        connection.execute(
            sa.insert(operations), [row | {'uuid': 'o1', 'slot': 'run'}, row | {'uuid': 'o2', 'slot': 'wait'}]
        )
    with pytest.raises(sa.exc.IntegrityError) as caught, cell.write() as connection:
        connection.execute(sa.insert(operations).values(row | {'uuid': 'o3'}))
    assert engine.is_duplicate(caught.value)


# --- transactions of several at once
def test_counting_up_by_many_threads(cell):
    with cell.write() as connection:
        service = services.get_or_create(connection, 'node1', 'nova-compute', 'compute')

    @engine.retried
    def up():
        with cell.write() as connection:
            count = connection.execute(sa.select(services_table.c.report_count).with_for_update()).scalar_one()
            connection.execute(sa.update(services_table).values(report_count=count + 1))

    def ten(_):
        for _ in range(10):
            up()

    assert run_threads(ten, range(8)) == []
    with cell.read() as connection:
        assert services.get(connection, service_id=service['id'])['report_count'] == 80


def test_a_compare_and_swap_has_one_winner(cell):
    with cell.write() as connection:
        connection.execute(
            sa.insert(operations).values(uuid='o1', kind='boot', instance_uuid='i', args='{}', context='{}')
        )
    won = []

    def take(owner):
        with cell.write() as connection:
            if connection.execute(
                sa.update(operations).where(operations.c.uuid == 'o1', operations.c.owner.is_(None)).values(owner=owner)
            ).rowcount:
                won.append(owner)

    assert run_threads(take, [f'owner{number}' for number in range(8)]) == []
    assert len(won) == 1
    with cell.read() as connection:
        assert connection.execute(sa.select(operations.c.owner)).scalar_one() == won[0]


def test_deadlocks_are_tried_again(cell):
    with cell.write() as connection:
        connection.execute(
            sa.insert(services_table), [{'host': host, 'binary': 'x', 'topic': 'x'} for host in ('a', 'b')]
        )
    meet = threading.Barrier(2)
    attempts = []

    @engine.retried
    def both(order):
        attempts.append(order)
        with cell.write() as connection:
            for number, host in enumerate(order):
                connection.execute(
                    sa.update(services_table)
                    .where(services_table.c.host == host)
                    .values(report_count=services_table.c.report_count + 1)
                )
                if number == 0 and len(attempts) <= 2:
                    meet.wait(20)

    assert run_threads(both, ['ab', 'ba']) == []
    # On a busy machine the second attempt of one may lock its first row before the other goes on: one deadlock more.
    assert len(attempts) in (3, 4)
    with cell.read() as connection:
        assert connection.execute(sa.select(services_table.c.report_count)).scalars().all() == [2, 2]


def test_daemons_that_start_together_make_one_row(cell):
    start = threading.Barrier(6)

    @engine.retried
    def begin(_):
        with cell.write() as connection:
            services.get(connection, host='node1', binary='nova-compute')
            if len(started) < 6:
                started.append(1)
                start.wait(20)
            services.get_or_create(connection, 'node1', 'nova-compute', 'compute', version=1)
            compute_nodes.get_or_create(connection, node('node1'))

    started = []
    assert run_threads(begin, range(6)) == []
    with cell.read() as connection:
        assert len(services.list_services(connection, down_time=60)) == 1
        assert len(compute_nodes.by_host(connection, 'node1')) == 1


def test_a_row_that_is_there_does_not_end_the_transaction(api):
    with api.write() as connection:
        flavors = Flavor.__table__
        row = {'name': 'a', 'flavorid': 'a', 'memory_mb': 1, 'vcpus': 1}
        insert_missing(connection, flavors, [row])
        insert_missing(connection, flavors, [row | {'vcpus': 2}, row | {'name': 'b', 'flavorid': 'b'}])
        found = connection.execute(sa.select(flavors.c.name, flavors.c.vcpus).order_by(flavors.c.name)).all()
    assert [tuple(row) for row in found] == [('a', 1), ('b', 1)]


def test_errors_other_than_duplicates_are_not_hidden(cell):
    with pytest.raises(sa.exc.DBAPIError) as caught, cell.write() as connection:
        insert_missing(
            connection, operations, [{'uuid': 'o1', 'kind': None, 'instance_uuid': 'i', 'args': '{}', 'context': '{}'}]
        )
    assert not engine.is_duplicate(caught.value)


# --- lost and silent servers
def kill_sessions(server, database):
    if server.dialect == 'postgresql':
        server.run_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'kilonova'")
        return
    with engine.Database(server.url(NAMES['cell0']), 'killer').write() as connection:
        own = connection.exec_driver_sql('SELECT CONNECTION_ID()').scalar_one()
        sessions = (
            connection.exec_driver_sql("SELECT id FROM information_schema.processlist WHERE db = 'kilonova'")
            .scalars()
            .all()
        )
        for session in sessions:
            if session != own:
                connection.exec_driver_sql(f'KILL {session}')


def test_a_connection_lost_in_a_transaction_is_opened_again(server, cell):
    attempts = []

    @engine.retried
    def start():
        with cell.write() as connection:
            row = services.get_or_create(connection, 'node1', 'nova-compute', 'compute')
            attempts.append(row['id'])
            if len(attempts) == 1:
                kill_sessions(server, cell)
                time.sleep(0.1)
            services.report(connection, row['id'])

    start()
    assert len(attempts) == 2
    with cell.read() as connection:
        assert [row['report_count'] for row in services.list_services(connection, down_time=60)] == [1]


def test_an_idle_connection_that_was_closed_is_replaced_unseen(server, cell):
    with cell.read() as connection:
        assert services.list_services(connection, down_time=60) == []
    kill_sessions(server, cell)
    time.sleep(0.1)
    with cell.read() as connection:
        assert services.list_services(connection, down_time=60) == []


def test_a_server_that_is_not_there_is_silence(server):
    url = sa.make_url(server.url(NAMES['cell'])).set(port=database_servers._free_port())
    database = engine.Database(url.render_as_string(hide_password=False), 'nobody')
    with pytest.raises(sa.exc.DBAPIError) as caught, database.read():
        pass
    assert engine.is_unreachable(caught.value)
    assert not engine.is_retriable(caught.value)


def test_a_used_up_pool_is_silence(server):
    database = engine.Database(
        server.url(NAMES['cell']), 'small', engine.PoolOptions(max_pool_size=1, max_overflow=0, pool_timeout=0)
    )
    with database.read() as connection:
        engine.now(connection)
        with pytest.raises(sa.exc.TimeoutError) as caught, database.read():
            pass
    database.dispose()
    assert engine.is_unreachable(caught.value)


@pytest.mark.parametrize('end', ['stop', 'kill'])
def test_a_server_that_ends_is_silence(server, end):
    """Also in the middle of a transaction; a pool of connections to it is good again when it is back."""
    database = engine.Database(server.url(NAMES['cell']), 'ended')
    with database.read() as connection:
        engine.now(connection)
    try:
        with database.read() as connection:
            engine.now(connection)
            getattr(server, end)()
            with pytest.raises(sa.exc.DBAPIError) as caught:
                engine.now(connection)
        assert engine.is_unreachable(caught.value)
        with pytest.raises(sa.exc.DBAPIError) as caught, database.write() as connection:
            engine.now(connection)
        assert engine.is_unreachable(caught.value)
    finally:
        server.start()
    with database.write() as connection:
        engine.now(connection)
    database.dispose()


def test_green_threads_run_beside_a_query(server):
    sleep = 'SELECT SLEEP(0.2)' if server.dialect == 'mysql' else 'SELECT pg_sleep(0.2)'
    script = textwrap.dedent(f"""
        from kilonova import concurrency
        concurrency.setup('eventlet')
        import threading, time
        from kilonova.db import engine
        beats = []
        def beat():
            while True:
                beats.append(1)
                time.sleep(0.01)
        database = engine.Database({server.url(NAMES['cell'])!r}, 'cell1')
        with database.read() as connection:
            engine.now(connection)
            threading.Thread(target=beat, daemon=True).start()
            connection.exec_driver_sql({sleep!r})
            print(len(beats))
    """)
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


# --- cells
def test_cells_on_a_server(server, databases):
    assert cells.map_cell0(databases)
    with databases.main().write() as connection:
        compute_nodes.get_or_create(connection, node('node1'))
    done = cells.simple_cell_setup(databases, 'rabbit://', 'cell1')
    assert done.hosts == ('node1',)
    known = cells.CellDatabases(databases)
    assert [database.name for database in known.databases()] == ['cell0', 'cell1']
    with known.cell0().read() as connection:
        assert services.list_services(connection, down_time=60) == []
