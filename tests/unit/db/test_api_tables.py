"""Request specs, build requests, instance mappings and aggregates."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from kilonova.db.queries import aggregates, build_requests, cells, instance_mappings, quotas, request_specs


# --- what a create writes
def test_request_specs(api, statements):
    with api.write() as connection:
        request_specs.create(connection, [('a', '{"x": 1}'), ('b', '{}')])
    assert [text.split()[0] for _, text, _ in statements] == ['INSERT', 'COMMIT']
    with api.write() as connection:
        assert request_specs.get(connection, 'a')['spec'] == '{"x": 1}'
        seen = request_specs.get(connection, 'a')
        assert request_specs.save(connection, seen, '{"x": 3}')
        # Written since it was seen.
        assert not request_specs.save(connection, seen, '{}')
        assert request_specs.get(connection, 'a')['spec'] == '{"x": 3}'
        assert request_specs.destroy(connection, 'a')
        assert not request_specs.destroy(connection, 'a')
        assert request_specs.get(connection, 'a') is None
        assert request_specs.get(connection, 'b')['created_at'] is not None


def test_build_requests(api, statements):
    with api.write() as connection:
        build_requests.create(
            connection, [{'instance_uuid': uuid, 'project_id': 'p', 'instance': '{}'} for uuid in ('a', 'b')]
        )
    assert [text.split()[0] for _, text, _ in statements] == ['INSERT', 'COMMIT']
    with api.write() as connection:
        assert build_requests.exists(connection, 'a')
        assert build_requests.destroy(connection, 'a')
        assert not build_requests.destroy(connection, 'a')
        assert [build_requests.exists(connection, uuid) for uuid in 'ab'] == [False, True]


def test_instance_mappings(databases, api, statements):
    def rows():
        table = instance_mappings.instance_mappings.c
        return connection.execute(
            sa.select(table.instance_uuid, table.cell_id, table.queued_for_delete).order_by(table.id)
        ).all()

    with api.write() as connection:
        instance_mappings.create(
            connection, [{'instance_uuid': uuid, 'project_id': 'p', 'user_id': 'u'} for uuid in ('a', 'b')]
        )
    assert [text.split()[0] for _, text, _ in statements] == ['INSERT', 'COMMIT']
    uuid = cells.create_cell(databases, transport_url='rabbit://', database_connection='sqlite:////x', name='c1')
    with api.write() as connection:
        cell_id = cells.get_cell(connection, uuid)['id']
        assert instance_mappings.set_cell(connection, 'a', cell_id)
        assert instance_mappings.set_queued_for_delete(connection, 'b')
        assert rows() == [('a', cell_id, False), ('b', None, True)]
        assert instance_mappings.destroy(connection, 'a')
        assert rows() == [('b', None, True)]
        for act in (
            lambda: instance_mappings.set_cell(connection, 'a', cell_id),
            lambda: instance_mappings.set_queued_for_delete(connection, 'a'),
            lambda: instance_mappings.destroy(connection, 'a'),
        ):
            assert not act()


def test_what_waits_for_a_cell_counts(api, statements):
    def server(vcpus, memory_mb, user_id):
        return json.dumps(
            {
                'nova_object.name': 'Instance',
                'nova_object.data': {
                    'vcpus': vcpus,
                    'memory_mb': memory_mb,
                    'user_id': user_id,
                    'display_name': 'vcpus": 99, "é',
                },
            }
        )

    with api.write() as connection:
        assert quotas.waiting(connection, 'p') == []
        build_requests.create(
            connection,
            [
                {'instance_uuid': uuid, 'project_id': project, 'instance': server(vcpus, memory_mb, user_id)}
                for uuid, project, vcpus, memory_mb, user_id in (
                    ('a', 'p', 2, 512, 'u'),
                    ('b', 'p', 4, 2**31 - 1, None),
                    ('c', 'q', 1, 1, 'u'),
                )
            ],
        )
    statements.clear()
    with api.read() as connection:
        assert sorted(quotas.waiting(connection, 'p'), key=lambda row: row['uuid']) == [
            {'uuid': 'a', 'user_id': 'u', 'instances': 1, 'cores': 2, 'ram': 512},
            {'uuid': 'b', 'user_id': None, 'instances': 1, 'cores': 4, 'ram': 2**31 - 1},
        ]
    assert len(statements) == 1


def test_limits_that_are_given_twice_and_taken_back(api):
    quotas.set_limits(api, 'p', None, {'cores': 1, 'ram': 2})
    quotas.set_limits(api, 'p', None, {'cores': 3})
    quotas.set_limits(api, 'p', 'u', {'cores': 2, 'ram': -1})
    quotas.set_limits(api, 'p', 'v', {'cores': 1})
    quotas.set_class_limits(api, 'default', {'ram': 9, 'instances': 8})
    quotas.set_class_limits(api, 'default', {'instances': 7})
    with api.read() as connection:
        assert quotas.limits(connection, 'p', 'u') == ({'cores': 3, 'ram': 2, 'instances': 7}, {'cores': 2, 'ram': -1})
        assert quotas.limits(connection, None) == ({'ram': 9, 'instances': 7}, {})
        assert quotas.given_to_users(connection, 'p') == {'cores': 3}
        assert quotas.given_to_users(connection, 'p', 'u') == {'cores': 1}
    quotas.delete_limits(api, 'p', 'u')
    with api.read() as connection:
        assert quotas.limits(connection, 'p', 'u').own == {}
        assert quotas.limits(connection, 'p', 'v').own == {'cores': 1}
    quotas.delete_limits(api, 'p')
    with api.read() as connection:
        assert quotas.limits(connection, 'p', 'v') == ({'ram': 9, 'instances': 7}, {})


# --- aggregates
@pytest.fixture
def zones(api):
    with api.write() as connection:
        first = aggregates.create(connection, 'zone1', {'availability_zone': 'az1', 'gpu': 'm4000'})
        second = aggregates.create(connection, 'ssd')
        for aggregate_id, host in ((first['id'], 'node1'), (first['id'], 'node2'), (second['id'], 'node2')):
            aggregates.add_host(connection, aggregate_id, host)
    return first['id'], second['id']


def test_a_snapshot_is_three_statements(api, zones, statements):
    with api.read() as connection:
        found = aggregates.snapshot(connection)
        assert len(statements) == 3
        assert [row['name'] for row in aggregates.snapshot(connection, hosts=['node1'])] == ['zone1']
        assert [row['name'] for row in aggregates.snapshot(connection, aggregate_ids=[zones[1]])] == ['ssd']
    assert [(row['name'], row['hosts'], row['metadata']) for row in found] == [
        ('zone1', ['node1', 'node2'], {'availability_zone': 'az1', 'gpu': 'm4000'}),
        ('ssd', ['node2'], {}),
    ]


def test_changes_of_an_aggregate(api, zones):
    with api.write() as connection:
        aggregates.set_metadata(connection, zones[0], {'gpu': None, 'availability_zone': 'az2', 'new': 'x'})
        aggregates.rename(connection, zones[0], 'zone2')
        assert aggregates.remove_host(connection, 'node2') == 2
        found = aggregates.get(connection, zones[0])
        assert (found['name'], found['hosts'], found['metadata']) == (
            'zone2',
            ['node1'],
            {'availability_zone': 'az2', 'new': 'x'},
        )
        aggregates.destroy(connection, zones[0])
        for call in (aggregates.get, aggregates.destroy):
            with pytest.raises(aggregates.AggregateNotFound):
                call(connection, zones[0])
        with pytest.raises(aggregates.AggregateNotFound):
            aggregates.rename(connection, zones[0], 'zone3')


@pytest.mark.parametrize(
    'change',
    [
        lambda connection, ids: aggregates.create(connection, 'ssd'),
        lambda connection, ids: aggregates.rename(connection, ids[0], 'ssd'),
    ],
)
def test_names_are_unique(api, zones, change):
    with pytest.raises(aggregates.AggregateNameExists, match='ssd'), api.write() as connection:
        change(connection, zones)


def test_a_host_is_in_an_aggregate_once(api, zones):
    with pytest.raises(aggregates.AggregateHostExists, match='node1'), api.write() as connection:
        aggregates.add_host(connection, zones[0], 'node1')
    with pytest.raises(aggregates.AggregateNotFound), api.write() as connection:
        aggregates.add_host(connection, 99, 'node1')
    with api.write() as connection:
        assert aggregates.remove_host(connection, 'node2', zones[1]) == 1
        assert aggregates.get(connection, zones[0])['hosts'] == ['node1', 'node2']
