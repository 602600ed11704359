"""Cells: which there are, what is behind them, and what kilonova-manage does to them."""

from __future__ import annotations

import contextlib
import shutil

import pytest
from sqlalchemy import exc

from kilonova import errors
from kilonova.db.queries import cells, compute_nodes, services

from .rows import node

TRANSPORT = 'rabbit://user:secret@127.0.0.1:5672/one'


@pytest.fixture
def cell1(databases):
    """cell0 and a cell in the main database; the cell's uuid."""
    cells.map_cell0(databases)
    return cells.create_cell(databases, name='cell1', transport_url=TRANSPORT, database_connection=databases.main().url)


@pytest.fixture
def cell2(databases, cell1, tmp_path, migrated):
    shutil.copy(migrated / 'cell.sqlite', tmp_path / 'cell2.sqlite')
    return cells.create_cell(
        databases, transport_url='rabbit://two', disabled=True, database_connection=f'sqlite:///{tmp_path}/cell2.sqlite'
    )


def add_nodes(database, *hosts):
    with database.write() as connection:
        for host in hosts:
            compute_nodes.get_or_create(connection, node(host))


# --- the cells of this cloud
def test_each_cell_has_its_database(databases, cell1, cell2):
    known = cells.CellDatabases(databases)
    assert [database.name for database in known.databases()] == ['cell0', 'cell1', cell2]
    assert [database.name for database in known.enabled()] == ['cell1']
    assert known.by_uuid(cell1) is databases.main()
    assert known.by_id(known.id_of(known.by_uuid(cell2))) is known.by_uuid(cell2)
    assert known.by_uuid(cell1).cell.transport_url == TRANSPORT
    assert known.cell0().url == databases.main().url + '_cell0'
    assert known.cell0() is known.by_uuid(cells.CELL0_UUID)


def test_known_cells_cost_no_statement(databases, cell1, statements):
    known = cells.CellDatabases(databases)
    known.by_uuid(cell1)
    assert len(statements) == 1
    known.by_uuid(cell1), known.cell0(), known.enabled(), known.databases()
    assert len(statements) == 1


def test_an_unknown_cell_is_looked_for_once_more(databases, statements):
    known = cells.CellDatabases(databases)
    assert known.cell0() is None
    assert known.enabled() == []
    cells.map_cell0(databases)
    uuid = cells.create_cell(databases, transport_url=TRANSPORT, database_connection=databases.main().url)
    assert known.by_uuid(uuid) is databases.main()
    assert [database.name for database in known.enabled()] == [uuid]
    for call, value in ((known.by_uuid, 'unknown'), (known.by_id, 99)):
        with pytest.raises(errors.CellMappingNotFound):
            call(value)


def test_templates_are_filled_from_the_local_urls(databases):
    cells.create_cell(
        databases,
        name='c',
        database_connection='{scheme}:///{path}',
        transport_url='rabbit://{username}:{password}@{hostname2}:{port2}/{path}?{query}',
    )
    local = 'rabbit://u:p@one:1,v:q@two:2/vhost?ssl=1'
    [database] = cells.CellDatabases(databases, local).enabled()
    assert database is databases.main()
    assert database.cell.transport_url == 'rabbit://u:p@two:2/vhost?ssl=1'


@pytest.mark.parametrize(
    ('template', 'local', 'filled'),
    [
        (
            'mysql://{username}:{password}@{hostname}:{port}/{path}_1?{query}',
            'mysql://u:p%40x@h:33/db?charset=utf8',
            'mysql://u:p%40x@h:33/db_1?charset=utf8',
        ),
        ('rabbit://u:p{x}@h/', None, 'rabbit://u:p{x}@h/'),
        ('{scheme}://h1={hostname1}&h3={hostname3}', 'x://a,b,c', 'x://h1=a&h3=c'),
        ('sqlite:///{path}', 'sqlite:////var/x.sqlite', 'sqlite:////var/x.sqlite'),
    ],
)
def test_fill(template, local, filled):
    assert cells.fill(template, local) == filled


@pytest.mark.parametrize('local', [None, 'mysql://host/db'])
def test_a_template_without_its_value_is_refused(local):
    with pytest.raises(errors.Invalid, match='username'):
        cells.fill('mysql://{username}@h', local)


@pytest.mark.parametrize(
    ('url', 'masked'),
    [
        ('rabbit://u:secret@h:5672/', 'rabbit://u:****@h:5672/'),
        ('rabbit://u:one@a:1,v:two@b:2/x', 'rabbit://u:****@a:1,v:****@b:2/x'),
        ('sqlite:////var/x.sqlite', 'sqlite:////var/x.sqlite'),
        ('none:///', 'none:///'),
        (None, ''),
    ],
)
def test_passwords_are_masked(url, masked):
    assert cells.mask_password(url) == masked


# --- kilonova-manage
def test_cell0_is_mapped_once(databases):
    assert cells.map_cell0(databases)
    assert not cells.map_cell0(databases)
    [row] = cells.list_cells(databases)
    assert (row['uuid'], row['name'], row['transport_url']) == (cells.CELL0_UUID, 'cell0', 'none:///')
    assert cells.cell0_url('mysql://h/nova?x=1') == 'mysql://h/nova_cell0?x=1'


def test_cell0_elsewhere(databases):
    cells.map_cell0(databases, 'sqlite:////elsewhere')
    assert cells.list_cells(databases)[0]['database_connection'] == 'sqlite:////elsewhere'


@pytest.mark.parametrize('other', [{'transport_url': 'rabbit://new'}, {'database_connection': 'sqlite:////new'}])
def test_a_cell_shares_no_url(databases, cell1, other):
    arguments = {'transport_url': TRANSPORT, 'database_connection': databases.main().url}
    with pytest.raises(cells.CellExists, match=f'already exists for another cell with uuid {cell1}'):
        cells.create_cell(databases, **arguments | other)


def test_the_list_masks_passwords(databases, cell1):
    row = cells.list_cells(databases)[1]
    assert row['masked_transport_url'] == 'rabbit://user:****@127.0.0.1:5672/one'
    assert row['transport_url'] == TRANSPORT
    assert (row['name'], row['disabled']) == ('cell1', False)


def test_hosts_are_discovered_once(databases, cell1, cell2, statements):
    second = cells.CellDatabases(databases).by_uuid(cell2)
    add_nodes(databases.main(), 'node1', 'node2')
    add_nodes(second, 'node3')
    found = cells.discover_hosts(databases)
    assert [(entry.cell.uuid, entry.hosts) for entry in found] == [(cell1, ('node1', 'node2')), (cell2, ('node3',))]
    assert [entry.hosts for entry in cells.discover_hosts(databases)] == [(), ()]
    assert [(row['host'], row['cell_uuid']) for row in cells.list_hosts(databases)] == [
        ('node1', cell1),
        ('node2', cell1),
        ('node3', cell2),
    ]
    assert [row['host'] for row in cells.list_hosts(databases, cell2)] == ['node3']
    with databases.api().read() as connection:
        assert sorted(map(sorted, cells.hosts_by_cell(connection).values())) == [['node1', 'node2'], ['node3']]
    with pytest.raises(errors.CellMappingNotFound):
        cells.list_hosts(databases, 'unknown')


def test_one_cell_may_be_asked_alone(databases, cell1, cell2):
    add_nodes(databases.main(), 'node1')
    assert [entry.hosts for entry in cells.discover_hosts(databases, cell_uuid=cell2)] == [()]
    assert [entry.hosts for entry in cells.discover_hosts(databases, cell_uuid=cell1)] == [('node1',)]
    with pytest.raises(errors.CellMappingNotFound):
        cells.discover_hosts(databases, cell_uuid='unknown')


def test_a_host_that_is_mapped_already_is_only_marked(databases, cell1, api):
    add_nodes(databases.main(), 'node1')
    cell_id = cells.CellDatabases(databases).by_uuid(cell1).cell.id
    with api.write() as connection:
        cells.map_hosts(connection, cell_id, ['node1'])
    assert [entry.hosts for entry in cells.discover_hosts(databases)] == [()]
    with databases.main().read() as connection:
        assert compute_nodes.unmapped(connection) == []


def test_one_host_name_in_two_cells_is_refused(databases, cell1, cell2):
    add_nodes(databases.main(), 'node1')
    add_nodes(cells.CellDatabases(databases).by_uuid(cell2), 'node1')
    with pytest.raises(cells.HostMapped, match=f"'node1' is already mapped to cell {cell1}"):
        cells.discover_hosts(databases)


def test_hosts_by_their_service(databases, cell1):
    with databases.main().write() as connection:
        services.get_or_create(connection, 'node7', 'nova-compute', 'compute')
        services.get_or_create(connection, 'ctl', 'nova-conductor', 'conductor')
    assert [entry.hosts for entry in cells.discover_hosts(databases)] == [()]
    assert [entry.hosts for entry in cells.discover_hosts(databases, by_service=True)] == [('node7',)]
    assert [entry.hosts for entry in cells.discover_hosts(databases, by_service=True)] == [()]


def test_simple_setup(databases):
    first = cells.simple_cell_setup(databases, TRANSPORT)
    assert (first.cell0_created, first.cell_created, first.cell, first.hosts) == (True, False, None, ())
    add_nodes(databases.main(), 'node1')
    second = cells.simple_cell_setup(databases, TRANSPORT, 'cell1')
    assert (second.cell0_created, second.cell_created, second.hosts) == (False, True, ('node1',))
    assert second.cell.name == 'cell1'
    third = cells.simple_cell_setup(databases, TRANSPORT)
    assert (third.cell_created, third.cell.uuid, third.hosts) == (False, second.cell.uuid, ())
    assert len(cells.list_cells(databases)) == 2


def test_host_mappings(databases, cell1, api):
    add_nodes(databases.main(), 'node1')
    cells.discover_hosts(databases)
    with api.write() as connection:
        row = cells.get_host(connection, 'node1')
        assert (row['cell_uuid'], row['cell_name']) == (cell1, 'cell1')
        assert cells.unmap_host(connection, 'node1')
        assert not cells.unmap_host(connection, 'node1')
        assert cells.get_host(connection, 'node1') is None


def test_mappings_are_read_again_when_they_are_old(databases, cell1, monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(cells.time, 'monotonic', lambda: now[0])
    known, forever = cells.CellDatabases(databases), cells.CellDatabases(databases, refresh=None)
    assert [len(each.databases()) for each in (known, forever)] == [2, 2]
    cells.create_cell(databases, transport_url='rabbit://two', database_connection='sqlite:////x', name='late')
    now[0] += 59
    assert len(known.databases()) == 2
    now[0] += 2
    assert [database.name for database in known.databases()] == ['cell0', 'cell1', 'late']
    assert [database.name for database in known.enabled()] == ['cell1', 'late']
    assert len(forever.databases()) == 2
    # While the API database is silent what is known serves on.
    now[0] += 61

    @contextlib.contextmanager
    def refuse():
        raise exc.OperationalError('BEGIN', None, Exception(), connection_invalidated=True)
        yield

    monkeypatch.setattr(databases.api(), 'read', refuse)
    assert len(known.databases()) == 3
    assert 'Could not reload the cell mappings' in caplog.text


def test_the_queue_of_a_host(databases, cell1, statements):
    known = cells.CellDatabases(databases)
    known.databases()
    statements.clear()
    assert known.transport_url_of('anybody') == TRANSPORT
    assert statements == [], 'all cells share it'
    cells.create_cell(databases, transport_url='rabbit://two', database_connection='sqlite:////x', name='cell2')
    known.reload()
    with databases.api().write() as connection:
        for uuid, host in ((cell1, 'node1'), (known.databases()[2].cell.uuid, 'node2')):
            cells.map_hosts(connection, cells.get_cell(connection, uuid)['id'], [host])
    statements.clear()
    for _ in range(2):
        assert [known.transport_url_of(host) for host in ('node1', 'node2')] == [TRANSPORT, 'rabbit://two']
    assert len(statements) == 2
    assert known.transport_url_of('node3') is None
