"""Operation rows: accepting, taking, deciding, ending (operations.md rules 1, 2, 6, 17, 18)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import shutil
import threading

import pytest
import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as models
from kilonova.db.queries import claims, expired, instances, migrations, operation_leases, operations, services
from kilonova.errors import (
    ClaimConflict,
    Conflict,
    HostRejected,
    InstanceInvalidState,
    InstanceNotFound,
    KeyGone,
    ReleasePending,
)
from tests.fixtures.servers import put_server, set_state

UUID = '7d7f5ee0-7c0f-4a55-8ac9-000000000001'
ACTION = {'action': 'stop', 'request_id': 'req-1', 'user_id': 'u', 'project_id': 'p'}


def op(uuid, kind='stop', **more):
    return operations.OperationRow(uuid=uuid, kind=kind, instance_uuid=UUID, **{'request_id': 'req-1', **more})


@pytest.fixture
def cell(tmp_path, migrated):
    shutil.copy(migrated / 'cell.sqlite', tmp_path / 'cell.db')
    database = engine.Database(f'sqlite:///{tmp_path}/cell.db', 'cell1')
    with database.write() as conn:
        put_server(
            conn,
            {'uuid': UUID, 'vm_state': 'active', 'task_state': None, 'host': 'gpu1', 'launched_at': instances.utcnow()},
        )
    yield database
    database.dispose()


def rows(database):
    with database.read() as conn:
        return {row.uuid: row for row in operations.of_instance(conn, UUID)}


def states_of(database):
    with database.read() as conn:
        row = instances.get(conn, UUID, deleted=True)
    return row['vm_state'], row['task_state']


def test_accept_writes_state_row_and_action_together(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    assert states_of(cell) == ('active', 'powering-off')
    assert list(rows(cell)) == ['o1']
    with cell.read() as conn:
        assert conn.execute(sa.select(models.InstanceAction.action)).scalars().all() == ['stop']


def test_of_two_requests_one_is_refused_with_the_fields_text(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    with pytest.raises(InstanceInvalidState) as caught:
        operations.accept(cell, instance_uuid=UUID, event='reboot.start', operation=op('o2'), action=ACTION)
    assert str(caught.value) == f"Cannot 'reboot' instance {UUID} while it is in task_state powering-off"
    with pytest.raises(InstanceInvalidState) as caught:
        operations.accept(cell, instance_uuid=UUID, event='start.start', operation=op('o2'), action=ACTION)
    assert str(caught.value) == f"Cannot 'start' instance {UUID} while it is in vm_state active"
    assert list(rows(cell)) == ['o1']


def test_a_server_that_is_not_there(cell):
    with pytest.raises(InstanceNotFound):
        operations.accept(cell, instance_uuid=UUID[:-1] + '9', event='stop.start', operation=op('o1'), action=ACTION)


def test_confirm_and_revert_cannot_both_win(cell):
    """Rule 10: the accepting transaction swaps the migration's status."""
    with cell.write() as conn:
        migrations.create(conn, {'uuid': 'm1', 'instance_uuid': UUID, 'status': 'finished', 'migration_type': 'resize'})
        conn.execute(instances.instances.update().values(vm_state='resized'))
    results = []

    def attempt(event, uuid, status):
        try:
            operations.accept(
                cell,
                instance_uuid=UUID,
                event=event,
                operation=op(uuid, uuid),
                action=ACTION,
                migration=('m1', 'finished', status),
            )
            results.append(status)
        except Conflict:
            results.append('refused')

    threads = [
        threading.Thread(target=attempt, args=args)
        for args in (('confirm.start', 'confirm', 'confirming'), ('revert.start', 'revert', 'reverting'))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count('refused') == 1 and len(rows(cell)) == 1
    with cell.read() as conn:
        assert migrations.get(conn, uuid='m1')['status'] in results


def test_delete_waits_behind_what_runs_and_cancels_it(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    assert operations.accept_delete(cell, instance_uuid=UUID, operation=op('d1', 'delete'), action=ACTION) == 'd1'
    found = rows(cell)
    assert found['o1'].cancelled and found['d1'].slot == 'wait'
    assert states_of(cell) == ('active', 'deleting')
    operation_leases.begin_lease(cell, 'me', 'h', 30)
    assert operation_leases.take(cell, ['d1'], 'me') == []
    with cell.write() as conn:
        assert not operation_leases.end_owned(conn, 'o1', 'me', cancelled=False)
        assert operations.end(conn, 'o1', UUID) == 'd1'
    assert [row.uuid for row in operation_leases.take(cell, ['d1'], 'me')] == ['d1']


def test_a_second_delete_adds_nothing(cell):
    operations.accept_delete(cell, instance_uuid=UUID, operation=op('d1', 'delete'), action=ACTION)
    assert operations.accept_delete(cell, instance_uuid=UUID, operation=op('d2', 'delete'), action=ACTION) is None
    assert list(rows(cell)) == ['d1']


def test_a_row_is_taken_once_until_its_owners_lease_ends(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    operation_leases.begin_lease(cell, 'first', 'h', 30)
    operation_leases.begin_lease(cell, 'second', 'h', 30)
    assert len(operation_leases.take(cell, ['o1'], 'first')) == 1
    assert operation_leases.take(cell, ['o1'], 'second') == []
    with cell.read() as conn:
        assert operation_leases.free(conn, 'second', 10) == []
    assert operation_leases.renew_lease(cell, 'first', -1)
    # A lease that ran out stays so.
    assert not operation_leases.renew_lease(cell, 'first', 30)
    with cell.read() as conn:
        assert [row.uuid for row in operation_leases.free(conn, 'second', 10)] == ['o1']
    assert len(operation_leases.take(cell, ['o1'], 'second')) == 1
    with cell.write() as conn:
        assert not operation_leases.decide(conn, 'o1', 'first', {'position': 1})
        assert operation_leases.decide(conn, 'o1', 'second', {'position': 1})


def test_an_owner_whose_lease_ran_out_takes_nothing(cell):
    """Rule 6: a row that it took would wait for a sweep that sees it dead."""
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    operation_leases.begin_lease(cell, 'me', 'h', -1)
    assert operation_leases.take(cell, ['o1'], 'me') == []
    assert rows(cell)['o1'].owner is None


def test_rows_given_back_are_not_taken_before_their_time(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    operation_leases.begin_lease(cell, 'me', 'h', 30)
    operation_leases.take(cell, ['o1'], 'me')
    with cell.write() as conn:
        operation_leases.decide(conn, 'o1', 'me', {'owner': None, 'not_before': engine.db_now() + 60})
    assert operation_leases.take(cell, ['o1'], 'me') == []


def test_pending_releases_end_with_their_host_and_nothing_else_does(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1', host='gpu1'), action=ACTION)
    with cell.write() as conn:
        operations.insert(
            conn,
            [
                op('r1', 'release', slot='r1', host='gpu1'),
                op('r2', 'release', slot='r2', host='gpu2'),
                op('r3', 'release', slot='r3'),
            ],
        )
        assert operations.end_releases(conn, 'gpu1') == 1
    assert set(rows(cell)) == {'o1', 'r2', 'r3'}


def test_early_delete_cancels_the_boot(tmp_path, migrated):
    """Rule 18."""
    shutil.copy(migrated / 'api.sqlite', tmp_path / 'api.db')
    database = engine.Database(f'sqlite:///{tmp_path}/api.db', 'api')
    operations.accept_create(
        database,
        specs=[(UUID, '{}')],
        requests=[{'instance_uuid': UUID, 'project_id': 'p', 'instance': '{}'}],
        mappings=[{'instance_uuid': UUID, 'project_id': 'p', 'user_id': 'u'}],
        operations=[op('o1', 'boot')],
    )
    assert operations.delete_build_request(database, UUID) is True
    assert operations.delete_build_request(database, UUID) is False
    assert rows(database)['o1'].cancelled
    with database.read() as conn:
        assert conn.execute(sa.select(api_models.InstanceMapping.queued_for_delete)).scalar()
    database.dispose()


# --- claims ----------------------------------------------------------------------------------------------------------
KEY = 'o1/3.build/1'


@pytest.fixture
def building(cell):
    with cell.write() as conn:
        conn.execute(instances.instances.update().values(vm_state='building', task_state='scheduling', host=None))
        node = conn.execute(
            models.ComputeNode.__table__.insert().values(
                host='gpu1',
                hypervisor_hostname='gpu1',
                vcpus=64,
                memory_mb=1,
                local_gb=1,
                vcpus_used=0,
                memory_mb_used=0,
                local_gb_used=0,
                hypervisor_type='QEMU',
                hypervisor_version=1,
                cpu_info='',
                deleted=0,
            )
        ).inserted_primary_key[0]
        for number, address in enumerate(('0000:08:00.0', '0000:88:00.0'), start=1):
            conn.execute(
                models.PciDevice.__table__.insert().values(
                    id=number,
                    compute_node_id=node,
                    address=address,
                    vendor_id='10de',
                    product_id='13f1',
                    dev_type='type-PCI',
                    label='l',
                    status='available',
                    deleted=0,
                )
            )
        operations.insert(conn, [op('o1', 'boot', position=3)])
    return cell


def device(number, before='available', after='claimed', owner=UUID):
    return {
        'id': number,
        'address': f'd{number}',
        'from': before,
        'to': after,
        'instance_uuid': owner,
        'request_id': f'r{number}',
    }


def a_claim(*numbers, key=KEY, **more):
    return claims.ClaimWrite(
        key=key,
        instance_uuid=UUID,
        transition='build.claim',
        expect={'host': [None, 'gpu1']},
        values={'host': 'gpu1', 'node': 'gpu1'},
        devices=[device(number) for number in numbers],
        **more,
    )


def a_save(**more):
    return claims.SaveWrite(
        **{
            'key': KEY,
            'instance_uuid': UUID,
            'request_id': 'req-1',
            'transition': 'build.done',
            'end': True,
            'values': {'power_state': 1, 'launched_at': '2026-01-02T03:04:05.000006Z'},
            'devices': [device(1, 'claimed', 'allocated')],
            'event': {
                'event': 'compute__do_build_and_run_instance',
                'result': 'Success',
                'host': 'gpu1',
                'start_time': '2026-01-02T03:04:05',
                'finish_time': '2026-01-02T03:04:06',
            },
            **more,
        }
    )


def devices_of(database):
    with database.read() as conn:
        table = models.PciDevice.__table__
        return [
            tuple(row)
            for row in conn.execute(
                sa.select(table.c.status, table.c.instance_uuid, table.c.request_id).order_by(table.c.id)
            )
        ]


def test_a_claim_is_one_transaction_and_may_be_sent_again(building):
    """Rules 13 and 21."""
    claims.claim(building, a_claim(1, 2))
    claims.claim(building, a_claim(1, 2))
    assert devices_of(building) == [('claimed', UUID, 'r1'), ('claimed', UUID, 'r2')]
    assert states_of(building) == ('building', 'spawning')


def test_a_host_that_is_forced_down_begins_no_step_and_undoes_what_it_did(building):
    """A host that is forced down may begin no step and may do undos; the refusal is ReleasePending."""
    with building.write() as conn:
        number = services.get_or_create(conn, 'gpu1', 'nova-compute', 'compute', version=1)['id']
        claims.check(conn, KEY, host='gpu1')
        services.update(conn, number, {'forced_down': True})
        with pytest.raises(ReleasePending, match='gpu1 is forced down'):
            claims.check(conn, KEY, host='gpu1')
        claims.check(conn, KEY, host='gpu2')
        conn.execute(operations.operations.update().values(failed=True))
        claims.check(conn, KEY, undo=True, host='gpu1')
        conn.execute(operations.operations.update().values(failed=False))
        services.update(conn, number, {'forced_down': False})
        claims.check(conn, KEY, host='gpu1')


@pytest.mark.parametrize('written', [False, True])
def test_a_host_that_is_forced_down_claims_nothing(building, written):
    """Its flow may go on elsewhere at once, whatever an earlier process of it claimed."""
    if written:
        claims.claim(building, a_claim(1, host='gpu1'))
    before = devices_of(building), states_of(building)
    with building.write() as conn:
        number = services.get_or_create(conn, 'gpu1', 'nova-compute', 'compute', version=1)['id']
        services.update(conn, number, {'forced_down': True})
    with pytest.raises(HostRejected, match='gpu1 is forced down'):
        claims.claim(building, a_claim(1, host='gpu1'))
    assert (devices_of(building), states_of(building)) == before
    with building.write() as conn:
        services.update(conn, number, {'forced_down': False})
    claims.claim(building, a_claim(1, host='gpu1'))
    assert devices_of(building)[0] == ('claimed', UUID, 'r1')


def test_a_claim_of_a_taken_device_writes_nothing(building):
    with building.write() as conn:
        conn.execute(
            models.PciDevice.__table__.update()
            .where(models.PciDevice.id == 2)
            .values(status='allocated', instance_uuid='other')
        )
    with pytest.raises(ClaimConflict, match='d1, d2'):
        claims.claim(building, a_claim(1, 2))
    assert devices_of(building) == [('available', None, None), ('allocated', 'other', None)]
    assert states_of(building) == ('building', 'scheduling')
    claims.claim(building, a_claim(1))
    assert devices_of(building)[0] == ('claimed', UUID, 'r1')


@pytest.mark.parametrize('key', ['o1/2.claim/1', 'o1/3.build/2', 'gone/3.build/1'])
def test_an_old_message_does_nothing(building, key):
    """Rule 14: the row is the tombstone."""
    with pytest.raises(KeyGone):
        claims.claim(building, a_claim(1, key=key))
    with building.read() as conn, pytest.raises(KeyGone):
        claims.check(conn, key)
    assert devices_of(building)[0] == ('available', None, None)


@pytest.mark.parametrize('given_up', ['cancelled', 'failed', 'undoing'])
def test_an_operation_that_is_given_up_does_nothing_more(building, given_up):
    """Rule 14: each of its marks alone; the order before its first act, the claim and the save."""
    with building.write() as conn:
        conn.execute(operations.operations.update().values({given_up: True}))
    with building.read() as conn, pytest.raises(KeyGone):
        claims.check(conn, KEY)
    for write, what in ((claims.claim, a_claim(1)), (claims.save, a_save()), (claims.save, a_save(end=False))):
        with pytest.raises(KeyGone):
            write(building, what)
    assert devices_of(building)[0] == ('available', None, None)


@pytest.mark.parametrize(
    ('key', 'stands'),
    [(KEY, True), ('o1/2.claim/1', True), ('o1/4.more/1', False), ('o1/3.build/2', False), ('gone/3.build/1', False)],
)
def test_an_undo_asks_for_the_attempt_that_is_being_undone(building, key, stands):
    """Rule 14: for its step and those before it, and for nothing as long as the operation goes on."""
    with building.read() as conn, pytest.raises(KeyGone):
        claims.check(conn, key, undo=True)
    with building.write() as conn:
        conn.execute(operations.operations.update().values(undoing=True))
    with building.read() as conn, contextlib.nullcontext() if stands else pytest.raises(KeyGone):
        claims.check(conn, key, undo=True)


def test_a_cancelled_operation_claims_nothing(building):
    operations.accept_delete(building, instance_uuid=UUID, operation=op('d1', 'delete'), action=ACTION)
    with pytest.raises(KeyGone):
        claims.claim(building, a_claim(1))
    assert devices_of(building)[0] == ('available', None, None)


def test_the_end_state_and_the_end_of_the_row_go_together(building):
    with building.write() as conn:
        instances.start_action(conn, UUID, {**ACTION, 'action': 'create'})
    claims.claim(building, a_claim(1))
    claims.save(building, a_save())
    assert states_of(building) == ('active', None)
    assert rows(building) == {}
    assert devices_of(building)[0] == ('allocated', UUID, 'r1')
    with building.read() as conn:
        event = conn.execute(sa.select(models.InstanceActionEvent)).mappings().one()
        action = conn.execute(sa.select(models.InstanceAction)).mappings().one()
        row = instances.get(conn, UUID)
    assert (event['result'], event['host'], event['start_time'].second) == ('Success', 'gpu1', 5)
    assert action['finish_time'] is not None and row['launched_at'].microsecond == 6
    claims.save(building, a_save())  # the reply was lost: it is done
    assert states_of(building) == ('active', None)


def test_an_end_state_of_a_cancelled_operation_is_refused_and_its_undo_is_not(building):
    claims.claim(building, a_claim(1))
    operations.accept_delete(building, instance_uuid=UUID, operation=op('d1', 'delete'), action=ACTION)
    with pytest.raises(KeyGone):
        claims.save(building, a_save())
    claims.save(
        building,
        claims.SaveWrite(
            key=KEY,
            instance_uuid=UUID,
            undo=True,
            expect={'host': 'gpu1'},
            values={'host': None},
            devices=[device(1, 'claimed', 'available')],
        ),
    )
    assert devices_of(building)[0] == ('available', None, None)
    assert states_of(building) == ('building', 'deleting')
    assert set(rows(building)) == {'o1', 'd1'}


def test_an_undo_does_not_free_what_another_server_got_meanwhile(building):
    with building.write() as conn:
        conn.execute(
            models.PciDevice.__table__.update()
            .where(models.PciDevice.id == 1)
            .values(status='allocated', instance_uuid='other')
        )
    claims.save(
        building, claims.SaveWrite(key=KEY, instance_uuid=UUID, undo=True, devices=[device(1, 'claimed', 'available')])
    )
    assert devices_of(building)[0] == ('allocated', 'other', None)


@pytest.mark.parametrize('over', ['ended', 'next attempt'])
def test_what_is_saved_of_an_undo_that_is_over_changes_nothing(building, over):
    """It would free what a later operation, or attempt, of the same server took."""
    claims.claim(building, a_claim(1))
    table = operations.operations
    with building.write() as conn:
        conn.execute(table.update().values(attempt=2) if over == 'next attempt' else table.delete())
    with pytest.raises(KeyGone):
        claims.save(
            building,
            claims.SaveWrite(
                key=KEY,
                instance_uuid=UUID,
                undo=True,
                expect={'host': 'gpu1'},
                values={'host': None},
                devices=[device(1, 'claimed', 'available')],
            ),
        )
    assert devices_of(building)[0] == ('claimed', UUID, 'r1')


def test_notes_of_progress_are_told_apart_by_their_mark(building):
    """Saves under one key without event or transition: a note that is sent again is written once, the next one, too."""

    def note(mark, done):
        claims.save(
            building,
            claims.SaveWrite(key=KEY, instance_uuid=UUID, mark=mark, migration={'uuid': 'm1', 'disk_processed': done}),
        )

    table = models.Migration.__table__
    with building.write() as conn:
        conn.execute(table.insert().values(uuid='m1', instance_uuid=UUID, status='migrating', deleted=0))
    seen = []
    for mark, done in ((1, 10), (2, 20), (2, 5), (3, 30)):
        note(mark, done)
        with building.read() as conn:
            seen.append(conn.execute(sa.select(table.c.disk_processed)).scalar_one())
    assert seen == [10, 20, 20, 30]


def test_servers_to_reclaim_are_those_deleted_long_enough_ago(cell):
    """Servers to reclaim are those that were soft-deleted long enough ago by the database's clock, except those
    that are being restored."""
    assert (
        operations.accept_soft_delete(cell, instance_uuid=UUID, operation=op('o1', 'soft_delete'), action=ACTION)
        == 'o1'
    )

    def due(seconds):
        with cell.read() as conn:
            return [one.server for one in expired.soft_deleted(conn, seconds, 10)]

    assert due(0) == []
    with cell.write() as conn:
        assert instances.transition(conn, UUID, 'soft_delete.done')
    assert (due(0), due(60)) == ([UUID], [])
    with cell.write() as conn:
        instances.update(conn, UUID, {'deleted_at': instances.utcnow() - instances.datetime.timedelta(seconds=61)})
    assert (due(60), due(3600)) == ([UUID], [])
    with cell.write() as conn:
        assert instances.transition(conn, UUID, 'restore.start')
    assert due(0) == []


def test_of_a_restore_and_a_reclaim_one_is_second(cell):
    with cell.write() as conn:
        set_state(conn, UUID, vm_state='soft-delete')
    operations.accept(cell, instance_uuid=UUID, event='restore.start', operation=op('o1', 'restore'), action=ACTION)
    with pytest.raises(InstanceInvalidState):
        operations.accept_delete(
            cell,
            instance_uuid=UUID,
            event='reclaim.start',
            operation=op('d1', 'delete'),
            action=ACTION | {'request_id': 'req-2'},
        )
    assert list(rows(cell)) == ['o1'] and states_of(cell) == ('soft-delete', 'restoring')


def test_a_delete_takes_the_place_of_a_soft_delete_that_waits(cell):
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    operations.accept_soft_delete(
        cell, instance_uuid=UUID, operation=op('s1', 'soft_delete'), action=ACTION | {'request_id': 'req-2'}
    )
    assert {uuid: row.slot for uuid, row in rows(cell).items()} == {'o1': 'run', 's1': 'wait'}
    operations.accept_delete(
        cell, instance_uuid=UUID, operation=op('d1', 'delete'), action=ACTION | {'request_id': 'req-3'}
    )
    assert {uuid: row.slot for uuid, row in rows(cell).items()} == {'o1': 'run', 'd1': 'wait'}
    with pytest.raises(InstanceInvalidState):
        operations.accept_soft_delete(
            cell, instance_uuid=UUID, operation=op('s2', 'soft_delete'), action=ACTION | {'request_id': 'req-4'}
        )
    assert states_of(cell) == ('active', 'deleting')


def test_leases_that_live(cell):
    operation_leases.begin_lease(cell, 'a', 'ctl1 pid=1', 60)
    operation_leases.begin_lease(cell, 'b', 'ctl1 pid=2', -1)
    with cell.read() as conn:
        assert operation_leases.living(conn) == [('a', 'ctl1 pid=1')]


def test_the_age_of_a_row_is_asked_by_the_clock_of_the_database(cell, monkeypatch):
    """Simulated story 10201: an API whose clock is ahead keeps no sweep away from what it accepted."""
    ahead = instances.utcnow() + datetime.timedelta(seconds=400)
    monkeypatch.setattr(instances, 'utcnow', lambda: ahead)
    monkeypatch.setattr('kilonova.db.models.base.utcnow', lambda: ahead)
    operations.accept(cell, instance_uuid=UUID, event='stop.start', operation=op('o1'), action=ACTION)
    with cell.read() as conn:
        assert [row.uuid for row in operation_leases.free(conn, 'me', 10, age=-1.0)] == ['o1']


def test_what_is_asked_for_again_is_one_row_until_somebody_begins_it(cell):
    """One that waits in the middle looked at what was there before."""

    def beside(uuid, **args):
        return op(uuid, 'network_changed', slot=uuid, args=args)

    assert [operations.add_beside(cell, row) for row in (beside('o1'), beside('o2'), beside('o3', renamed=True))] == [
        'o1',
        'o1',
        'o3',
    ]
    for change in ({'owner': 'other'}, {'owner': None, 'position': 1}):
        with cell.write() as conn:
            conn.execute(models.Operation.__table__.update().where(models.Operation.uuid == 'o1').values(change))
        assert operations.add_beside(cell, beside('o2')) == 'o2'
        with cell.write() as conn:
            conn.execute(models.Operation.__table__.delete().where(models.Operation.uuid == 'o2'))


def test_deletes_that_wait_for_long_hide_no_later_ones(cell):
    """Each call goes on behind what the one before it told, and begins anew at the end."""
    with cell.write() as conn:
        operations.insert(
            conn,
            [
                dataclasses.replace(op(f'd{number}', 'delete', slot=operations.WAIT), instance_uuid=str(number))
                for number in range(5)
            ],
        )
    told, behind = [], 0
    for _ in range(3):
        with cell.read() as conn:
            waiting, cancelled, behind = operation_leases.stopped(conn, 'me', 2, after=behind)
        told.append((waiting, cancelled))
    assert told == [(['d0', 'd1'], []), (['d2', 'd3'], []), (['d4'], [])] and behind == 0
