"""``adopt copy`` makes Kilonova's tables equal to Nova's, as often as it runs, and wherever it was interrupted."""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
from typing import Any

import pytest
import sqlalchemy as sa

from kilonova.adopt import cloud, copy
from kilonova.cmd import options
from kilonova.db import engine, failures
from kilonova.db.migration import METADATA
from kilonova.db.nova import source
from kilonova.db.nova.merge import Counts
from kilonova.db.queries import adoption
from kilonova.db.queries import cells as cell_queries
from kilonova.objects import RequestSpec
from kilonova.objects.volume import AttachedVolume
from tests.adopt.nova import CELL0, HOST, SEEDS, Nova, envelope, fill, flavor
from tests.adopt.ours import Target


def test_all_rows_come_and_nova_stays_as_it_is(nova, target):
    fill(nova)
    before = nova.sums()
    copied = target.copy(nova)
    assert nova.sums() == before
    assert {table for (_, table), counts in copied.items() if counts.inserted} == {*copy.API_TABLES, *copy.CELL_TABLES}
    for (name, table), counts in copied.items():
        mine, theirs = target.rows(name, table), nova.rows(name, table)
        if table == 'services':
            theirs = [row for row in theirs if row['binary'] == 'nova-compute']
        assert counts.inserted == len(mine) == len(theirs)
        untouched = {'cell_id', 'spec', 'flavor', 'version'} | (
            {'connection_info'} if table == 'block_device_mapping' else set()
        )
        for one, other in zip(mine, theirs, strict=True):
            for column in (one.keys() & other.keys()) - untouched:
                assert _same(one[column], other[column]), (table, column)


def _same(one: Any, other: Any) -> bool:
    """Whether two columns say the same: SQLite keeps the text of a time as it was written."""
    if isinstance(one, str) and isinstance(other, str) and one != other:
        return datetime.datetime.fromisoformat(one) == datetime.datetime.fromisoformat(other)
    return bool(one == other)


def test_hosts_wait_for_their_kilonova_compute(nova, target):
    nova.run('cell1', "UPDATE services SET last_seen_up = '2026-01-01 00:00:00.000000', report_count = 9")
    target.copy(nova)
    (row,) = target.rows('cell1', 'services')
    assert (row['version'], row['last_seen_up'], row['report_count']) == (adoption.NOT_ADOPTED, None, 0)
    with target.cells.databases()[1].read() as connection:
        assert adoption.not_adopted(connection) == [HOST]


def test_the_ids_of_cells_are_kilonovas(nova, target):
    servers = fill(nova)
    target.copy(nova)
    found = {row['instance_uuid']: row['cell_id'] for row in target.rows('api', 'instance_mappings')}
    assert (found[servers['plain']], found[servers['failed']]) == (target.ids['cell1'], target.ids['cell0'])
    assert [row['cell_id'] for row in target.rows('api', 'host_mappings')] == [target.ids['cell1']]
    assert target.ids['cell1'] != nova.cell_ids['cell1']


def test_a_soft_deleted_server_can_be_restored(nova, target):
    nova.server(vm_state='soft-delete', mapping_queued_for_delete=1)
    nova.server(vm_state='deleted', deleted=9, mapping_queued_for_delete=1)
    target.copy(nova)
    assert [row['queued_for_delete'] for row in target.rows('api', 'instance_mappings')] == [0, 1]


def test_kilonovas_objects_read_what_was_copied(nova, target):
    uuid = fill(nova)['plain']
    target.copy(nova)
    (row,) = [row for row in target.rows('api', 'request_specs') if row['instance_uuid'] == uuid]
    assert RequestSpec.from_json(row['spec']).image.properties.hw_disk_bus == 'virtio'
    (row,) = [row for row in target.rows('cell1', 'instance_extra') if row['instance_uuid'] == uuid]
    assert json.loads(row['flavor'])['cur']['nova_object.data'] == flavor()['nova_object.data']


def test_a_second_run_writes_nothing(nova, target):
    fill(nova)
    target.copy(nova)
    before = target.everything()
    commits: list[str] = []
    stop = engine.listen(lambda name, statement, many: commits.append(statement.split()[0]))
    try:
        copied = target.copy(nova)
    finally:
        stop()
    assert {(one.inserted, one.changed, one.deleted) for one in copied.values()} == {(0, 0, 0)}
    assert set(commits) <= {'SELECT', 'COMMIT'}
    assert target.everything() == before


def test_what_changes_in_nova_changes_here(nova, target):
    servers = fill(nova)
    target.copy(nova)
    nova.run('cell1', "UPDATE instances SET vm_state = 'stopped' WHERE uuid = ?", servers['plain'])
    nova.run('cell1', "UPDATE tags SET tag = 'c' WHERE tag = 'a'")
    nova.run('api', "DELETE FROM key_pairs WHERE name = 'Key'")
    nova.add('api', 'key_pairs', name='Key', user_id='u', type='ssh', public_key='another')
    for table, column in (
        ('instance_extra', 'instance_uuid'),
        ('instance_info_caches', 'instance_uuid'),
        ('instances', 'uuid'),
    ):
        nova.run('cell1', f'DELETE FROM {table} WHERE {column} = ?', servers['deleted'])
    added = nova.server()
    copied = target.copy(nova)
    assert copied['cell1', 'instances'] == Counts(inserted=1, changed=1, deleted=1)
    assert {row['uuid']: row['vm_state'] for row in target.rows('cell1', 'instances')} == {
        servers['plain']: 'stopped',
        added: 'active',
    }
    assert [row['tag'] for row in target.rows('cell1', 'tags')] == ['B', 'b', 'c']
    assert [row['public_key'] for row in target.rows('api', 'key_pairs')] == ['another']


@pytest.mark.parametrize('seed', SEEDS)
def test_a_run_that_is_killed_is_simply_repeated(nova, target, templates, tmp_path, seed):
    fill(nova)
    whole = Target(tmp_path / 'whole', templates)
    whole.copy(nova)
    dice = random.Random(seed)
    for _ in range(3):
        killed_at = dice.randrange(150)
        child = os.fork()
        if child == 0:
            count = iter(range(killed_at))

            def strike(name: str, statement: str, many: bool, count: Any = count) -> None:
                if statement.startswith(('INSERT', 'UPDATE', 'DELETE', 'COMMIT')) and next(count, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)

            engine.listen(strike)
            databases = engine.Databases(target.urls['api'], target.urls['cell1'])
            with cloud.opened([nova.conf], options.new) as opened:
                copy.run(opened, databases, cell_queries.CellDatabases(databases))
            os._exit(0)
        os.waitpid(child, 0)
    target.copy(nova)
    mine, theirs = target.everything(), whole.everything()
    for key in mine.keys() - {('api', 'cell_mappings')}:
        assert mine[key] == theirs[key], key


def test_more_rows_than_a_batch(nova, target, monkeypatch):
    monkeypatch.setattr(source, 'BATCH', 2)
    monkeypatch.setattr('kilonova.db.nova.merge.BATCH', 2)
    servers = [nova.server() for _ in range(7)]
    for server in servers:
        for tag in ('a', 'b', 'c'):
            nova.add('cell1', 'tags', resource_id=server, tag=tag)
    assert target.copy(nova)['cell1', 'tags'].inserted == 21
    nova.run('cell1', "DELETE FROM tags WHERE tag = 'b'")
    assert target.copy(nova)['cell1', 'tags'].deleted == 7
    assert len(target.rows('cell1', 'instances')) == 7


# --- what is converted
def volume(nova: Nova, server: str, info: object, **more: Any) -> None:
    nova.add(
        'cell1',
        'block_device_mapping',
        uuid='b',
        instance_uuid=server,
        destination_type='volume',
        source_type='volume',
        volume_id='4c5d',
        attachment_id='a',
        connection_info=info,
        **more,
    )


CONNECTION = {
    'driver_volume_type': 'rbd',
    'data': {'name': 'volumes/volume-4c5d'},
    'connector': {'host': 'cell1-host', 'ip': '192.0.2.1'},
    'serial': '4c5d',
    'status': 'attached',
}


def test_an_attached_volume_knows_its_host(nova, target):
    volume(nova, nova.server(), CONNECTION)
    target.copy(nova)
    (row,) = target.rows('cell1', 'block_device_mapping')
    read = AttachedVolume.read(row)
    assert (read.host, read.kind, read.connection['name']) == (HOST, 'rbd', 'volumes/volume-4c5d')
    assert read.known_at[HOST]['connector'] == {'host': 'cell1-host', 'ip': '192.0.2.1'}
    assert 'connector' not in json.loads(row['connection_info'])


def test_a_volume_of_a_server_without_host_is_reserved(nova, target):
    server = nova.server(host=None, node=None, compute_id=None, vm_state='shelved_offloaded')
    volume(nova, server, CONNECTION)
    target.copy(nova)
    (row,) = target.rows('cell1', 'block_device_mapping')
    read = AttachedVolume.read(row)
    assert (read.host, read.kind, dict(read.known_at)) == (None, None, {})


def test_the_tag_of_an_interface_comes_to_its_vif(nova, target):
    server = nova.server()
    nova.run(
        'cell1',
        'UPDATE instance_info_caches SET network_info = ?',
        json.dumps([{'id': 'port-1', 'address': 'fa:16:3e:00:00:01'}, {'id': 'port-2'}]),
    )
    nova.add('cell1', 'virtual_interfaces', uuid='port-1', instance_uuid=server, tag='front')
    target.copy(nova)
    (row,) = target.rows('cell1', 'instance_info_caches')
    assert [vif.get('tag') for vif in json.loads(row['network_info'])] == ['front', None]


def test_usages_of_one_volume_and_server_are_added_up(nova, target):
    server = nova.server()
    for reads, since in ((10, 3), (20, 4)):
        nova.add('cell1', 'volume_usage_cache', volume_id='v', instance_uuid=server, tot_reads=reads, curr_reads=since)
    nova.add('cell1', 'volume_usage_cache', volume_id='v', instance_uuid='purged', tot_reads=1)
    target.copy(nova)
    (row,) = target.rows('cell1', 'volume_usage_cache')
    assert (row['tot_reads'], row['curr_reads']) == (33, 4)
    nova.run('cell1', 'DELETE FROM volume_usage_cache')
    assert target.copy(nova)['cell1', 'volume_usage_cache'].deleted == 1


def test_a_nova_without_ids_of_nodes_gets_them(tmp_path, target):
    nova = Nova(tmp_path / 'nova', '27')
    server = nova.server()
    nova.add(
        'cell1', 'migrations', uuid='m', instance_uuid=server, status='finished', dest_compute=HOST, dest_node=HOST
    )
    target.copy(nova)
    assert [row['compute_id'] for row in target.rows('cell1', 'instances')] == [nova.nodes['cell1']]
    assert [row['dest_compute_id'] for row in target.rows('cell1', 'migrations')] == [nova.nodes['cell1']]


# --- what is refused
def test_a_row_that_cannot_be_converted_is_named(nova, target):
    uuid = nova.server(extra_numa_topology=envelope('InstanceNUMATopology', '9.0', cells=[]))
    with pytest.raises(copy.NotCopied, match=f'cell1, table instance_extra, row {uuid}: numa_topology: Instance'):
        target.copy(nova)


@pytest.mark.parametrize('info', ['[', '[]'])
def test_a_connection_that_is_none_is_named(nova, target, info):
    volume(nova, nova.server(), info)
    with pytest.raises(copy.NotCopied, match='cell1, table block_device_mapping, row b: '):
        target.copy(nova)


def test_an_error_of_kilonovas_database_is_not_taken_for_one_of_nova(nova, target):
    nova.server()
    database = target.cells.databases()[1]
    with database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON instances BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
    with pytest.raises(sa.exc.IntegrityError, match='disk is full') as raised:
        target.copy(nova)
    assert failures.database_of(raised.value) is database


def test_a_mapping_to_no_cell_is_named(nova, target):
    nova.server(mapping_cell_id=77)
    with pytest.raises(copy.NotCopied, match='there is no cell with the id 77'):
        target.copy(nova)


def test_a_cell_that_kilonova_lacks(tmp_path, target):
    nova = Nova(tmp_path / 'nova', cells=('cell1', 'west'))
    with pytest.raises(copy.NotReady, match=r"no cell named 'west', .*create_cell --name west"):
        target.copy(nova)


def test_no_cell0_yet(nova, target):
    with target.databases.api().write() as connection:
        connection.exec_driver_sql(f"DELETE FROM cell_mappings WHERE uuid = '{CELL0}'")
    target.cells.reload()
    with pytest.raises(copy.NotReady, match='map_cell0'):
        target.copy(nova)


@pytest.mark.parametrize(
    ('name', 'statement', 'table'),
    [
        (
            'api',
            "INSERT INTO scheduler_decisions (request_id, instance_uuid, created_at, body) VALUES ('r', 'i', 0, '{}')",
            'scheduler_decisions',
        ),
        (
            'cell1',
            "INSERT INTO services (host, topic, report_count, deleted, version) VALUES ('c', 'compute', 0, 0, 80)",
            'services',
        ),
    ],
)
def test_a_cloud_that_works_already_is_not_written_over(nova, target, name, statement, table):
    database = target.databases.api() if name == 'api' else target.cells.databases()[1]
    with database.write() as connection:
        connection.exec_driver_sql(statement)
    before = target.everything()
    with pytest.raises(copy.NotReady, match=f'database has rows in {table}'):
        target.copy(nova)
    assert target.everything() == before


def test_a_database_without_tables_or_of_nova(nova, target, tmp_path):
    for url in (f'sqlite:///{tmp_path}/new.db', nova.url('api')):
        databases = engine.Databases(url, target.urls['cell1'])
        with cloud.opened([nova.conf], options.new) as opened, pytest.raises(copy.NotReady, match='at revision'):
            copy.run(opened, databases, target.cells)


def test_every_table_of_kilonova_is_copied_or_named():
    for schema, tables in (('api', copy.API_TABLES), ('cell', copy.CELL_TABLES)):
        known = {name for name in METADATA[schema].tables if not name.startswith('shadow_')}
        assert known == {*tables, *copy.NOT_COPIED[schema]}
