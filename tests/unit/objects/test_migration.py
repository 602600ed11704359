"""Migration: rows and remote methods."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable

import pytest

from kilonova import errors
from kilonova.context import RequestContext
from kilonova.objects import Migration, MigrationList

UUID = str(uuids.UUID(int=1))


@pytest.fixture
def move(insert: Callable[..., int]) -> int:
    insert('Instance', uuid=str(uuids.UUID(int=2)))
    return insert(
        'Migration',
        uuid=UUID,
        instance_uuid=str(uuids.UUID(int=2)),
        source_compute='host1',
        source_node='node1',
        dest_compute='host2',
        dest_node='node2',
        status='migrating',
        migration_type='resize',
        old_instance_type_id=1,
        new_instance_type_id=2,
    )


@pytest.mark.parametrize(('new', 'kind'), [(2, 'resize'), (1, 'migration')])
def test_a_row_without_type_gets_the_one_that_its_flavors_tell(new: int, kind: str) -> None:
    row = {'uuid': UUID, 'old_instance_type_id': 1, 'new_instance_type_id': new, 'migration_type': None}
    assert Migration.from_row(None, row).migration_type == kind


def test_a_move_is_found_and_saved(ctxt: RequestContext, move: int) -> None:
    migration = Migration.get_by_uuid(ctxt, UUID)
    assert (migration.id, migration.migration_type, migration.is_live_migration) == (move, 'resize', False)
    migration.status = 'finished'
    migration.save()
    assert migration.obj_what_changed() == set()
    assert Migration.get_by_uuid(ctxt, UUID).status == 'finished'


def test_a_move_that_is_gone_cant_be_saved(ctxt: RequestContext, move: int) -> None:
    other = str(uuids.UUID(int=9))
    with pytest.raises(errors.MigrationNotFound, match=other):
        Migration.get_by_uuid(ctxt, other)
    with pytest.raises(errors.MigrationNotFound):
        Migration(ctxt, uuid=other, status='error').save()


@pytest.mark.parametrize(
    ('host', 'node', 'found'),
    [('host1', 'node1', 1), ('host2', 'node2', 1), ('host1', 'node2', 0), ('host3', 'node3', 0)],
)
def test_moves_in_progress_are_those_of_either_side(
    ctxt: RequestContext, move: int, host: str, node: str, found: int
) -> None:
    assert len(MigrationList.get_in_progress_by_host_and_node(ctxt, host, node)) == found


def test_an_ended_move_is_not_in_progress(ctxt: RequestContext, move: int) -> None:
    migration = Migration.get_by_uuid(ctxt, UUID)
    migration.status = 'confirmed'
    migration.save()
    assert len(MigrationList.get_in_progress_by_host_and_node(ctxt, 'host1', 'node1')) == 0


def test_a_new_move_as_a_row() -> None:
    migration = Migration(uuid=UUID, status='pre-migrating', migration_type='migration', source_compute='host1')
    assert migration.to_row() == {
        'uuid': UUID,
        'status': 'pre-migrating',
        'migration_type': 'migration',
        'source_compute': 'host1',
    }
    migration.obj_reset_changes()
    migration.status = 'error'
    assert migration.to_row(changed_only=True) == {'status': 'error'}
