"""Compute nodes, alone and with their services."""

from __future__ import annotations

import pytest

from kilonova.db.queries import compute_nodes, services

from .rows import node


@pytest.fixture
def nodes(cell):
    """node1 with a live service, node2 with a disabled one, node3 with none."""
    with cell.write() as connection:
        rows = [
            compute_nodes.get_or_create(connection, node(f'node{number}', memory_mb=1000 * number))
            for number in (1, 2, 3)
        ]
        services.get_or_create(connection, 'node1', 'nova-compute', 'compute')
        services.get_or_create(connection, 'node1', 'nova-conductor', 'conductor')
        services.get_or_create(connection, 'node2', 'nova-compute', 'compute', disabled=True, disabled_reason='x')
    return rows


def test_snapshot_is_one_statement_with_each_nodes_service(cell, nodes, statements):
    with cell.read() as connection:
        found = compute_nodes.snapshot(connection, [row['uuid'] for row in nodes] + ['unknown'], 60)
    assert len(statements) == 1
    by_host = {row['host']: row for row in found}
    assert by_host['node1']['service']['up'] is True
    assert by_host['node1']['service']['binary'] == 'nova-compute'
    assert by_host['node1']['memory_mb'] == 1000
    assert (by_host['node2']['service']['disabled'], by_host['node2']['service']['disabled_reason']) == (True, 'x')
    assert by_host['node3']['service'] is None
    assert len(found) == 3


def test_pages_and_patterns(cell, nodes):
    with cell.read() as connection:

        def hosts(**criteria):
            return [row['host'] for row in compute_nodes.list_nodes(connection, 60, **criteria)]

        assert hosts() == ['node1', 'node2', 'node3']
        assert hosts(limit=2) == ['node1', 'node2']
        assert hosts(after_id=nodes[1]['id']) == ['node3']
        assert hosts(pattern='ode2') == ['node2']
        assert hosts(pattern='%') == []
        assert hosts(hosts=['node3', 'node1']) == ['node1', 'node3']
        assert hosts(served=True) == ['node1', 'node2'] and hosts(served=True, hosts=[]) == []
        assert hosts(served=True, hosts=['node2', 'node3'], limit=1) == ['node2']


def test_what_the_servers_of_a_host_were_promised(cell):
    with cell.write() as connection:
        for number, (host, project, deleted) in enumerate(
            (('node1', 'b', 0), ('node1', 'a', 0), ('node1', 'a', 0), ('node2', 'a', 0), ('node1', 'a', 1))
        ):
            # The root disk of the third is a volume.
            connection.execute(
                compute_nodes.instances.insert().values(
                    uuid=f'i{number}',
                    host=host,
                    project_id=project,
                    deleted=deleted,
                    vcpus=2,
                    memory_mb=512,
                    root_gb=3,
                    image_ref='' if number == 2 else 'image',
                    ephemeral_gb=None if number else 4,
                )
            )
        rows = compute_nodes.promised(connection, 'node1')
        assert compute_nodes.promised(connection, 'node9') == []
    assert [(row['project_id'], row['vcpus'], row['memory_mb'], row['disk_gb']) for row in rows] == [
        ('a', 4, 1024, 3),
        ('b', 2, 512, 7),
    ]


def test_show_and_get(cell, nodes):
    with cell.read() as connection:
        assert compute_nodes.show(connection, 60, uuid=nodes[0]['uuid'])['service']['up'] is True
        assert compute_nodes.show(connection, 60, node_id=nodes[2]['id'])['service'] is None
        assert compute_nodes.show(connection, 60, uuid='unknown') is None
        assert compute_nodes.get(connection, host='node2')['id'] == nodes[1]['id']
        assert compute_nodes.get(connection, uuid='unknown') is None
        assert [row['id'] for row in compute_nodes.by_host(connection, 'node2')] == [nodes[1]['id']]
        with pytest.raises(ValueError, match='needed'):
            compute_nodes.get(connection)


def test_a_living_node_is_returned_as_it_is(cell, nodes):
    with cell.write() as connection:
        row = compute_nodes.get_or_create(connection, node('node1', memory_mb=1))
    assert (row['id'], row['memory_mb']) == (nodes[0]['id'], 1000)


def test_a_deleted_node_comes_back_under_its_uuid(cell, nodes):
    with cell.write() as connection:
        compute_nodes.set_mapped(connection, ['node1'], True)
        assert compute_nodes.destroy(connection, nodes[0]['id'])
        assert not compute_nodes.destroy(connection, nodes[0]['id'])
        assert compute_nodes.get(connection, uuid=nodes[0]['uuid']) is None
        row = compute_nodes.get_or_create(connection, node('node1', memory_mb=7))
    assert (row['id'], row['memory_mb'], row['mapped'], row['deleted']) == (nodes[0]['id'], 7, 0, 0)


def test_one_name_under_two_uuids_is_refused(cell, nodes):
    with cell.write() as connection, pytest.raises(compute_nodes.NodeExists, match='node1'):
        compute_nodes.get_or_create(connection, node('node1', uuid='6d5f9b1c-0000-0000-0000-000000000000'))


def test_update(cell, nodes):
    with cell.write() as connection:
        assert compute_nodes.update(connection, nodes[0]['id'], {'vcpus_used': 4, 'pci_stats': '[]'})
        assert not compute_nodes.update(connection, 99, {'vcpus_used': 4})
        row = compute_nodes.get(connection, node_id=nodes[0]['id'])
    assert (row['vcpus_used'], row['pci_stats']) == (4, '[]')
    assert row['updated_at'] is not None


def test_statistics_count_enabled_services_only(cell, nodes):
    with cell.read() as connection:
        sums = compute_nodes.statistics(connection)
    assert (sums['count'], sums['memory_mb'], sums['vcpus'], sums['running_vms']) == (1, 1000, 16, 0)


def test_schedulers_see_when_a_host_is_mapped(cell, nodes):
    with cell.write() as connection:
        assert [row['host'] for row in compute_nodes.unmapped(connection)] == ['node1', 'node2', 'node3']
        compute_nodes.set_mapped(connection, ['node1', 'node3'], True)
        assert [row['host'] for row in compute_nodes.unmapped(connection)] == ['node2']
        assert compute_nodes.get(connection, host='node1')['updated_at'] is not None
        assert compute_nodes.get(connection, host='node2')['updated_at'] is None
        compute_nodes.set_mapped(connection, ['node3'], False)
        assert [row['host'] for row in compute_nodes.unmapped(connection)] == ['node2', 'node3']
        assert compute_nodes.any_nodes(connection)
