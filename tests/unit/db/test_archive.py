"""Archiving: what goes, what stays, in which portions; and the end of the shadows."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries import archive, compute_nodes, operations, pci_devices
from tests.unit.db.rows import device, node

LONG_AGO = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
TODAY = dt.datetime(2026, 6, 1, tzinfo=dt.UTC).replace(tzinfo=None)
SPRING = dt.datetime(2026, 3, 1, tzinfo=dt.UTC).replace(tzinfo=None)
T = models.Base.metadata.tables
A = api_models.Base.metadata.tables


def server(api, cell, uuid, deleted_at=None):
    """A server with a row in every table that may point at it: 11 rows of the cell with its own, and 4 of the API's."""
    with cell.write() as connection:
        number = connection.execute(
            sa.insert(T['instances']).values(uuid=uuid, created_at=LONG_AGO)
        ).inserted_primary_key[0]
        if deleted_at is not None:
            connection.execute(
                sa.update(T['instances'])
                .where(T['instances'].c.id == number)
                .values(deleted=number, deleted_at=deleted_at)
            )
        for name, values in (
            ('instance_extra', {}),
            ('instance_info_caches', {}),
            ('instance_metadata', {'key': 'k', 'value': 'v'}),
            ('instance_system_metadata', {'key': 'k'}),
            ('instance_faults', {'code': 500}),
            ('block_device_mapping', {}),
            ('migrations', {'migration_type': 'resize', 'status': 'confirmed'}),
        ):
            connection.execute(sa.insert(T[name]).values(instance_uuid=uuid, **values))
        action = connection.execute(
            sa.insert(T['instance_actions']).values(instance_uuid=uuid, action='create')
        ).inserted_primary_key[0]
        connection.execute(
            sa.insert(T['instance_actions_events']),
            [{'action_id': action, 'event': event} for event in ('select', 'build')],
        )
        connection.execute(sa.insert(T['tags']).values(resource_id=uuid, tag='t'))
    with api.write() as connection:
        group = connection.execute(sa.insert(A['instance_groups']).values(uuid=f'g-{uuid}')).inserted_primary_key[0]
        connection.execute(sa.insert(A['instance_group_member']).values(instance_uuid=uuid, group_id=group))
        connection.execute(sa.insert(A['instance_mappings']).values(instance_uuid=uuid, project_id='p'))
        connection.execute(sa.insert(A['request_specs']).values(instance_uuid=uuid, spec='{}'))
        connection.execute(sa.insert(A['build_requests']).values(instance_uuid=uuid, project_id='p'))


def left(database, tables):
    """{table: rows} of those that have any."""
    with database.read() as connection:
        counts = {
            name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for name, table in tables.items()
        }
    return {name: count for name, count in counts.items() if count}


WHOLE = {
    'instances': 1,
    'instance_extra': 1,
    'instance_info_caches': 1,
    'instance_metadata': 1,
    'instance_system_metadata': 1,
    'instance_faults': 1,
    'block_device_mapping': 1,
    'migrations': 1,
    'instance_actions': 1,
    'instance_actions_events': 2,
}
WHOLE_API = {
    f'API_DB.{name}': 1 for name in ('instance_group_member', 'instance_mappings', 'request_specs', 'build_requests')
}


def test_a_deleted_server_goes_with_all_that_belongs_to_it(api, cell):
    server(api, cell, 'dead', LONG_AGO)
    server(api, cell, 'alive')
    moved = archive.archive(api, cell, max_rows=1000)
    assert moved == WHOLE | WHOLE_API
    assert archive.of_cells(moved) == 11
    assert left(cell, T) == WHOLE | {'tags': 1} | {f'shadow_{name}': count for name, count in WHOLE.items()}
    assert left(api, A) == {
        'instance_groups': 2,
        'instance_group_member': 1,
        'instance_mappings': 1,
        'request_specs': 1,
        'build_requests': 1,
    }
    with cell.read() as connection:
        shadow = connection.execute(sa.select(T['shadow_instances'])).mappings().one()
        move = connection.execute(sa.select(T['shadow_migrations'])).mappings().one()
    assert (shadow['uuid'], shadow['deleted'], shadow['deleted_at'], shadow['created_at']) == (
        'dead',
        shadow['id'],
        LONG_AGO,
        LONG_AGO,
    )
    assert (move['migration_type'], move['instance_uuid']) == ('resize', 'dead')
    assert archive.archive(api, cell, max_rows=1000) == {}


def test_what_a_server_did_with_volumes_goes_with_it(api, cell):
    for uuid, deleted in (('dead', LONG_AGO), ('alive', None)):
        server(api, cell, uuid, deleted)
        with cell.write() as connection:
            connection.execute(
                sa.insert(T['volume_usage_cache']).values(volume_id='v', instance_uuid=uuid, curr_reads=7)
            )
    assert archive.archive(api, cell, max_rows=1000)['volume_usage_cache'] == 1
    with cell.read() as connection:
        for name, uuid in (('volume_usage_cache', 'alive'), ('shadow_volume_usage_cache', 'dead')):
            row = connection.execute(sa.select(T[name])).mappings().one()
            assert (row['instance_uuid'], row['curr_reads'], row['tot_writes']) == (uuid, 7, 0)


def test_portions(api, cell):
    for number in range(5):
        server(api, cell, f'dead{number}', LONG_AGO)
    assert archive.of_cells(archive.archive(api, cell, max_rows=30)) == 33
    assert archive.of_cells(archive.archive(api, cell, max_rows=1)) == 11, 'a server goes whole'
    assert archive.of_cells(archive.archive(api, cell, max_rows=1000)) == 11
    assert left(cell, T) == {f'shadow_{name}': count * 5 for name, count in WHOLE.items()}


def test_only_what_was_deleted_before(api, cell):
    server(api, cell, 'old', LONG_AGO)
    server(api, cell, 'new', TODAY)
    assert archive.archive(api, cell, max_rows=1000, before=SPRING)['instances'] == 1
    with cell.read() as connection:
        assert connection.execute(sa.select(T['instances'].c.uuid)).scalars().all() == ['new']


@pytest.mark.parametrize('where', ['cell', 'api'])
def test_a_server_that_an_operation_works_on_stays(api, cell, where):
    server(api, cell, 'dead', LONG_AGO)
    row = operations.OperationRow(uuid='o', kind='delete', instance_uuid='dead')
    with (cell if where == 'cell' else api).write() as connection:
        operations.insert(connection, [row])
    assert archive.archive(api, cell, max_rows=1000) == {}
    with (cell if where == 'cell' else api).write() as connection:
        connection.execute(sa.delete(operations.operations))
    assert archive.archive(api, cell, max_rows=1000)['instances'] == 1


def test_a_pending_release_and_its_devices_outlive_the_archiving(api, cell):
    server(api, cell, 'dead', LONG_AGO)
    with cell.write() as connection:
        made = compute_nodes.get_or_create(connection, node('node1'))
        pci_devices.save(
            connection, made['id'], created=[device('0000:01:00.0', status='claimed', instance_uuid='dead')]
        )
        operations.insert(
            connection, [operations.OperationRow(uuid='r', kind='release', instance_uuid='dead', slot='r')]
        )
    archive.archive(api, cell, max_rows=1000)
    assert left(cell, T) == {f'shadow_{name}': count for name, count in WHOLE.items()} | {
        'operations': 1,
        'pci_devices': 1,
        'compute_nodes': 1,
    }


def test_deleted_rows_of_what_lives(api, cell):
    """A removed metadata key, a deleted service; a deleted node waits for its devices."""
    server(api, cell, 'alive')
    with cell.write() as connection:
        made = compute_nodes.get_or_create(connection, node('node1'))
        connection.execute(sa.insert(T['services']).values(host='h', binary='b', deleted=7, deleted_at=TODAY))
        connection.execute(
            sa.insert(T['instance_metadata']).values(instance_uuid='alive', key='gone', deleted=9, deleted_at=LONG_AGO)
        )
        pci_devices.save(connection, made['id'], created=[device('0000:01:00.0')])
        connection.execute(sa.update(T['compute_nodes']).values(deleted=made['id'], deleted_at=LONG_AGO))
    assert archive.archive(api, cell, max_rows=1000, before=SPRING) == {'instance_metadata': 1}
    with cell.write() as connection:
        connection.execute(sa.update(T['pci_devices']).values(deleted=T['pci_devices'].c.id, deleted_at=LONG_AGO))
    assert archive.archive(api, cell, max_rows=1) == {'pci_devices': 1}
    assert archive.archive(api, cell, max_rows=9) == {'compute_nodes': 1, 'services': 1}
    assert left(cell, T)['instances'] == 1


def test_the_task_log_goes_only_when_told(api, cell):
    period = {'task_name': 't', 'state': 'DONE', 'message': 'm', 'period_beginning': LONG_AGO}
    with cell.write() as connection:
        connection.execute(
            sa.insert(T['task_log']),
            [
                {'host': 'a', 'created_at': LONG_AGO, 'updated_at': LONG_AGO, **period},
                {'host': 'b', 'created_at': LONG_AGO, 'updated_at': TODAY, **period},
            ],
        )
    assert archive.archive(api, cell, max_rows=9) == {}
    assert archive.archive(api, cell, max_rows=9, before=SPRING, task_log=True) == {'task_log': 1}
    assert archive.archive(api, cell, max_rows=9, task_log=True) == {'task_log': 1}


def test_an_id_may_be_archived_twice(api, cell):
    """SQLite gives the highest id out again once its row has gone."""
    for uuid in ('one', 'two'):
        server(api, cell, uuid, LONG_AGO)
        assert archive.archive(api, cell, max_rows=1000)['instances'] == 1
    assert left(cell, T)['shadow_instances'] == 2


def test_purge(api, cell):
    for uuid, moment in (('old', LONG_AGO), ('new', TODAY)):
        server(api, cell, uuid, moment)
    with cell.write() as connection:
        # Rows that are never deleted themselves count from when they were last written.
        for name in WHOLE:
            connection.execute(sa.update(T[name]).values(created_at=LONG_AGO, updated_at=None))
    archive.archive(api, cell, max_rows=1000)
    first = archive.purge(cell, SPRING)
    assert first['shadow_instances'] == 1
    assert first['shadow_instance_actions_events'] == 4
    assert left(cell, T) == {'shadow_instances': 1}
    assert archive.purge(cell) == {'shadow_instances': 1}
    assert archive.purge(cell) == {}
