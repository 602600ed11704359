"""Revisions and models say the same."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from kilonova.db import engine, migration
from kilonova.db.models import api as api_models
from kilonova.db.models import cell as cell_models

pytestmark = pytest.mark.database

SCHEMAS = ('api', 'cell')


@pytest.fixture
def empty(tmp_path):
    database = engine.Database(f'sqlite:///{tmp_path}/empty.sqlite', 'empty')
    yield database
    database.dispose()


@pytest.mark.parametrize('schema', SCHEMAS)
def test_an_empty_database_comes_to_the_newest_revision(empty, schema, caplog):
    assert migration.version(empty, schema) is None
    with caplog.at_level(logging.INFO, 'alembic'):
        assert migration.sync(empty, schema) == migration.newest(schema)
    assert migration.version(empty, schema) == migration.newest(schema)
    assert 'Running upgrade' in caplog.text


@pytest.mark.parametrize('schema', SCHEMAS)
def test_sync_may_be_repeated(empty, schema):
    first = migration.sync(empty, schema)
    assert migration.sync(empty, schema) == first
    assert migration.sync(empty, schema, first) == first


@pytest.mark.parametrize('schema', SCHEMAS)
def test_migrated_tables_are_those_of_the_models(empty, schema):
    migration.sync(empty, schema)
    assert migration.differences(empty, schema) == []
    with empty.read() as connection:
        tables = set(sa.inspect(connection).get_table_names())
    assert tables == {*migration.METADATA[schema].tables, 'alembic_version'}


# The revision that each schema was first published at.
FIRST = {'api': '4b6d0c1f9a27', 'cell': '9e1a7c3d5b08'}


@pytest.mark.parametrize('schema', SCHEMAS)
def test_a_database_with_rows_is_upgraded(empty, schema):
    """The rows of the first revision are there after the last one, and the tables are those of a fresh database."""
    check_upgrade(empty, schema)


def check_upgrade(database, schema):
    """Used for the servers too (tests/integration/test_databases.py)."""
    migration.sync(database, schema, FIRST[schema])
    models = api_models if schema == 'api' else cell_models
    rows = {
        'api': {
            models.Base.metadata.tables[name]: row
            for name, row in (
                ('flavors', {'id': 7, 'name': 'gpu', 'flavorid': 'f', 'memory_mb': 1, 'vcpus': 1, 'swap': 0}),
                ('flavor_extra_specs', {'id': 3, 'flavor_id': 7, 'key': 'k', 'value': 'v'}),
                ('aggregates', {'id': 1, 'uuid': 'u', 'name': 'a'}),
            )
        }
        if schema == 'api'
        else {},
        'cell': {
            models.Base.metadata.tables[name]: row
            for name, row in (
                ('instances', {'id': 4, 'uuid': 'server', 'deleted': 4, 'vm_state': 'deleted'}),
                ('migrations', {'id': 2, 'uuid': 'move', 'instance_uuid': 'server', 'migration_type': 'resize'}),
                ('operations', {'uuid': 'o', 'kind': 'boot', 'instance_uuid': 'server', 'args': '{}', 'context': '{}'}),
            )
        }
        if schema == 'cell'
        else {},
    }[schema]
    with database.write() as connection:
        for table, row in rows.items():
            # As it was then: without the columns that came later.
            then = sa.Table(table.name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
            usual = {
                column.name: column.default.arg
                for column in table.columns
                if column.default is not None and column.default.is_scalar and column.name in then.columns
            }
            connection.execute(sa.insert(then).values({**usual, **row}))
    assert migration.sync(database, schema) == migration.newest(schema) != FIRST[schema]
    assert migration.differences(database, schema) == []
    with database.read() as connection:
        for table, row in rows.items():
            found = connection.execute(sa.select(table)).mappings().one()
            assert {key: found[key] for key in row} == row


def test_each_table_whose_deleted_rows_stay_has_a_shadow():
    tables = migration.METADATA['cell'].tables
    assert len(cell_models.SHADOWS) == 15
    for name, shadow in cell_models.SHADOWS.items():
        assert shadow.name == f'shadow_{name}'
        assert [column.name for column in shadow.columns] == ['shadow_id', *tables[name].columns.keys()]
        assert not shadow.foreign_keys
        assert not [item for item in shadow.constraints if isinstance(item, sa.UniqueConstraint)]


def test_differences_are_seen(empty):
    migration.sync(empty, 'api')
    with empty.write() as connection:
        connection.exec_driver_sql('DROP TABLE leases')
        connection.exec_driver_sql('ALTER TABLE quotas ADD COLUMN extra INTEGER')
    found = {change[0] for change in migration.differences(empty, 'api')}
    assert found == {'add_table', 'remove_column'}


def test_unknown_revisions_and_ways_back_are_refused(empty):
    with pytest.raises(migration.UnknownRevision, match='nope'):
        migration.sync(empty, 'cell', 'nope')
    assert migration.version(empty, 'cell') is None
    migration.sync(empty, 'cell')
    with pytest.raises(migration.UnknownRevision):
        migration.sync(empty, 'cell', 'base')
    assert migration.version(empty, 'cell') == migration.newest('cell')


def test_a_failing_revision_leaves_nothing(empty):
    with empty.write() as connection:
        connection.exec_driver_sql('CREATE TABLE tags (id INTEGER)')
    with pytest.raises(sa.exc.OperationalError, match='tags'):
        migration.sync(empty, 'cell')
    with empty.read() as connection:
        assert sa.inspect(connection).get_table_names() == ['tags']


def test_unique_constraints_have_the_fields_names():
    names = {
        constraint.name
        for schema in SCHEMAS
        for table in migration.METADATA[schema].tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.UniqueConstraint)
    }
    assert {
        'uniq_pci_devices0compute_node_id0address0deleted',
        'uniq_services0host0binary0deleted',
        'uniq_flavors0flavorid',
        'uniq_instance_mappings0instance_uuid',
        'uniq_aggregate0name',
        'uniq_operations0instance_uuid0slot',
    } <= names
    # PostgreSQL cuts names at 63 characters, silently.
    everything = names | {
        index.name
        for schema in SCHEMAS
        for table in migration.METADATA[schema].tables.values()
        for index in table.indexes
    }
    assert max(map(len, everything)) <= 63


def test_both_databases_have_the_same_operation_tables():
    for name in ('Operation', 'Lease'):
        here, there = getattr(api_models, name).__table__, getattr(cell_models, name).__table__
        assert [(column.name, repr(column.type), column.nullable) for column in here.columns] == [
            (column.name, repr(column.type), column.nullable) for column in there.columns
        ]
        assert {index.name for index in here.indexes} == {index.name for index in there.indexes}
