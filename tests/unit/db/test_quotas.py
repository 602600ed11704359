"""What is used and what is taken back; key pairs; usage of a period."""

from __future__ import annotations

import datetime
import json

import pytest

from kilonova.db.models import cell as models
from kilonova.db.queries import (
    build_requests,
    instance_mappings,
    instances,
    keypairs,
    operations,
    owners,
    quotas,
    request_specs,
    usages,
    withdrawals,
)
from tests.fixtures.servers import put_server

NOW = datetime.datetime(2026, 11, 10)


def add(cell, uuid, project='p', user='u', vcpus=1, ram=10, **values):
    with cell.write() as connection:
        put_server(
            connection,
            {
                'uuid': uuid,
                'project_id': project,
                'user_id': user,
                'vcpus': vcpus,
                'memory_mb': ram,
                'vm_state': 'active',
                'task_state': None,
                **values,
            },
        )


def operation(uuid, instance_uuid, kind='resize', **values):
    return operations.OperationRow(uuid=uuid, kind=kind, instance_uuid=instance_uuid, request_id='r', **values)


def flavor(**data):
    return {'flavor': {'nova_object.name': 'Flavor', 'nova_object.data': data}}


def test_what_servers_use_is_one_statement(cell, statements):
    add(cell, 'a', vcpus=2, ram=100)
    add(cell, 'b', user='v', vcpus=3, ram=30)
    add(cell, 'c', project='q')
    add(cell, 'd', vm_state='soft-delete')
    add(cell, 'e', vm_state=None, vcpus=None, ram=None)
    with cell.write() as connection:
        operations.insert(
            connection,
            [
                operation('o1', 'a', args=flavor(vcpus=8, memory_mb=50)),
                operation('o2', 'b', 'stop', args=flavor(vcpus=99, memory_mb=99)),
            ],
        )
    statements.clear()
    with cell.read() as connection:
        found = quotas.usage(connection, 'p', 'v')
        assert len(statements) == 1
        assert found.shared == {'instances': 3, 'cores': 11, 'ram': 130}
        assert found.own == {'instances': 1, 'cores': 3, 'ram': 30}
        assert quotas.usage(connection, 'p', None, ['a', 'e']) == ({'instances': 1, 'cores': 3, 'ram': 30}, {})
        assert quotas.usage(connection, 'nobody', 'v') == (dict.fromkeys(('instances', 'cores', 'ram'), 0),) * 2


def test_a_create_is_taken_back(api):
    uuids = ['a', 'b', 'c']
    operations.accept_create(
        api,
        specs=[(uuid, '{}') for uuid in uuids],
        requests=[{'instance_uuid': uuid, 'project_id': 'p', 'instance': '{}'} for uuid in uuids],
        mappings=[{'instance_uuid': uuid, 'project_id': 'p'} for uuid in uuids],
        operations=[operation(f'o{uuid}', uuid, 'boot') for uuid in uuids],
    )
    with api.write() as connection:
        table = operations.operations
        connection.execute(table.update().where(table.c.uuid == 'ob').values(owner='somebody', not_before=9e9))
        build_requests.destroy(connection, 'c')
    assert withdrawals.create(api, ['a', 'b', 'c']) == ['c']
    with api.read() as connection:
        assert [build_requests.exists(connection, uuid) for uuid in uuids] == [False] * 3
        assert [request_specs.get(connection, uuid) is not None for uuid in uuids] == [False, True, True]
        assert instance_mappings.cells_of(connection, uuids) == {'b': None, 'c': None}
        rows = {
            row.uuid: (row.cancelled, row.not_before)
            for uuid in uuids
            for row in operations.of_instance(connection, uuid)
        }
        assert rows == {'ob': (True, 0), 'oc': (False, 0)}
    assert withdrawals.create(api, ['a']) == ['a']


ACTION = {'action': 'resize', 'request_id': 'r', 'user_id': 'u', 'project_id': 'p'}


@pytest.mark.parametrize('owner', [None, 'somebody'])
def test_an_operation_is_taken_back(cell, owner):
    add(cell, 'a')
    add(cell, 'b')
    for uuid in ('a', 'b'):
        operations.accept(
            cell, instance_uuid=uuid, event='resize.start', operation=operation(f'o{uuid}', uuid), action=ACTION
        )
    with cell.write() as connection:
        table = operations.operations
        connection.execute(table.update().where(table.c.uuid == 'oa').values(owner=owner))
    assert withdrawals.operation(cell, uuid='oa', instance_uuid='a', event='resize.failed', request_id='r') == (
        owner is None
    )
    with cell.read() as connection:
        row = instances.get(connection, 'a')
        left = operations.of_instance(connection, 'a')
        stories = {
            uuid
            for (uuid,) in connection.execute(
                models.InstanceAction.__table__.select().with_only_columns(
                    models.InstanceAction.__table__.c.instance_uuid
                )
            )
        }
        assert [found.cancelled for found in operations.of_instance(connection, 'b')] == [False]
    if owner is None:
        assert (row['task_state'], left, stories) == (None, [], {'b'})
    else:
        assert row['task_state'] == 'resize_prep' and left[0].cancelled and stories == {'a', 'b'}


def test_a_delete_behind_it_is_not_lost(cell):
    add(cell, 'a')
    operations.accept(cell, instance_uuid='a', event='resize.start', operation=operation('o', 'a'), action=ACTION)
    operations.accept_delete(cell, instance_uuid='a', operation=operation('d', 'a', 'delete'), action=ACTION)
    assert not withdrawals.operation(cell, uuid='o', instance_uuid='a', event='resize.failed', request_id='r')
    with cell.read() as connection:
        assert {row.uuid: row.cancelled for row in operations.of_instance(connection, 'a')} == {'o': True, 'd': False}
        assert instances.get(connection, 'a')['task_state'] == 'deleting'


def test_key_pairs(api):
    values = {'user_id': 'u', 'type': 'ssh', 'public_key': 'x', 'fingerprint': 'y'}
    for name in ('b', 'B', 'a'):
        assert keypairs.create(api, {**values, 'name': name})['id']
    assert keypairs.create(api, {**values, 'name': 'a'}) is None
    assert keypairs.create(api, {**values, 'user_id': 'v', 'name': 'a'})
    with api.read() as connection:
        assert keypairs.count(connection, 'u') == 3
        names = [row['name'] for row in keypairs.page(connection, 'u')]
        assert sorted(names) == ['B', 'a', 'b']
        assert [row['name'] for row in keypairs.page(connection, 'u', 1, names[0])] == names[1:2]
        assert keypairs.get(connection, 'u', 'B')['name'] == 'B' and keypairs.get(connection, 'u', 'c') is None
    assert keypairs.delete(api, 'u', 'B') and not keypairs.delete(api, 'u', 'B')


def test_servers_of_a_period(cell, statements):
    day = datetime.timedelta(days=1)
    for uuid, values in {
        'a': {'launched_at': NOW},
        'b': {'launched_at': NOW - 9 * day, 'terminated_at': NOW},
        'c': {'launched_at': NOW + day},
        'd': {'launched_at': None},
        'e': {'launched_at': NOW, 'project_id': 'q'},
    }.items():
        add(cell, uuid, **values)
    with cell.write() as connection:
        instances.update_extra(connection, 'a', {'flavor': json.dumps({'cur': {'nova_object.data': {'name': 'f'}}})})
    statements.clear()
    with cell.read() as connection:

        def names(begin, end, **more):
            return [
                row['uuid'] for row in usages.active(connection, begin, end, limit=9, **{'owner': owners.ALL, **more})
            ]

        assert names(NOW - day, NOW + day) == ['a', 'b', 'e']
        assert names(NOW, NOW + day, owner='p') == ['a']
        assert names(NOW, NOW + 2 * day, owner='p', after=usages.position(connection, 'a', owners.ALL)) == ['c']
        first, second = usages.active(connection, NOW - day, NOW + day, owner=owners.ALL, limit=2, with_flavor=True)
        assert (first['flavor'], second['flavor']) == ('f', '')
        assert usages.position(connection, 'nosuch', owners.ALL) is None
        assert usages.position(connection, 'e', owners.ALL) == usages.position(connection, 'e', 'q')
        assert usages.position(connection, 'e', 'p') is None
    assert len(statements) == 9
