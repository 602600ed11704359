"""Server groups: rows, members, where they are, and claims that may not break a policy."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from oslo_utils import strutils

from kilonova.db.models.api import CellMapping
from kilonova.db.models.cell import InstanceSystemMetadata
from kilonova.db.queries import (
    claims,
    flavor_usage,
    group_claims,
    instance_groups,
    instance_mappings,
    instances,
    migrations,
    operations,
    owners,
)
from kilonova.errors import GroupPolicyViolated
from tests.fixtures.servers import put_server

PROJECT = 'p'


@pytest.fixture
def make_group(api):
    """Makes a group with these servers; its uuid."""

    def make(policy, servers=(), name='g', project=PROJECT, **rules):
        uuid = f'group {name}'
        instance_groups.create(api, {'uuid': uuid, 'name': name, 'project_id': project, 'user_id': 'u'}, policy, rules)
        with api.write() as connection:
            group_id = instance_groups.get(connection, uuid)['id']
            if servers:
                instance_mappings.create(
                    connection, [{'instance_uuid': server, 'project_id': project} for server in servers]
                )
                instance_groups.add_members(connection, (group_id, uuid), servers)
        return uuid

    return make


def test_groups_are_two_statements(api, make_group, statements):
    make_group('anti-affinity', ['a', 'b'], 'one', max_server_per_host='2')
    make_group('affinity', ['c'], 'two')
    make_group('affinity', (), 'three', 'other')
    statements.clear()
    with api.read() as connection:
        rows = instance_groups.page(connection, PROJECT, 10)
        assert len(statements) == 2
        assert [(row['uuid'], row['policy'], row['rules'], row['members']) for row in rows] == [
            ('group one', 'anti-affinity', {'max_server_per_host': '2'}, ['a', 'b']),
            ('group two', 'affinity', {}, ['c']),
        ]
        assert [row['name'] for row in instance_groups.page(connection, owners.ALL, 1, 1)] == ['two']
        assert len(instance_groups.page(connection, owners.ALL, 10)) == 3
        assert instance_groups.get(connection, 'nosuch') is None
        assert instance_groups.of_server(connection, 'a') == ['group one']
        assert instance_groups.of_server(connection, 'z') == []


def test_a_deleted_server_is_no_member(api, make_group):
    name = make_group('affinity', ['a', 'b', 'c'])
    with api.write() as connection:
        instance_mappings.set_queued_for_delete(connection, 'a')
        instance_groups.remove_members(connection, ['b'])
        group = instance_groups.get(connection, name)
        assert group['members'] == ['c'] and instance_groups.count_members(connection, group['id']) == 1
        assert list(instance_groups.cells_of_members(connection, name)[1]) == ['c']


def test_a_group_leaves_its_servers(api, make_group):
    name = make_group('affinity', ['a'])
    with api.read() as connection:
        group = instance_groups.get(connection, name)
    assert instance_groups.destroy(api, name) and not instance_groups.destroy(api, name)
    with (
        pytest.raises(instance_groups.GroupNotFound, match=f'Instance group {name} could not be found'),
        api.write() as connection,
    ):
        instance_groups.add_members(connection, (group['id'], name), ['b'])
    with api.read() as connection:
        assert instance_groups.of_server(connection, 'a') == []


# --- places ----------------------------------------------------------------------------------------------------------
def put(cell, uuid, host=None, **values):
    with cell.write() as connection:
        put_server(
            connection,
            {
                'uuid': uuid,
                'project_id': PROJECT,
                'user_id': 'u',
                'host': host,
                'vm_state': 'active',
                'task_state': None,
                **values,
            },
        )


def test_servers_that_move_are_on_both_hosts(cell, statements):
    for uuid, host in (('a', 'h1'), ('b', None), ('c', 'h3'), ('d', 'h4')):
        put(cell, uuid, host)
    with cell.write() as connection:
        for number, (uuid, status, source, dest) in enumerate(
            (('a', 'finished', 'h2', 'h1'), ('c', 'confirmed', 'h2', 'h3'), ('d', 'pre-migrating', 'h4', None))
        ):
            migrations.create(
                connection,
                {
                    'uuid': f'm{number}',
                    'instance_uuid': uuid,
                    'status': status,
                    'migration_type': 'resize',
                    'source_compute': source,
                    'dest_compute': dest,
                },
            )
    statements.clear()
    with cell.read() as connection:
        assert instance_groups.places(connection, ['a', 'b', 'c', 'd', 'nosuch']) == {
            'a': {'h1', 'h2'},
            'c': {'h3'},
            'd': {'h4'},
        }
    assert len(statements) == 1


# --- claims ----------------------------------------------------------------------------------------------------------
def building(cell, uuid):
    put(cell, uuid, vm_state='building', task_state='scheduling')
    with cell.write() as connection:
        operations.insert(
            connection, [operations.OperationRow(uuid=f'o{uuid}', kind='boot', instance_uuid=uuid, position=3)]
        )


def claim(api, cell, name, uuid, host):
    cells = SimpleNamespace(by_id=lambda cell_id: cell)
    return group_claims.claim(
        api,
        cells,
        cell,
        claims.ClaimWrite(
            key=claims.make_key(f'o{uuid}', 3, 'build', 1),
            instance_uuid=uuid,
            values={'host': host},
            expect={'host': [None, host]},
        ),
        {'uuid': name, 'host': host},
    )


def host_of(cell, uuid):
    with cell.read() as connection:
        return instances.get(connection, uuid)['host']


@pytest.mark.parametrize(
    ('policy', 'most', 'other', 'host', 'fits'),
    [
        ('anti-affinity', None, {'h1'}, 'h1', False),
        ('anti-affinity', None, {'h1'}, 'h2', True),
        ('anti-affinity', None, {'h1', 'h2'}, 'h2', False),
        ('anti-affinity', '2', {'h1'}, 'h1', True),
        ('affinity', None, {'h1'}, 'h1', True),
        ('affinity', None, {'h1'}, 'h2', False),
        ('affinity', None, {'h1', 'h2'}, 'h1', False),
        ('affinity', None, None, 'h2', True),
        ('soft-anti-affinity', None, {'h1'}, 'h1', True),
    ],
)
def test_what_a_claim_may(api, cell, make_group, policy, most, other, host, fits):
    """``other``: the hosts of the other server of the group, two while it moves; None: it has none."""
    name = make_group(policy, ['a', 'b'], **({'max_server_per_host': most} if most else {}))
    put(cell, 'a', min(other) if other else None)
    if other and len(other) == 2:
        with cell.write() as connection:
            migrations.create(
                connection,
                {
                    'uuid': 'm',
                    'instance_uuid': 'a',
                    'status': 'migrating',
                    'migration_type': 'resize',
                    'source_compute': min(other),
                    'dest_compute': max(other),
                },
            )
    building(cell, 'b')
    if fits:
        assert claim(api, cell, name, 'b', host) == {'written': True} == claim(api, cell, name, 'b', host)
        assert host_of(cell, 'b') == host
        return
    with pytest.raises(GroupPolicyViolated, match='instance group policy was violated'):
        claim(api, cell, name, 'b', host)
    assert host_of(cell, 'b') is None
    instance_groups.destroy(api, name)
    claim(api, cell, name, 'b', host)


@pytest.mark.parametrize('policy', ['affinity', 'anti-affinity'])
def test_claims_at_once_keep_the_policy(api, cell, make_group, policy):
    """Of four claims at the same moment as many succeed as the policy of the group allows, whichever is first."""
    servers = ['a', 'b', 'c', 'd']
    name = make_group(policy, servers)
    wanted = dict(zip(servers, ('h1', 'h2') * 2 if policy == 'affinity' else ('h1', 'h1', 'h2', 'h2'), strict=True))
    for uuid in servers:
        building(cell, uuid)
    start, answers = threading.Barrier(len(servers)), []

    def run(uuid):
        start.wait(10)
        try:
            claim(api, cell, name, uuid, wanted[uuid])
        except GroupPolicyViolated:
            return
        answers.append(wanted[uuid])

    threads = [threading.Thread(target=run, args=(uuid,)) for uuid in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 2 and len(set(answers)) == (1 if policy == 'affinity' else 2)


# --- flavors ---------------------------------------------------------------------------------------------------------
def flavor(vcpus=2, extra_specs=None):
    return {
        'nova_object.name': 'Flavor',
        'nova_object.data': {
            'vcpus': vcpus,
            'memory_mb': 512,
            'root_gb': 5,
            'ephemeral_gb': 1,
            'swap': 64,
            'extra_specs': extra_specs or {},
        },
    }


def test_servers_by_flavor_are_one_statement(cell, statements):
    specs = {'pci_passthrough:alias': 'a1:2', 'resources:VGPU': '1'}
    for uuid, extra_specs in (('a', {}), ('b', specs), ('c', specs), ('d', specs), ('e', specs)):
        put(cell, uuid, vm_state='soft-delete' if uuid == 'e' else 'active')
        with cell.write() as connection:
            instances.update_extra(
                connection, uuid, {'flavor': json.dumps({'cur': flavor(2, extra_specs), 'old': None, 'new': None})}
            )
    with cell.write() as connection:
        operations.insert(
            connection,
            [operations.OperationRow(uuid='o', kind='resize', instance_uuid='d', args={'flavor': flavor(8)})],
        )
    statements.clear()
    with cell.read() as connection:
        found = flavor_usage.in_cell(connection, PROJECT)
        assert len(statements) == 1
        assert flavor_usage.in_cell(connection, 'nobody') == []
        assert sum(row.number for row in flavor_usage.in_cell(connection, PROJECT, ['a', 'b'])) == 2
    plain = {'vcpus': 2, 'memory_mb': 512, 'root_gb': 5, 'ephemeral_gb': 1, 'swap': 64, 'extra_specs': {}, 'image': {}}
    assert sorted(found, key=lambda row: (row.number, bool(row.wanted))) == [
        (1, plain, None),
        (1, {**plain, 'extra_specs': specs}, {**plain, 'vcpus': 8}),
        (2, {**plain, 'extra_specs': specs}, None),
    ]


def test_servers_count_with_what_their_images_say(cell):
    """A value that stands twice counts its server once."""
    for uuid, values in (('a', ()), ('b', ('dedicated',)), ('c', ('dedicated', 'dedicated'))):
        put(cell, uuid, vm_state='active')
        with cell.write() as connection:
            instances.update_extra(connection, uuid, {'flavor': json.dumps({'cur': flavor()})})
            for value in values:
                connection.execute(
                    sa.insert(InstanceSystemMetadata.__table__).values(
                        instance_uuid=uuid, key='image_hw_cpu_policy', value=value, deleted=0
                    )
                )
    with cell.read() as connection:
        found = {row.number: row.flavor['image'] for row in flavor_usage.in_cell(connection, PROJECT)}
    assert found == {1: {}, 2: {'hw_cpu_policy': 'dedicated'}}


def test_servers_that_only_the_api_database_knows(api):
    properties = {'nova_object.data': {'hw_cpu_policy': 'dedicated', 'hw_mem_encryption': True, 'hw_disk_bus': 'scsi'}}
    stored = json.dumps(
        {
            'nova_object.data': {
                'flavor': flavor(4),
                'image': {'nova_object.data': {'properties': properties}},
                'system_metadata': {'image_hw_cpu_policy': 'mixed', 'image_hw_disk_bus': 'scsi'},
            }
        }
    )
    operations.accept_create(
        api,
        specs=[('a', stored), ('b', stored)],
        mappings=[{'instance_uuid': uuid, 'project_id': PROJECT} for uuid in ('a', 'b')],
        requests=[{'instance_uuid': 'a', 'project_id': PROJECT, 'instance': stored}],
        operations=[operations.OperationRow(uuid='o', kind='boot', instance_uuid='a')],
    )
    with api.write() as connection:
        key = connection.execute(
            sa.insert(CellMapping.__table__).values(
                uuid='c', name='c', transport_url='x', database_connection='y', disabled=False
            )
        ).inserted_primary_key[0]
        instance_mappings.set_cell(connection, 'b', key)
        ((uuid, row),) = flavor_usage.waiting(connection, PROJECT)
        assert (uuid, row.flavor['vcpus']) == ('a', 4)
        assert row.flavor['image'] == {'hw_cpu_policy': 'mixed'}
        (found,) = flavor_usage.of_silent(connection, [key], PROJECT)
        assert (found.number, found.flavor['vcpus']) == (1, 4)
        assert found.flavor['image']['hw_cpu_policy'] == 'dedicated'
        assert strutils.bool_from_string(found.flavor['image']['hw_mem_encryption'], strict=True)
        assert flavor_usage.of_silent(connection, [key], PROJECT, ['b']) == []
