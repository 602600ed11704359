"""``adopt check``, ``copy``, ``begin`` and ``back`` with the databases of both clouds on MariaDB and on PostgreSQL."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from kilonova.adopt import back, begin, check, cloud, copy
from kilonova.cmd import options
from kilonova.db import engine, migration
from kilonova.db.nova import mark, source
from kilonova.db.nova.merge import Counts
from kilonova.db.queries import cells as cell_queries
from tests.adopt import on_server
from tests.adopt.nova import Nova
from tests.integration import database_servers


@pytest.fixture(scope='module', params=['mariadb', 'postgresql'])
def server(request):
    with getattr(database_servers, request.param)() as started:
        yield started


def make(server: database_servers.Server, prefix: str) -> engine.Databases:
    """Kilonova's databases, with cell0 and cell1."""
    urls = {}
    for name in ('api', 'cell0', 'cell1'):
        server.create(f'{prefix}_{name}')
        urls[name] = server.url(f'{prefix}_{name}')
        database = engine.Database(urls[name], name)
        migration.sync(database, 'api' if name == 'api' else 'cell')
        database.dispose()
    databases = engine.Databases(urls['api'], urls['cell1'])
    cell_queries.map_cell0(databases, urls['cell0'])
    cell_queries.create_cell(databases, name='cell1', transport_url='fake://', database_connection=urls['cell1'])
    return databases


def checksum(url: str) -> list[tuple[str, list[tuple[object, ...]]]]:
    """All rows of all tables."""
    made, tables = sa.create_engine(url), sa.MetaData()
    with made.connect() as connection:
        tables.reflect(connection)
        found = [
            (table.name, sorted(map(tuple, connection.execute(sa.select(table))), key=repr))
            for table in tables.sorted_tables
        ]
    made.dispose()
    return found


def test_a_nova_is_checked_and_copied(server, tmp_path):
    nova = Nova(tmp_path / 'nova')
    uuid = nova.server(display_name='größer')
    for tag in ('b', 'a', 'C'):
        nova.add('cell1', 'tags', resource_id=uuid, tag=tag)
    nova.add('api', 'key_pairs', name='Key', user_id='u', type='ssh', public_key='AAAA')
    url = on_server.move(nova, server, 'nova')
    ours = make(server, 'ours')
    before = [checksum(url(name)) for name in ('api', 'cell0', 'cell1')]
    with cloud.opened([nova.conf], options.new) as opened:
        assert check.run(opened, 20).obstacles.found == {}
        first = copy.run(opened, ours, cells := cell_queries.CellDatabases(ours))
        again = copy.run(opened, ours, cells)
        with pytest.raises(source.NovaUnreadable, match=r'(?i)read.only'), opened.api.read() as connection:
            connection.exec_driver_sql('DELETE FROM cell_mappings')
    assert [checksum(url(name)) for name in ('api', 'cell0', 'cell1')] == before
    assert first['cell1', 'instances'] == Counts(inserted=1) and first['cell1', 'tags'].inserted == 3
    assert {(one.inserted, one.changed, one.deleted) for one in again.values()} == {(0, 0, 0)}
    with ours.api().write() as connection:
        copied = connection.exec_driver_sql('SELECT max(id) FROM key_pairs').scalar_one()
        connection.exec_driver_sql("INSERT INTO key_pairs (name, user_id, type) VALUES ('new', 'u', 'ssh')")
        assert connection.exec_driver_sql("SELECT id FROM key_pairs WHERE name = 'new'").scalar_one() > copied
    ours.dispose()


def test_a_nova_is_taken_over_and_given_back(server, tmp_path):
    nova = Nova(tmp_path / 'nova')
    uuid = nova.server(created_at='2026-01-02 03:04:05.000000', updated_at='2026-01-02 03:04:06.000000')
    nova.add('api', 'key_pairs', name='Key', user_id='u', type='ssh', public_key='AAAA')
    nova.add('api', 'flavors', name='small', flavorid='1', memory_mb=512, vcpus=1, root_gb=1)
    url = on_server.move(nova, server, 'round')
    ours = make(server, 'round_ours')
    cells = cell_queries.CellDatabases(ours)
    if server.dialect == 'mysql':
        made = sa.create_engine(url('api'))
        with made.begin() as connection:
            connection.exec_driver_sql('ALTER TABLE flavors CONVERT TO CHARACTER SET utf8mb3')
        made.dispose()
    before = [checksum(url(name)) for name in ('api', 'cell0', 'cell1')]
    with cloud.opened([nova.conf], options.new, writable=True) as opened:
        copy.run(opened, ours, cells)
        begin.run(opened, ours, cells)
        assert begin.marked(opened) == ['api', 'cell0', 'cell1']
        assert [checksum(url(name)) for name in ('api', 'cell1')] != [before[0], before[2]]
        assert back.run(back.plan(opened, ours, cells))['api', 'key_pairs'] == Counts()
    assert [checksum(url(name)) for name in ('api', 'cell0', 'cell1')] == before
    with ours.api().write() as connection:
        connection.exec_driver_sql("UPDATE adoptions SET state = 'begun'")
        connection.exec_driver_sql("INSERT INTO key_pairs (name, user_id, type) VALUES ('new', 'u', 'ssh')")
        connection.exec_driver_sql("UPDATE flavors SET name = '\U0001f680'")
    with ours.main().write() as connection:
        changed = "UPDATE instances SET vm_state = 'stopped', updated_at = '2026-11-01 10:00:00.500000'"
        connection.exec_driver_sql(changed)
        connection.exec_driver_sql(f"INSERT INTO tags (resource_id, tag) VALUES ('{uuid}', 'new')")
    with cloud.opened([nova.conf], options.new, writable=True) as opened:
        mark.put(opened.api)
        if server.dialect == 'mysql':
            (found,) = back.plan(opened, ours, cells).obstacles
            assert 'name has a character that the character set of Nova lacks' in found
        with ours.api().write() as connection:
            connection.exec_driver_sql("UPDATE flavors SET name = 'big'")
        done = back.run(back.plan(opened, ours, cells))
        assert {key: counts for key, counts in done.items() if counts != Counts()} == {
            ('api', 'key_pairs'): Counts(inserted=1),
            ('api', 'flavors'): Counts(changed=1),
            ('cell1', 'instances'): Counts(changed=1),
            ('cell1', 'tags'): Counts(inserted=1),
        }
        again = back.plan(opened, ours, cells) if begin.marked(opened) else None
        assert again is None
    with cloud.opened([nova.conf], options.new) as opened, opened.cells[1].database.read() as connection:
        (row,) = connection.exec_driver_sql('SELECT vm_state, updated_at FROM instances').all()
        assert row[0] == 'stopped' and str(row[1]).startswith('2026-11-01 10:00:00')
    ours.dispose()


def test_a_database_that_goes_away_in_the_middle_is_named_and_the_copy_is_repeated(server, tmp_path):
    nova = Nova(tmp_path / 'nova')
    for _ in range(5):
        nova.server()
    on_server.move(nova, server, 'gone')
    ours = make(server, 'gone_ours')
    cells = cell_queries.CellDatabases(ours)

    def stop(line: str) -> None:
        if line.startswith('cell1 services'):
            server.stop()

    with (
        pytest.raises((source.NovaUnreadable, sa.exc.SQLAlchemyError)),
        cloud.opened([nova.conf], options.new) as opened,
    ):
        copy.run(opened, ours, cells, stop)
    server.start()
    with cloud.opened([nova.conf], options.new) as opened:
        assert copy.run(opened, ours, cells)['cell1', 'instances'].inserted == 5
    ours.dispose()
