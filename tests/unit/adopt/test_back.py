"""``adopt begin`` marks the databases of a Nova, and ``adopt back`` writes into them what has changed since."""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import signal
import uuid as uuids
from typing import Any

import pytest

from kilonova.adopt import back, begin, cloud, copy
from kilonova.cmd import options
from kilonova.db import engine
from kilonova.db.nova import mark, source
from kilonova.db.nova.merge import Counts
from kilonova.db.queries import adoption
from kilonova.db.queries import cells as cell_queries
from kilonova.objects import RequestSpec
from tests.adopt.nova import HOST, SEEDS, Nova, fill, recorded
from tests.adopt.ours import Target

NOW = '2026-11-01 10:00:00.123456'


def everything(nova: Nova) -> dict[tuple[str, str], list[Any]]:
    """All rows of a Nova with one cell."""
    return {
        (name, table): nova.rows(name, table)
        for name in ('api', 'cell0', 'cell1')
        for (table,) in nova.run(
            name, "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'sqlite_sequence'"
        )
    }


def taken_over(nova: Nova, target: Target) -> dict[str, str]:
    servers = fill(nova)
    target.copy(nova)
    target.begin(nova)
    return servers


def written(done: dict[tuple[str, str], Counts]) -> dict[tuple[str, str], Counts]:
    return {key: counts for key, counts in done.items() if counts != Counts()}


# --- begin
def test_begin_marks_all_databases_and_the_versions_of_computes(nova, target):
    taken_over(nova, target)
    with cloud.opened([nova.conf], options.new) as opened:
        assert begin.marked(opened) == ['api', 'cell0', 'cell1']
    versions = dict(nova.run('cell1', 'SELECT binary, version FROM services'))
    assert versions == {'nova-compute': mark.VERSION, 'nova-conductor': 74}
    with target.databases.api().read() as connection:
        found = adoption.takeover(connection)
    assert found is not None and found.state is adoption.AdoptionState.BEGUN
    assert found.fingerprints['cell1']['instances'][0] == 2


def test_begin_may_be_repeated(nova, target):
    taken_over(nova, target)
    before = everything(nova)
    target.begin(nova)
    assert everything(nova) == before


@pytest.mark.parametrize('killed_at', range(4))
def test_begin_that_is_killed_is_repeated(nova, target, killed_at):
    fill(nova)
    target.copy(nova)
    child = os.fork()
    if child == 0:
        writes = iter(range(killed_at))
        put = mark.put

        def strike(database: Any) -> None:
            if next(writes, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            put(database)

        mark.put = strike  # type: ignore[assignment]
        Target.begin(target, nova)
        os._exit(0)
    os.waitpid(child, 0)
    target.begin(nova)
    with cloud.opened([nova.conf], options.new) as opened:
        assert begin.marked(opened) == ['api', 'cell0', 'cell1']
    assert target.plan(nova).obstacles == []


def test_begin_needs_a_copy_after_which_nova_has_not_changed(nova, target):
    servers = fill(nova)
    target.copy(nova)
    nova.run('cell1', "UPDATE instances SET vm_state = 'stopped', updated_at = ? WHERE uuid = ?", NOW, servers['plain'])
    before = nova.sums()
    with pytest.raises(
        copy.NotReady, match=r"table instances of Nova's cell1 database has changed since the last copy"
    ):
        target.begin(nova)
    assert nova.sums() == before
    target.copy(nova)
    target.begin(nova)


def test_begin_needs_a_nova_that_does_not_run(nova, target):
    fill(nova)
    now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S.%f')
    nova.run('cell1', "UPDATE services SET last_seen_up = ? WHERE binary = 'nova-conductor'", now)
    target.copy(nova)
    with pytest.raises(copy.NotReady, match=r'Nova still runs: nova-conductor on ctl reported \d seconds ago'):
        target.begin(nova)


def test_a_marked_nova_is_not_copied_again(nova, target, tmp_path, templates):
    taken_over(nova, target)
    other = Target(tmp_path / 'other', templates)
    for one in (target, other):
        with pytest.raises(copy.NotReady, match='is marked: Kilonova has taken over this Nova'):
            one.copy(nova)


# --- back: nothing has changed
@pytest.mark.parametrize('release', ['27', '28', '29', '31', '34'])
def test_a_nova_in_whose_place_nothing_was_done_is_as_before(tmp_path, target, release):
    nova = Nova(tmp_path / 'nova', release)
    fill(nova)
    before = everything(nova)
    target.copy(nova)
    target.begin(nova)
    assert everything(nova) != before
    assert written(target.back(nova)) == {}
    assert everything(nova) == before


def test_a_recorded_nova_in_whose_place_nothing_was_done_is_as_before(tmp_path, target):
    conf = recorded(tmp_path / 'nova')
    nova = Nova.__new__(Nova)
    nova.directory, nova.conf = tmp_path / 'nova', conf
    before = everything(nova)
    target.copy(nova)
    target.begin(nova)
    assert written(target.back(nova)) == {}
    assert everything(nova) == before


def test_ours_do_not_start_again(nova, target):
    taken_over(nova, target)
    target.back(nova)
    with target.databases.api().read() as connection:
        found = adoption.takeover(connection)
    assert found is not None and found.state is adoption.AdoptionState.BACK
    with pytest.raises(copy.NotReady, match='this cloud was given back to Nova'):
        target.begin(nova)


def test_the_way_back_may_be_checked_as_often_as_one_likes(nova, target):
    servers = taken_over(nova, target)
    target.run('cell1', "UPDATE instances SET vm_state = 'stopped' WHERE uuid = ?", servers['plain'])
    before, ours = everything(nova), target.everything()
    plan = target.plan(nova)
    assert plan.counts == {('cell1', 'instances'): Counts(changed=1)}
    assert (everything(nova), target.everything()) == (before, ours)


@pytest.mark.parametrize('changed', [False, True])
def test_more_servers_cost_no_more_statements(nova, target, changed):
    def statements() -> int:
        count = 0

        def one(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            nonlocal count
            count += statement.startswith('SELECT')

        source.event.listen(source.sa.Engine, 'before_cursor_execute', one)
        try:
            target.plan(nova)
        finally:
            source.event.remove(source.sa.Engine, 'before_cursor_execute', one)
        return count

    def server() -> None:
        uuid = nova.server()
        nova.add('cell1', 'virtual_interfaces', uuid=str(uuids.uuid4()), instance_uuid=uuid, tag='front')
        nova.add(
            'cell1',
            'block_device_mapping',
            uuid=str(uuids.uuid4()),
            instance_uuid=uuid,
            destination_type='volume',
            volume_id='v',
            connection_info={'driver_volume_type': 'rbd', 'data': {}},
        )

    counts = []
    for _ in range(2):
        for _server in range(4):
            server()
        target.run('api', 'DELETE FROM adoptions')
        with cloud.opened([nova.conf], options.new, writable=True) as opened:
            for database in (opened.api, *(cell.database for cell in opened.cells)):
                mark.remove(database)
        target.copy(nova)
        target.begin(nova)
        if changed:
            target.run('cell1', "UPDATE block_device_mapping SET device_name = '/dev/vdz'")
            target.run('cell1', 'UPDATE instance_info_caches SET updated_at = ?', NOW)
        counts.append(statements())
    assert counts[0] == counts[1]


# --- back: what has changed
def work(nova: Nova, target: Target, servers: dict[str, str]) -> str:
    """Change one of everything under Kilonova; return the uuid of a new server."""
    plain = servers['plain']
    target.run('cell1', 'UPDATE services SET version = 80, disabled = 1, report_count = 7, last_seen_up = ?', NOW)
    target.run(
        'cell1',
        "UPDATE instances SET vm_state = 'stopped', power_state = 4, updated_at = ? WHERE uuid = ?",
        NOW,
        plain,
    )
    target.run('cell1', 'DELETE FROM tags WHERE tag = ?', 'a')
    target.run('cell1', "INSERT INTO tags (resource_id, tag, created_at) VALUES (?, 'new', ?)", plain, NOW)
    target.run('cell1', 'UPDATE instance_metadata SET deleted = id, deleted_at = ?', NOW)
    target.run('api', "DELETE FROM key_pairs WHERE name = 'Key'")
    target.run('api', "UPDATE flavors SET description = 'ours', updated_at = ?", NOW)
    new = str(uuids.uuid4())
    (row,) = [row for row in target.rows('cell1', 'instances') if row['uuid'] == plain]
    insert(target, 'cell1', 'instances', {**row, 'id': 1000, 'uuid': new, 'vm_state': 'active', 'created_at': NOW})
    for table in ('instance_extra', 'instance_info_caches'):
        (row,) = [row for row in target.rows('cell1', table) if row['instance_uuid'] == plain]
        insert(target, 'cell1', table, {**row, 'id': 1000, 'instance_uuid': new})
    vif = {'id': 'port-1', 'address': 'fa:16:3e:00:00:01', 'tag': 'front', 'meta': {'before': {'a': 1}, 'rxtx_cap': 1}}
    target.run(
        'cell1', 'UPDATE instance_info_caches SET network_info = ? WHERE instance_uuid = ?', json.dumps([vif]), new
    )
    for table in ('instance_mappings', 'request_specs'):
        (row,) = [row for row in target.rows('api', table) if row['instance_uuid'] == plain]
        insert(target, 'api', table, {**row, 'id': 1000, 'instance_uuid': new})
    connection = {
        'attached_to': HOST,
        'hosts': {
            HOST: {
                'connector': {'host': HOST, 'ip': '192.0.2.1'},
                'connection': {'driver_volume_type': 'rbd', 'name': 'volumes/v'},
            }
        },
        'driver_volume_type': 'rbd',
        'data': {'name': 'volumes/v'},
        'serial': 'v',
    }
    target.run(
        'cell1',
        'INSERT INTO block_device_mapping (uuid, instance_uuid, destination_type, source_type, volume_id, '
        "connection_info, deleted, no_device, delete_on_termination) VALUES ('d9', ?, 'volume', 'volume', 'v', ?, 0, "
        '0, 0)',
        new,
        json.dumps(connection),
    )
    return new


def insert(target: Target, name: str, table: str, row: dict[str, Any]) -> None:
    names = ', '.join(f'"{key}"' for key in row)
    target.run(name, f'INSERT INTO {table} ({names}) VALUES ({", ".join("?" * len(row))})', *row.values())


def test_what_has_changed_comes_to_nova(nova, target):
    servers = taken_over(nova, target)
    new = work(nova, target, servers)
    done = written(target.back(nova))
    assert done == {
        ('api', 'flavors'): Counts(changed=1),
        ('api', 'key_pairs'): Counts(deleted=1),
        ('api', 'instance_mappings'): Counts(inserted=1),
        ('api', 'request_specs'): Counts(inserted=1),
        ('cell1', 'services'): Counts(changed=1),
        ('cell1', 'instances'): Counts(inserted=1, changed=1),
        ('cell1', 'instance_extra'): Counts(inserted=1),
        ('cell1', 'instance_info_caches'): Counts(inserted=1),
        ('cell1', 'instance_metadata'): Counts(changed=1),
        ('cell1', 'tags'): Counts(inserted=1, deleted=1),
        ('cell1', 'block_device_mapping'): Counts(inserted=1),
    }
    found = {row['uuid']: row for row in nova.rows('cell1', 'instances')}
    assert (found[servers['plain']]['vm_state'], found[servers['plain']]['power_state']) == ('stopped', 4)
    assert (found[new]['id'], found[new]['host']) == (1000, HOST)
    (service,) = [row for row in nova.rows('cell1', 'services') if row['binary'] == 'nova-compute']
    assert (service['version'], service['disabled'], service['report_count']) == (74, 1, 0)
    (mapping,) = [row for row in nova.rows('api', 'instance_mappings') if row['instance_uuid'] == new]
    assert mapping['cell_id'] == nova.cell_ids['cell1'] != target.ids['cell1']
    (disk,) = [row for row in nova.rows('cell1', 'block_device_mapping') if row['uuid'] == 'd9']
    assert json.loads(disk['connection_info']) == {
        'driver_volume_type': 'rbd',
        'data': {'name': 'volumes/v'},
        'serial': 'v',
        'connector': {'host': HOST, 'ip': '192.0.2.1'},
    }
    (cache,) = [row for row in nova.rows('cell1', 'instance_info_caches') if row['instance_uuid'] == new]
    assert json.loads(cache['network_info']) == [
        {'id': 'port-1', 'address': 'fa:16:3e:00:00:01', 'meta': {'rxtx_cap': 1}}
    ]
    (interface,) = nova.rows('cell1', 'virtual_interfaces')
    assert (interface['uuid'], interface['tag'], interface['address'], interface['deleted']) == (
        'port-1',
        'front',
        'fa:16:3e:00:00:01/port-1',
        0,
    )


def test_what_came_to_nova_can_be_taken_over_again(nova, target, tmp_path, templates):
    """What Kilonova wrote means for a copy what Kilonova had."""
    servers = taken_over(nova, target)
    work(nova, target, servers)
    target.back(nova)
    again = Target(tmp_path / 'again', templates)
    again.copy(nova)
    mine, theirs = again.everything(), target.everything()
    own = {('api', 'cell_mappings'), ('api', 'adoptions'), ('cell1', 'services'), ('cell1', 'tags')}
    for key in mine.keys() - own:
        assert len(mine[key]) == len(theirs[key]), key
        for one, other in zip(mine[key], theirs[key], strict=True):
            changed = {name for name in one if not _same(one[name], other[name])}
            assert changed <= {'connection_info', 'network_info'}, (key, changed)
    for one, other in zip(mine['cell1', 'block_device_mapping'], theirs['cell1', 'block_device_mapping'], strict=True):
        assert json.loads(one['connection_info'] or '{}') == json.loads(other['connection_info'] or '{}')


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str) and one != other and one[:2] == other[:2] == '20':
        return datetime.datetime.fromisoformat(one) == datetime.datetime.fromisoformat(other)
    return bool(one == other)


@pytest.mark.parametrize('seed', SEEDS)
def test_a_way_back_that_is_killed_is_simply_repeated(nova, target, tmp_path, templates, seed):
    servers = taken_over(nova, target)
    work(nova, target, servers)
    twin = Nova.__new__(Nova)
    twin.__dict__.update(nova.__dict__)
    twin.directory = tmp_path / 'twin'
    twin.directory.mkdir()
    for path in nova.directory.glob('*.db'):
        (twin.directory / path.name).write_bytes(path.read_bytes())
    twin.conf = twin.directory / 'nova.conf'
    twin.conf.write_text(nova.conf.read_text().replace(str(nova.directory), str(twin.directory)))
    for name in ('cell0', 'cell1'):
        twin.run('api', 'UPDATE cell_mappings SET database_connection = ? WHERE name = ?', twin.url(name), name)
    dice = random.Random(seed)
    for _ in range(3):
        killed_at = dice.randrange(40)
        child = os.fork()
        if child == 0:
            count = iter(range(killed_at))

            def strike(connection: Any, cursor: Any, statement: str, *_: Any, count: Any = count) -> None:
                if statement.startswith(('INSERT', 'UPDATE', 'DELETE', 'DROP')) and next(count, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)

            source.event.listen(source.sa.Engine, 'before_cursor_execute', strike)
            databases = engine.Databases(target.urls['api'], target.urls['cell1'])
            with cloud.opened([twin.conf], options.new, writable=True) as opened:
                back.run(back.plan(opened, databases, cell_queries.CellDatabases(databases)))
            os._exit(0)
        _pid, status = os.waitpid(child, 0)
        if status == 0:
            break
    else:
        target.back(twin)
    target.run('api', "UPDATE adoptions SET state = 'begun'")
    target.back(nova)
    mine, theirs = everything(twin), everything(nova)
    mapped = ('api', 'cell_mappings')
    assert {key: rows for key, rows in mine.items() if key != mapped} == {
        key: rows for key, rows in theirs.items() if key != mapped
    }


def test_a_server_that_was_deleted_and_archived_is_deleted_in_nova(nova, target):
    servers = taken_over(nova, target)
    plain = servers['plain']
    for table, column in (('instances', 'uuid'), ('instance_extra', 'instance_uuid')):
        (row,) = [row for row in target.rows('cell1', table) if row[column] == plain]
        insert(target, 'cell1', f'shadow_{table}', {**row, 'deleted': row['id'], 'deleted_at': NOW})
        target.run('cell1', f'DELETE FROM {table} WHERE {column} = ?', plain)
    done = target.back(nova)
    assert done['cell1', 'instances'] == Counts(deleted=1)
    (row,) = [row for row in nova.rows('cell1', 'instances') if row['uuid'] == plain]
    assert (row['deleted'], row['deleted_at']) == (row['id'], NOW)


def test_a_server_that_was_purged_is_deleted_in_nova(nova, target):
    plain = taken_over(nova, target)['plain']
    nova_row = {row['uuid']: row for row in nova.rows('cell1', 'instances')}[plain]
    for table, column in (('instances', 'uuid'), ('instance_extra', 'instance_uuid')):
        target.run('cell1', f'DELETE FROM {table} WHERE {column} = ?', plain)
    target.back(nova)
    (row,) = [row for row in nova.rows('cell1', 'instances') if row['uuid'] == plain]
    assert (row['deleted'], row['vm_state']) == (row['id'], 'deleted')
    assert _same(row['deleted_at'], nova_row['created_at'])


def test_a_soft_deleted_server_is_queued_for_deletion(nova, target):
    plain = taken_over(nova, target)['plain']
    target.run('cell1', "UPDATE instances SET vm_state = 'soft-delete' WHERE uuid = ?", plain)
    target.back(nova)
    found = {row['instance_uuid']: row['queued_for_delete'] for row in nova.rows('api', 'instance_mappings')}
    assert found[plain] == 1


def test_the_counters_of_a_volume_come_to_one_row(nova, target):
    server = nova.server()
    for reads, since in ((10, 3), (20, 4)):
        nova.add('cell1', 'volume_usage_cache', volume_id='v', instance_uuid=server, tot_reads=reads, curr_reads=since)
    nova.add('cell1', 'volume_usage_cache', volume_id='v', instance_uuid='purged', tot_reads=1)
    target.copy(nova)
    target.begin(nova)
    target.run('cell1', 'UPDATE volume_usage_cache SET curr_reads = 50')
    assert written(target.back(nova)) == {('cell1', 'volume_usage_cache'): Counts(changed=1, deleted=1)}
    found = [
        (row['instance_uuid'], row['tot_reads'], row['curr_reads']) for row in nova.rows('cell1', 'volume_usage_cache')
    ]
    assert sorted(found) == sorted([(server, 33, 50), ('purged', 1, None)])


@pytest.mark.parametrize(
    ('release', 'props', 'spec'),
    [('27', '1.34', '1.14'), ('29', '1.37', '1.15'), ('31', '1.39', '1.15'), ('34', '1.43', '1.15')],
)
def test_objects_get_versions_that_the_release_reads(tmp_path, target, release, props, spec):
    nova = Nova(tmp_path / 'nova', release)
    uuid = fill(nova)['plain']
    target.copy(nova)
    target.begin(nova)
    (row,) = [row for row in target.rows('api', 'request_specs') if row['instance_uuid'] == uuid]
    changed = RequestSpec.from_json(row['spec'])
    changed.num_instances = 2
    target.run('api', 'UPDATE request_specs SET spec = ? WHERE instance_uuid = ?', changed.to_json(), uuid)
    target.back(nova)
    (row,) = [row for row in nova.rows('api', 'request_specs') if row['instance_uuid'] == uuid]
    stored = json.loads(row['spec'])
    image = stored['nova_object.data']['image']['nova_object.data']['properties']
    assert (stored['nova_object.version'], image['nova_object.version']) == (spec, props)


def test_a_device_of_a_mediated_type_stays_with_kilonova(nova, target):
    taken_over(nova, target)
    target.run(
        'cell1',
        'INSERT INTO pci_devices (uuid, compute_node_id, address, product_id, vendor_id, dev_type, dev_id, label, '
        "status, deleted) VALUES ('u', ?, ?, '2330', '10de', 'type-MDEV', 'm', 'l', 'available', 0)",
        nova.nodes['cell1'],
        str(uuids.uuid4()),
    )
    plan = target.plan(nova)
    assert plan.staying == {'mediated devices, which Nova finds in the domains of their guests': 1}
    assert written(target.back(nova)) == {}


# --- what is in the way
OPERATION = (
    'INSERT INTO operations (uuid, kind, instance_uuid, slot, args, context, position, outputs, attempt, not_before, '
    "failed, undoing, cancelled, written) VALUES ('o1', 'stop', 's1', 'run', '{}', '{}', 0, '{}', 1, 0, 0, 0, 0, '{}')"
)
MIGRATION = (
    'INSERT INTO migrations (uuid, instance_uuid, status, migration_type, source_compute, dest_compute, deleted, '
    "hidden, cross_cell_move) SELECT 'm', uuid, 'finished', 'resize', 'a', 'b', 0, 0, 0 FROM instances "
    'WHERE deleted = 0'
)


@pytest.mark.parametrize(
    ('name', 'statement', 'text'),
    [
        ('cell1', OPERATION, r'server s1: operation stop \(o1\) has not ended'),
        ('api', OPERATION, r'server s1: operation stop \(o1\) has not ended'),
        (
            'api',
            "INSERT INTO build_requests (instance_uuid, project_id) VALUES ('s2', 'p')",
            'server s2 is being created',
        ),
        (
            'cell1',
            "UPDATE instances SET task_state = 'powering-off' WHERE deleted = 0",
            r'is active, powering-off\. Wait',
        ),
        (
            'cell1',
            "UPDATE services SET version = 80, last_seen_up = strftime('%Y-%m-%d %H:%M:%f', 'now')",
            f'kilonova-compute on {HOST} reported \\d seconds ago. Stop it',
        ),
        (
            'cell1',
            MIGRATION,
            'its resize from a to b is finished. Wait for its end, and confirm or revert a resize',
        ),
        ('api', 'UPDATE host_mappings SET cell_id = 77', f'host {HOST} is in a cell that Nova does not have'),
        (
            'api',
            f"UPDATE flavors SET name = '{'x' * 256}'",
            'api, table flavors, row [0-9]+: name has 256 characters, and at most 255 in Nova',
        ),
    ],
)
def test_what_is_in_the_way_is_named_and_nothing_written(nova, target, name, statement, text):
    taken_over(nova, target)
    before = everything(nova)
    target.run(name, statement)
    (found,) = target.plan(nova).obstacles
    assert re.search(text, found)
    assert everything(nova) == before


def test_a_resize_that_nova_began_is_not_in_the_way(nova, target):
    server = nova.server(vm_state='resized')
    nova.add(
        'cell1', 'migrations', uuid='m', instance_uuid=server, status='finished', source_compute='a', dest_compute='b'
    )
    target.copy(nova)
    target.begin(nova)
    assert target.plan(nova).obstacles == []


def test_a_nova_that_has_worked_since_is_not_written_over(nova, target):
    taken_over(nova, target)
    nova.server()
    found = target.plan(nova).obstacles
    assert {text.partition(':')[0] for text in found} == {
        'api, table instance_mappings',
        'api, table request_specs',
        'cell1, table instance_extra',
        'cell1, table instance_info_caches',
        'cell1, table instances',
    }
    assert 'Nova has written to it since the takeover began' in found[0]


def test_a_nova_that_was_not_taken_over(nova, target, tmp_path, templates):
    fill(nova)
    target.copy(nova)
    with pytest.raises(copy.NotReady, match="its databases have no mark of 'kilonova-manage adopt begin'"):
        target.plan(nova)
    target.begin(nova)
    with pytest.raises(copy.NotReady, match='it is not the one that took over this Nova'):
        Target(tmp_path / 'other', templates).plan(nova)


def test_most_obstacles_of_a_kind_are_cut_off(nova, target):
    for _ in range(5):
        nova.server()
    target.copy(nova)
    target.begin(nova)
    target.run('cell1', "UPDATE instances SET task_state = 'powering-off'")
    with cloud.opened([nova.conf], options.new, writable=True) as opened:
        found = back.plan(opened, target.databases, target.cells, most=2).obstacles
    assert len(found) == 3 and found[2] == 'and more of this kind'


def test_a_read_only_nova_cannot_be_written(nova, target):
    taken_over(nova, target)
    with (
        cloud.opened([nova.conf], options.new) as opened,
        pytest.raises(source.NovaUnreadable, match=r'readonly|read-only'),
    ):
        mark.remove(opened.api)
