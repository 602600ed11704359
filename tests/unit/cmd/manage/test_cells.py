"""kilonova-manage cell_v2: changing and ending cells and hosts, and where a server is."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kilonova.cmd.manage.cells import NOT_GIVEN
from kilonova.db import engine
from kilonova.db.models.api import HostMapping, InstanceMapping
from kilonova.db.models.cell import ComputeNode, Instance
from kilonova.db.queries import archive, cells, compute_nodes

instances, mappings = Instance.__table__, InstanceMapping.__table__
UNKNOWN = (1, ['Cell with uuid x was not found.'])


@pytest.fixture
def databases(cloud, parse):
    found = engine.configure(parse())
    yield found
    found.dispose()


@pytest.fixture
def cell(databases):
    """The uuid of the cell of the main database."""
    return next(row['uuid'] for row in cells.list_cells(databases) if row['database_connection'] == databases.main_url)


def columns(lines):
    return [[word.strip() for word in line.strip('|').split('|')] for line in lines if line.startswith('|')][1:]


def add_server(databases, uuid, *, host='gpu1', deleted=0, mapped=True):
    with databases.main().write() as connection:
        connection.execute(
            sa.insert(instances).values(uuid=uuid, host=host, project_id='p', user_id='u', deleted=deleted)
        )
    if mapped:
        with databases.api().write() as connection:
            number = next(row['id'] for row in cells.get_cells(connection) if row['uuid'] != cells.CELL0_UUID)
            connection.execute(sa.insert(mappings).values(instance_uuid=uuid, project_id='p', cell_id=number))


def test_map_cell_and_hosts(run, databases, node):
    code, lines = run('cell_v2', 'map_cell_and_hosts', '--verbose')
    assert code == 0
    assert [host for _, _, host in columns(run('cell_v2', 'list_hosts')[1])] == ['gpu1']
    assert run('cell_v2', 'map_cell_and_hosts', '--verbose') == (
        0,
        ['All hosts are already mapped to cell(s), exiting.', *lines],
    )


def test_map_cell_and_hosts_without_hosts(run):
    assert run('api_db', 'sync')[0] == run('db', 'sync', '--local_cell')[0] == 0
    assert run('cell_v2', 'map_cell_and_hosts', '--name', 'c1') == (0, ['No hosts found to map to cell, exiting.'])


def test_update_cell(cloud, databases, cell):
    def shown():
        return {row[1]: row for row in columns(cloud('cell_v2', 'list_cells', '--verbose')[1])}

    assert cloud('cell_v2', 'update_cell', '--cell_uuid', 'x', '--name', 'y') == UNKNOWN
    assert cloud('cell_v2', 'update_cell', '--cell_uuid', cell, '--name', 'east', '--disable') == (0, [])
    assert (shown()[cell][0], shown()[cell][4]) == ('east', 'True')
    assert cloud('cell_v2', 'update_cell', '--cell_uuid', cell, '--enable') == (0, [])
    assert shown()[cell][4] == 'False'
    assert cloud(
        'cell_v2',
        'update_cell',
        '--cell_uuid',
        cell,
        '--transport-url',
        'rabbit://other/',
        '--database_connection',
        'sqlite:///other',
    ) == (0, [])
    assert shown()[cell][2:4] == ['rabbit://other/', 'sqlite:///other']
    # Nothing named: what the configuration says.
    assert cloud('cell_v2', 'update_cell', '--cell_uuid', cell) == (
        0,
        [
            NOT_GIVEN.format('transport-url', '[DEFAULT]/transport_url'),
            NOT_GIVEN.format('database_connection', '[database]/connection'),
        ],
    )
    assert shown()[cell][2:4] == ['fake://', databases.main_url]


def test_update_cell_refuses(cloud, databases, cell):
    other = cells.create_cell(databases, transport_url='rabbit://other/', database_connection='sqlite:///other')
    assert cloud('cell_v2', 'update_cell', '--cell_uuid', cell, '--enable', '--disable') == (
        4,
        ['Cell cannot be both disabled and enabled.'],
    )
    assert cloud('cell_v2', 'update_cell', '--cell_uuid', cells.CELL0_UUID, '--disable') == (
        5,
        ['Cell0 cannot be disabled.'],
    )
    code, lines = cloud('cell_v2', 'update_cell', '--cell_uuid', cell, '--transport-url', 'rabbit://other/')
    assert (code, lines[0].endswith(f'already exists for another cell with uuid {other}.')) == (3, True)


def test_delete_cell(cloud, databases, cell, node):
    assert cloud('cell_v2', 'delete_cell', '--cell_uuid', 'x') == UNKNOWN
    assert cloud('cell_v2', 'discover_hosts')[0] == 0
    assert cloud('cell_v2', 'delete_cell', '--cell_uuid', cell) == (
        2,
        [f'There are existing hosts mapped to cell with uuid {cell}.'],
    )
    add_server(databases, 'alive')
    assert cloud('cell_v2', 'delete_cell', '--cell_uuid', cell, '--force') == (
        3,
        [f'There are existing instances mapped to cell with uuid {cell}.'],
    )
    with databases.main().write() as connection:
        connection.execute(sa.update(instances).values(deleted=1))
    code, lines = cloud('cell_v2', 'delete_cell', '--cell_uuid', cell, '--force')
    assert code == 4
    assert lines[0].startswith(f'There are instance mappings to cell with uuid {cell}, but all instances have been')
    archive.archive(databases.api(), databases.main(), max_rows=9)
    assert cloud('cell_v2', 'delete_cell', '--cell_uuid', cell, '--force') == (0, [])
    with databases.api().read() as connection:
        assert connection.execute(sa.select(HostMapping.__table__)).all() == []
    with databases.main().read() as connection:
        assert [row['host'] for row in compute_nodes.unmapped(connection)] == ['gpu1']


def test_delete_host(cloud, databases, cell, node):
    def delete(host='gpu1', uuid=cell):
        return cloud('cell_v2', 'delete_host', '--cell_uuid', uuid, '--host', host)

    assert cloud('cell_v2', 'discover_hosts')[0] == 0
    other = cells.create_cell(databases, transport_url='rabbit://other/', database_connection='sqlite:///other')
    add_server(databases, 'alive')
    assert delete(uuid='x') == UNKNOWN
    assert delete('gpu9') == (2, ['The host gpu9 was not found.'])
    assert delete(uuid=other) == (3, [f'The host gpu1 was not found in the cell {other}.'])
    assert delete() == (4, ['There are instances on the host gpu1.'])
    with databases.main().write() as connection:
        connection.execute(sa.update(instances).values(host='gpu2'))
    assert delete() == (0, [])
    assert columns(cloud('cell_v2', 'list_hosts')[1]) == []
    assert cloud('cell_v2', 'discover_hosts', '--strict', '--cell_uuid', cell)[0] == 0, 'it is found again'
    with databases.main().read() as connection:
        assert connection.execute(sa.select(ComputeNode.__table__.c.mapped)).scalars().all() == [1]


def test_map_instances(cloud, databases, cell):
    for number in range(3):
        add_server(databases, f's{number}', mapped=False)
    add_server(databases, 'mapped')
    add_server(databases, 'dead', deleted=9, mapped=False)
    assert cloud('cell_v2', 'map_instances', '--cell_uuid', 'x') == (127, ['Cell with uuid x was not found.'])
    assert cloud('cell_v2', 'map_instances', '--cell_uuid', cell, '--max-count', '0') == (
        127,
        ['Must supply a positive value for max-count'],
    )
    assert cloud('cell_v2', 'map_instances', '--cell_uuid', cell, '--max-count', '2') == (1, ['Mapped 2 instances.'])
    assert cloud('cell_v2', 'map_instances', '--cell_uuid', cell) == (0, ['Mapped 1 instances.'])
    assert cloud('cell_v2', 'map_instances', '--cell_uuid', cell) == (0, ['Mapped 0 instances.'])
    assert cloud('cell_v2', 'verify_instance', '--uuid', 's2', '--quiet') == (0, [])


def test_verify_instance(cloud, databases, cell):
    def verify(uuid):
        return cloud('cell_v2', 'verify_instance', '--uuid', uuid)

    add_server(databases, 'alive')
    add_server(databases, 'dead', deleted=9)
    with databases.api().write() as connection:
        connection.execute(sa.insert(mappings).values(instance_uuid='waiting', project_id='p'))
    assert verify('alive') == (0, [f'Instance alive is in cell: None ({cell})'])
    assert verify('nobody') == (
        1,
        ['Instance nobody is not mapped to a cell (upgrade is incomplete) or instance does not exist'],
    )
    assert verify('waiting') == (2, ['Instance waiting is not mapped to a cell (upgrade is incomplete)'])
    assert verify('dead') == (3, ['The instance with uuid dead has been deleted.'])
    with databases.main().write() as connection:
        connection.execute(sa.delete(instances).where(instances.c.uuid == 'dead'))
    assert verify('dead') == (
        4,
        ['The instance with uuid dead has been deleted and archived; its mapping is still there.'],
    )
