"""Devices of nodes and of servers."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kilonova.db.models.cell import PciDevice
from kilonova.db.queries import compute_nodes, pci_devices

from .rows import device, node

SERVER = '0b8b3dc1-8b63-4a83-a4d5-000000000001'


@pytest.fixture
def node_id(cell):
    """A node with three GPUs, the first two held by a server."""
    with cell.write() as connection:
        node_id = compute_nodes.get_or_create(connection, node('node1'))['id']
        pci_devices.save(
            connection,
            node_id,
            created=[
                device('0000:82:00.0', status='claimed', instance_uuid=SERVER),
                device('0000:81:00.0', status='allocated', instance_uuid=SERVER, uuid='a-uuid-of-its-own'),
                device('0000:83:00.0'),
            ],
        )
    return node_id


def ids(cell, node_id):
    """Ids of the node's devices by the bus of their address."""
    with cell.read() as connection:
        return {row['address'][5:7]: row['id'] for row in pci_devices.by_node(connection, node_id)}


def addresses(rows):
    return [row['address'] for row in rows]


def test_new_devices_are_one_insert_and_have_uuids(cell, node_id, statements):
    with cell.write() as connection:
        pci_devices.save(connection, node_id, created=[device('0000:84:00.0'), device('0000:85:00.0', numa_node=1)])
    assert [(text.split()[0], many) for _, text, many in statements] == [('INSERT', True), ('COMMIT', False)]
    with cell.read() as connection:
        rows = {row['address']: row for row in pci_devices.by_node(connection, node_id)}
    assert rows['0000:81:00.0']['uuid'] == 'a-uuid-of-its-own'
    assert len({row['uuid'] for row in rows.values()}) == 5
    assert rows['0000:85:00.0']['numa_node'] == 1


def test_changes_are_one_update_a_set_of_columns(cell, node_id, statements):
    known = ids(cell, node_id)
    statements.clear()
    with cell.write() as connection:
        pci_devices.save(
            connection,
            node_id,
            changed=[
                {'id': known['81'], 'status': 'available', 'instance_uuid': None},
                {'id': known['82'], 'status': 'available', 'instance_uuid': None},
                {'id': known['83'], 'numa_node': 1},
            ],
        )
    assert [(text.split()[0], many) for _, text, many in statements[:-1]] == [('UPDATE', True), ('UPDATE', False)]
    with cell.read() as connection:
        rows = pci_devices.by_node(connection, node_id)
    assert [(row['status'], row['instance_uuid'], row['numa_node']) for row in rows] == [
        ('available', None, None),
        ('available', None, None),
        ('available', None, 1),
    ]


def test_a_removed_device_stays_as_a_deleted_row_and_its_address_is_free(cell, node_id):
    removed = ids(cell, node_id)['83']
    with cell.write() as connection:
        pci_devices.save(connection, node_id, removed=[removed], created=[device('0000:83:00.0', product_id='1eb8')])
        assert addresses(pci_devices.by_node(connection, node_id)) == ['0000:81:00.0', '0000:82:00.0', '0000:83:00.0']
        gone = connection.execute(
            sa.select(PciDevice.deleted, PciDevice.product_id).where(PciDevice.id == removed)
        ).one()
    assert tuple(gone) == (removed, '13f1')


def test_only_devices_of_the_node_are_removed(cell, node_id):
    others = list(ids(cell, node_id).values())
    with cell.write() as connection:
        other = compute_nodes.get_or_create(connection, node('node2'))['id']
        pci_devices.save(connection, other, removed=others)
        assert len(pci_devices.by_node(connection, node_id)) == 3


def test_devices_of_servers(cell, node_id):
    with cell.read() as connection:
        assert addresses(pci_devices.by_instance(connection, SERVER)) == ['0000:82:00.0', '0000:81:00.0']
        assert addresses(pci_devices.by_instance(connection, SERVER, ['allocated'])) == ['0000:81:00.0']
        assert pci_devices.by_instance(connection, SERVER, compute_node_id=99) == []
        found = pci_devices.by_instances(connection, [SERVER, 'other'], ['claimed'])
    assert addresses(found[SERVER]) == ['0000:82:00.0']
    assert found['other'] == []


def test_the_list_of_a_cell_tells_the_host(cell, node_id):
    with cell.read() as connection:
        rows = pci_devices.list_devices(connection, statuses=['available', 'claimed'])
        assert pci_devices.list_devices(connection, host='node9') == []
        assert len(pci_devices.list_devices(connection, host='node1')) == 3
    assert [(row['host'], row['hypervisor_hostname'], row['address']) for row in rows] == [
        ('node1', 'node1', '0000:82:00.0'),
        ('node1', 'node1', '0000:83:00.0'),
    ]
