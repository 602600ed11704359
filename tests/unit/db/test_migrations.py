"""Moves: lists with filters and pages, and repeated writes."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from kilonova import errors
from kilonova.db.models.cell import Instance, Migration
from kilonova.db.queries import migrations

START = dt.datetime(2026, 5, 1, tzinfo=dt.UTC).replace(tzinfo=None)
SERVERS = ('server-a', 'server-b')


@pytest.fixture
def moves(cell):
    """Five moves a minute apart, by number: 0, 2 and 4 of server-a; 3 and 4 created at the same moment."""
    rows = [
        {
            'uuid': f'move-{number}',
            'instance_uuid': SERVERS[number % 2],
            'source_compute': f'node{number % 3}',
            'dest_compute': 'node9',
            'source_node': f'node{number % 3}',
            'dest_node': 'node9',
            'status': status,
            'migration_type': 'resize' if number % 2 else 'migration',
            'project_id': 'p',
            'user_id': f'u{number}',
            'hidden': number == 2,
            'created_at': START + dt.timedelta(minutes=min(number, 3)),
            'updated_at': START + dt.timedelta(hours=1) if number == 0 else None,
        }
        for number, status in enumerate(('finished', 'confirmed', 'error', 'migrating', 'pre-migrating'))
    ]
    with cell.write() as connection:
        connection.execute(sa.insert(Instance.__table__), [{'uuid': uuid} for uuid in SERVERS])
        connection.execute(sa.insert(Migration.__table__), rows)


def numbers(cell, **arguments):
    with cell.read() as connection:
        return [int(row['uuid'][-1]) for row in migrations.list_migrations(connection, **arguments)]


def test_the_newest_come_first_and_of_one_moment_the_later_id(cell, moves):
    assert numbers(cell) == [4, 3, 2, 1, 0]


def test_pages_by_marker(cell, moves):
    assert numbers(cell, limit=2) == [4, 3]
    assert numbers(cell, limit=2, marker='move-4') == [3, 2]
    assert numbers(cell, limit=2, marker='move-3') == [2, 1]
    assert numbers(cell, marker='move-0') == []
    assert numbers(cell, limit=0) == []
    with cell.read() as connection, pytest.raises(errors.MarkerNotFound, match=r'\[unknown\]'):
        migrations.list_migrations(connection, marker='unknown')


@pytest.mark.parametrize(
    ('filters', 'expected'),
    [
        ({'host': 'node9'}, [4, 3, 2, 1, 0]),
        ({'host': 'node1'}, [4, 1]),
        ({'source_compute': 'node9'}, []),
        ({'source_compute': 'node0'}, [3, 0]),
        ({'status': 'error'}, [2]),
        ({'status': ['error', 'finished']}, [2, 0]),
        ({'instance_uuid': 'server-b'}, [3, 1]),
        ({'instance_uuid': list(SERVERS)}, [4, 3, 2, 1, 0]),
        ({'migration_type': 'resize'}, [3, 1]),
        ({'hidden': True}, [2]),
        ({'hidden': False, 'instance_uuid': 'server-a'}, [4, 0]),
        ({'user_id': 'u3', 'project_id': 'p'}, [3]),
        ({'project_id': 'other'}, []),
        ({'changes_since': START + dt.timedelta(minutes=2)}, [4, 3, 2, 0]),
        ({'changes_before': START + dt.timedelta(minutes=2)}, [2, 1]),
        ({'status': None}, [4, 3, 2, 1, 0]),
    ],
)
def test_filters(cell, moves, filters, expected):
    assert numbers(cell, filters=filters) == expected


def test_an_unknown_filter_is_an_error(cell):
    with cell.read() as connection, pytest.raises(ValueError, match='sort'):
        migrations.list_migrations(connection, filters={'sort': 'x'})


def test_moves_of_servers_and_hosts(cell, moves):
    with cell.read() as connection:

        def names(rows):
            return [int(row['uuid'][-1]) for row in rows]

        assert names(migrations.by_instance(connection, 'server-a')) == [4, 2, 0]
        assert names(migrations.by_instance(connection, 'server-a', ['error'])) == [2]
        assert names(migrations.by_instance(connection, 'server-a', types=['resize'])) == []
        assert sorted(names(migrations.unended_of_instances(connection, SERVERS))) == [0, 3, 4]
        assert names(migrations.unended_on_host(connection, 'node9')) == [0, 3, 4]
        assert names(migrations.unended_on_host(connection, 'node0', 'node0')) == [0, 3]
        assert migrations.unended_on_host(connection, 'node0', 'other') == []
        assert names(migrations.unended_of_instance(connection, 'server-a')) == [0, 4]


def test_a_deleted_servers_moves_end(cell, moves):
    with cell.write() as connection:
        migrations.end_all(connection, 'server-a', 'error')
        assert migrations.unended_of_instance(connection, 'server-a') == []
        assert migrations.get(connection, uuid='move-3')['status'] == 'migrating'


def test_a_repeated_create_changes_nothing(cell, moves):
    with cell.write() as connection:
        first = migrations.create(
            connection,
            {'uuid': 'move-5', 'instance_uuid': 'server-a', 'status': 'accepted', 'migration_type': 'resize'},
        )
        again = migrations.create(
            connection, {'uuid': 'move-5', 'instance_uuid': 'server-a', 'status': 'other', 'migration_type': 'resize'}
        )
    assert first == again
    assert first['status'] == 'accepted'
    assert first['created_at'] is not None


def test_update_compares_the_status(cell, moves):
    with cell.write() as connection:
        assert migrations.update(connection, 'move-0', {'status': 'confirming'}, expected=['finished'])
        assert not migrations.update(connection, 'move-0', {'status': 'reverting'}, expected=['finished'])
        assert migrations.update(connection, 'move-0', {'status': 'confirmed'})
        assert not migrations.update(connection, 'unknown', {'status': 'confirmed'})
        row = migrations.get(connection, uuid='move-0')
        assert migrations.get(connection, migration_id=row['id']) == row
    assert row['status'] == 'confirmed'
