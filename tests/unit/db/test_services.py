"""Services: who is there and who is up."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa

from kilonova.db.models.base import utcnow
from kilonova.db.models.cell import ComputeNode, PciDevice, Service
from kilonova.db.queries import compute_nodes, pci_devices, services

from .rows import device, node


@pytest.fixture
def service(cell):
    with cell.write() as connection:
        return services.get_or_create(connection, 'node1', 'nova-compute', 'compute', version=73)


def silent_for(cell, service_id, seconds, **values):
    with cell.write() as connection:
        services.update(connection, service_id, {'last_seen_up': utcnow() - dt.timedelta(seconds=seconds), **values})


def states(cell, **filters):
    with cell.read() as connection:
        return {row['host']: row['up'] for row in services.list_services(connection, down_time=60, **filters)}


def test_a_daemon_finds_its_row_again_and_writes_its_version(cell, service):
    assert (service['host'], service['report_count'], service['disabled']) == ('node1', 0, False)
    assert len(service['uuid']) == 36
    with cell.write() as connection:
        again = services.get_or_create(connection, 'node1', 'nova-compute', 'compute', version=74, disabled=True)
    assert again['id'] == service['id']
    assert (again['version'], again['disabled']) == (74, False)
    with cell.read() as connection:
        assert services.get(connection, uuid=service['uuid'])['version'] == 74


def test_a_heartbeat_is_one_statement_by_the_databases_clock(cell, service, statements):
    with cell.write() as connection:
        assert services.report(connection, service['id'])
    assert [text.split()[0] for _, text, _ in statements] == ['UPDATE', 'COMMIT']
    assert any(clock in statements[0][1] for clock in ('strftime', 'UTC_TIMESTAMP', 'statement_timestamp'))
    with cell.read() as connection:
        row = services.get(connection, service_id=service['id'], down_time=60)
    assert row['report_count'] == 1
    assert row['up'] is True
    with cell.write() as connection:
        assert not services.report(connection, 99)


@pytest.mark.parametrize(
    ('together', 'expected'), [(1000, ['SELECT', 'UPDATE', 'COMMIT']), (2, ['SELECT', 'UPDATE', 'SELECT', 'COMMIT'])]
)
def test_heartbeats_of_many(cell, service, statements, monkeypatch, together, expected):
    """The reports of many hosts cost two statements, and the result says which hosts counted as down.

    A host that counted as down stays down until it makes a call, and an unknown id is ignored.
    """
    monkeypatch.setattr(services, '_TOGETHER', together)
    with cell.write() as connection:
        rows = [
            service,
            *(
                services.create(connection, {'host': host, 'binary': 'nova-compute', 'topic': 'compute'})
                for host in ('node2', 'node3')
            ),
        ]
    first, second, third = (row['id'] for row in rows)
    silent_for(cell, first, 61)
    silent_for(cell, third, 50)
    statements.clear()
    with cell.write() as connection:
        assert services.report_together(connection, [first, second, 99], 60) == {first: True, second: False}
    # The row that isn't there costs no writing where it comes alone.
    assert [text.split()[0] for _, text, _ in statements] == expected
    with cell.read() as connection:
        found = services.list_services(connection, down_time=60)
    assert [(row['host'], row['report_count'], row['up']) for row in found] == [
        ('node1', 0, False),
        ('node2', 1, True),
        ('node3', 0, True),
    ]
    silent_for(cell, third, 61)
    statements.clear()
    with cell.write() as connection:
        assert services.report_together(connection, [], 60) == {}
    assert statements[0][1].startswith('SELECT')
    assert states(cell)['node3'] is False


def test_up_by_age_and_by_force(cell, service):
    """A service is up while its last report, or its creation, is recent enough and it is not forced down."""
    assert states(cell) == {'node1': True}  # never reported: counted from its creation
    silent_for(cell, service['id'], 61)
    assert states(cell) == {'node1': False}
    silent_for(cell, service['id'], 50)
    assert states(cell) == {'node1': True}
    silent_for(cell, service['id'], 0, forced_down=True)
    assert states(cell) == {'node1': False}
    with cell.read() as connection:
        assert services.host_is_up(connection, 'node1', 'nova-compute', 60) is False
        assert services.host_is_up(connection, 'node1', 'nova-conductor', 60) is None


def test_filters_of_the_list(cell, service):
    with cell.write() as connection:
        services.create(connection, {'host': 'node1', 'binary': 'nova-conductor', 'topic': 'conductor'})
        services.create(
            connection,
            {
                'host': 'node2',
                'binary': 'nova-compute',
                'topic': 'compute',
                'disabled': True,
                'disabled_reason': 'repair',
            },
        )
    with cell.read() as connection:

        def found(**filters):
            rows = services.list_services(connection, down_time=60, **filters)
            return [(row['host'], row['binary'].removeprefix('nova-')) for row in rows]

        first, second, third = ('node1', 'compute'), ('node1', 'conductor'), ('node2', 'compute')
        assert found() == [first, second, third]
        assert found(host='node1') == [first, second]
        assert found(binary='nova-compute') == [first, third]
        assert found(hosts=['node2', 'node9']) == [third]
        assert found(disabled=True) == [third]
        assert found(disabled=False, binary='nova-compute') == [first]


def test_the_lowest_version_counts(cell, service):
    with cell.write() as connection:
        assert services.minimum_version(connection, 'nova-scheduler') == 0
        old = services.get_or_create(connection, 'node2', 'nova-compute', 'compute', version=70)
        assert services.minimum_version(connection, 'nova-compute') == 70
        services.update(connection, old['id'], {'forced_down': True})
        assert services.minimum_version(connection, 'nova-compute') == 73


def test_a_deleted_compute_service_takes_its_nodes_and_devices_with_it(cell, service):
    with cell.write() as connection:
        mine = compute_nodes.get_or_create(connection, node('node1'))
        other = compute_nodes.get_or_create(connection, node('node2'))
        for node_id in (mine['id'], other['id']):
            pci_devices.save(connection, node_id, created=[device('0000:81:00.0')])
        assert [row['id'] for row in services.destroy(connection, service['id'])] == [mine['id']]
        assert services.destroy(connection, service['id']) == []
    with cell.read() as connection:
        assert services.get(connection, host='node1', binary='nova-compute') is None

        def live(column):
            return connection.execute(sa.select(column).where(column.table.c.deleted == 0)).scalars().all()

        left = [
            live(table.c[name])
            for table, name in (
                (ComputeNode.__table__, 'id'),
                (PciDevice.__table__, 'compute_node_id'),
                (Service.__table__, 'id'),
            )
        ]
        gone = connection.execute(
            sa.select(ComputeNode.deleted, ComputeNode.deleted_at).where(ComputeNode.id == mine['id'])
        ).one()
    assert left == [[other['id']], [other['id']], []]
    assert gone.deleted == mine['id']
    assert gone.deleted_at is not None
    with cell.write() as connection:
        back = services.get_or_create(connection, 'node1', 'nova-compute', 'compute')
    assert back['id'] != service['id']


def test_get_needs_a_criterion(cell):
    with cell.read() as connection, pytest.raises(ValueError, match='needed'):
        services.get(connection)
