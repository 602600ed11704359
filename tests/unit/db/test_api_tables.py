"""Request specs, instance mappings and aggregates."""
from __future__ import annotations

import pytest

from kilonova.db.queries import aggregates, cells, instance_mappings, request_specs


@pytest.fixture
def cell_id(databases, api):
    uuid = cells.create_cell(databases, transport_url='rabbit://', database_connection='sqlite:////x', name='c1')
    with api.read() as connection:
        return cells.get_cell(connection, uuid)['id']


# --- request specs
def test_request_specs(api, statements):
    with api.write() as connection:
        request_specs.create(connection, {'a': '{"x": 1}', 'b': '{}'})
        request_specs.create(connection, {'a': '{"x": 2}', 'c': '{}'})
    assert [text.split()[0] for _, text, _ in statements] == ['INSERT', 'INSERT', 'COMMIT']
    with api.write() as connection:
        assert request_specs.get(connection, 'a')['spec'] == '{"x": 1}'
        assert request_specs.save(connection, 'a', '{"x": 3}')
        assert not request_specs.save(connection, 'z', '{}')
        assert request_specs.get_many(connection, ['a', 'c', 'z']) == {'a': '{"x": 3}', 'c': '{}'}
        assert request_specs.destroy(connection, ['a', 'z']) == 1
        assert request_specs.get(connection, 'a') is None
        request_specs.create(connection, {})


# --- instance mappings
@pytest.fixture
def mapped(api, cell_id):
    with api.write() as connection:
        instance_mappings.create(connection, [
            {'instance_uuid': 'a', 'project_id': 'p', 'user_id': 'u1'},
            {'instance_uuid': 'b', 'project_id': 'p', 'user_id': 'u2'},
            {'instance_uuid': 'c', 'project_id': 'q', 'user_id': 'u1'}])
        assert instance_mappings.set_cell(connection, ['a', 'z'], cell_id) == 1


def test_a_mapping_tells_the_cell_once_there_is_one(api, mapped, cell_id):
    with api.write() as connection:
        first = instance_mappings.get(connection, 'a')
        assert (first['cell_id'], first['queued_for_delete']) == (cell_id, False)
        assert cells.get_cell(connection, first['cell_uuid'])['name'] == 'c1'
        second = instance_mappings.get(connection, 'b')
        assert (second['cell_id'], second['cell_uuid']) == (None, None)
        assert instance_mappings.get(connection, 'z') is None
        instance_mappings.create(connection, [{'instance_uuid': 'a', 'project_id': 'other', 'user_id': 'u'}])
        assert instance_mappings.get(connection, 'a') == first
        assert {row['instance_uuid'] for row in instance_mappings.get_many(connection, 'abz')} == {'a', 'b'}


def test_servers_being_deleted_do_not_count(api, mapped, cell_id):
    with api.write() as connection:
        assert instance_mappings.count(connection, 'p') == 2
        assert instance_mappings.count(connection, 'p', 'u2') == 1
        assert instance_mappings.set_queued_for_delete(connection, 'a', True)
        assert not instance_mappings.set_queued_for_delete(connection, 'z', True)
        assert instance_mappings.count(connection, 'p') == 1

        def uuids(**filters):
            return [row['instance_uuid'] for row in instance_mappings.list_mappings(connection, **filters)]
        assert uuids(project_id='p') == ['a', 'b']
        assert uuids(project_id='p', queued_for_delete=False) == ['b']
        assert uuids(queued_for_delete=True) == ['a']
        assert uuids(user_id='u1') == ['a', 'c']
        assert uuids(cell_id=cell_id) == ['a']
        assert uuids(limit=1) == ['a']
        assert instance_mappings.destroy(connection, ['a', 'c']) == 2
        assert uuids() == ['b']


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
        ('zone1', ['node1', 'node2'], {'availability_zone': 'az1', 'gpu': 'm4000'}), ('ssd', ['node2'], {})]


def test_changes_of_an_aggregate(api, zones):
    with api.write() as connection:
        aggregates.set_metadata(connection, zones[0], {'gpu': None, 'availability_zone': 'az2', 'new': 'x'})
        aggregates.rename(connection, zones[0], 'zone2')
        assert aggregates.remove_host(connection, 'node2') == 2
        found = aggregates.get(connection, zones[0])
        assert (found['name'], found['hosts'], found['metadata']) == (
            'zone2', ['node1'], {'availability_zone': 'az2', 'new': 'x'})
        aggregates.destroy(connection, zones[0])
        for call in (aggregates.get, aggregates.destroy):
            with pytest.raises(aggregates.AggregateNotFound):
                call(connection, zones[0])
        with pytest.raises(aggregates.AggregateNotFound):
            aggregates.rename(connection, zones[0], 'zone3')


@pytest.mark.parametrize('change', [
    lambda connection, ids: aggregates.create(connection, 'ssd'),
    lambda connection, ids: aggregates.rename(connection, ids[0], 'ssd')])
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
