"""Create the first tables of the API database.

Revision: 4b6d0c1f9a27, after nothing
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '4b6d0c1f9a27'
down_revision = None
branch_labels = None
depends_on = None

MEDIUMTEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), 'mysql', 'mariadb')
DATETIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), 'mysql', 'mariadb')
OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB',
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mariadb_engine': 'InnoDB',
    'mariadb_charset': 'utf8mb4',
    'mariadb_collate': 'utf8mb4_bin',
}


def upgrade() -> None:
    create_aggregates()
    create_build_requests()
    create_cell_mappings()
    create_flavors()
    create_key_pairs()
    create_leases()
    create_operations()
    create_quota_classes()
    create_quotas()
    create_request_specs()
    create_aggregate_hosts()
    create_aggregate_metadata()
    create_flavor_extra_specs()
    create_flavor_projects()
    create_host_mappings()
    create_instance_mappings()


def _create_table(name: str, *items: sa.schema.SchemaItem) -> None:
    op.create_table(name, *items, **OPTIONS)


def _timestamps() -> tuple[sa.Column[Any], ...]:
    return sa.Column('created_at', DATETIME), sa.Column('updated_at', DATETIME)


def create_aggregates() -> None:
    _create_table(
        'aggregates',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36)),
        sa.Column('name', sa.String(255)),
        *_timestamps(),
        sa.UniqueConstraint('name', name='uniq_aggregate0name'),
    )
    op.create_index('aggregates_uuid_idx', 'aggregates', ['uuid'])


def create_build_requests() -> None:
    _create_table(
        'build_requests',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('instance_uuid', sa.String(36)),
        sa.Column('project_id', sa.String(255), nullable=False),
        sa.Column('instance', MEDIUMTEXT),
        sa.Column('block_device_mappings', MEDIUMTEXT),
        sa.Column('tags', sa.Text),
        *_timestamps(),
        sa.UniqueConstraint('instance_uuid', name='uniq_build_requests0instance_uuid'),
    )
    op.create_index('build_requests_instance_uuid_idx', 'build_requests', ['instance_uuid'])
    op.create_index('build_requests_project_id_idx', 'build_requests', ['project_id'])


def create_cell_mappings() -> None:
    _create_table(
        'cell_mappings',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('name', sa.String(255)),
        sa.Column('transport_url', sa.Text),
        sa.Column('database_connection', sa.Text),
        sa.Column('disabled', sa.Boolean),
        *_timestamps(),
        sa.UniqueConstraint('uuid', name='uniq_cell_mappings0uuid'),
    )
    op.create_index('cell_mappings_uuid_idx', 'cell_mappings', ['uuid'])


def create_flavors() -> None:
    _create_table(
        'flavors',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('memory_mb', sa.Integer, nullable=False),
        sa.Column('vcpus', sa.Integer, nullable=False),
        sa.Column('root_gb', sa.Integer),
        sa.Column('ephemeral_gb', sa.Integer),
        sa.Column('flavorid', sa.String(255), nullable=False),
        sa.Column('swap', sa.Integer, nullable=False),
        sa.Column('rxtx_factor', sa.Float),
        sa.Column('vcpu_weight', sa.Integer),
        sa.Column('disabled', sa.Boolean),
        sa.Column('is_public', sa.Boolean),
        sa.Column('description', sa.Text),
        *_timestamps(),
        sa.UniqueConstraint('flavorid', name='uniq_flavors0flavorid'),
        sa.UniqueConstraint('name', name='uniq_flavors0name'),
    )


def create_key_pairs() -> None:
    _create_table(
        'key_pairs',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('name', sa.String(255), nullable=False),
        sa.Column('user_id', sa.String(255), nullable=False),
        sa.Column('fingerprint', sa.String(255)),
        sa.Column('public_key', sa.Text),
        sa.Column('type', sa.Enum('ssh', 'x509', name='keypair_types'), nullable=False),
        *_timestamps(),
        sa.UniqueConstraint('user_id', 'name', name='uniq_key_pairs0user_id0name'),
    )


def create_leases() -> None:
    _create_table(
        'leases',
        sa.Column('owner', sa.String(36), primary_key=True),
        sa.Column('host', sa.String(255)),
        sa.Column('expires', sa.Double, nullable=False),
    )


def create_operations() -> None:
    _create_table(
        'operations',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('slot', sa.String(36), nullable=False),
        sa.Column('args', MEDIUMTEXT, nullable=False),
        sa.Column('context', MEDIUMTEXT, nullable=False),
        sa.Column('request_id', sa.String(255)),
        sa.Column('position', sa.Integer, nullable=False),
        sa.Column('outputs', MEDIUMTEXT, nullable=False),
        sa.Column('attempt', sa.Integer, nullable=False),
        sa.Column('owner', sa.String(36)),
        sa.Column('not_before', sa.Double, nullable=False),
        sa.Column('error', MEDIUMTEXT),
        sa.Column('failed', sa.Boolean, nullable=False),
        sa.Column('cancelled', sa.Boolean, nullable=False),
        sa.Column('written', sa.Text, nullable=False),
        sa.Column('host', sa.String(255)),
        *_timestamps(),
        sa.UniqueConstraint('instance_uuid', 'slot', name='uniq_operations0instance_uuid0slot'),
        sa.UniqueConstraint('uuid', name='uniq_operations0uuid'),
    )
    op.create_index('operations_not_before_idx', 'operations', ['not_before'])
    op.create_index('operations_owner_idx', 'operations', ['owner'])


def create_quota_classes() -> None:
    _create_table(
        'quota_classes',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('class_name', sa.String(255)),
        sa.Column('resource', sa.String(255)),
        sa.Column('hard_limit', sa.Integer),
        *_timestamps(),
    )
    op.create_index('quota_classes_class_name_idx', 'quota_classes', ['class_name'])


def create_quotas() -> None:
    _create_table(
        'quotas',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('project_id', sa.String(255)),
        sa.Column('resource', sa.String(255), nullable=False),
        sa.Column('hard_limit', sa.Integer),
        *_timestamps(),
        sa.UniqueConstraint('project_id', 'resource', name='uniq_quotas0project_id0resource'),
    )


def create_request_specs() -> None:
    _create_table(
        'request_specs',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('spec', MEDIUMTEXT, nullable=False),
        *_timestamps(),
        sa.UniqueConstraint('instance_uuid', name='uniq_request_specs0instance_uuid'),
    )
    op.create_index('request_specs_instance_uuid_idx', 'request_specs', ['instance_uuid'])


def create_aggregate_hosts() -> None:
    _create_table(
        'aggregate_hosts',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('host', sa.String(255)),
        sa.Column(
            'aggregate_id',
            sa.Integer,
            sa.ForeignKey('aggregates.id', name='fk_aggregate_hosts_aggregate_id'),
            nullable=False,
        ),
        *_timestamps(),
        sa.UniqueConstraint('host', 'aggregate_id', name='uniq_aggregate_hosts0host0aggregate_id'),
    )
    op.create_index('aggregate_hosts_aggregate_id_idx', 'aggregate_hosts', ['aggregate_id'])


def create_aggregate_metadata() -> None:
    _create_table(
        'aggregate_metadata',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('key', sa.String(255), nullable=False),
        sa.Column('value', sa.String(255), nullable=False),
        sa.Column(
            'aggregate_id',
            sa.Integer,
            sa.ForeignKey('aggregates.id', name='fk_aggregate_metadata_aggregate_id'),
            nullable=False,
        ),
        *_timestamps(),
        sa.UniqueConstraint('aggregate_id', 'key', name='uniq_aggregate_metadata0aggregate_id0key'),
    )
    op.create_index('aggregate_metadata_key_idx', 'aggregate_metadata', ['key'])


def create_flavor_extra_specs() -> None:
    _create_table(
        'flavor_extra_specs',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('key', sa.String(255), nullable=False),
        sa.Column('value', sa.String(255)),
        sa.Column(
            'flavor_id', sa.Integer, sa.ForeignKey('flavors.id', name='fk_flavor_extra_specs_flavor_id'), nullable=False
        ),
        *_timestamps(),
        sa.UniqueConstraint('flavor_id', 'key', name='uniq_flavor_extra_specs0flavor_id0key'),
    )
    op.create_index('flavor_extra_specs_flavor_id_key_idx', 'flavor_extra_specs', ['flavor_id', 'key'])


def create_flavor_projects() -> None:
    _create_table(
        'flavor_projects',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column(
            'flavor_id', sa.Integer, sa.ForeignKey('flavors.id', name='fk_flavor_projects_flavor_id'), nullable=False
        ),
        sa.Column('project_id', sa.String(255), nullable=False),
        *_timestamps(),
        sa.UniqueConstraint('flavor_id', 'project_id', name='uniq_flavor_projects0flavor_id0project_id'),
    )


def create_host_mappings() -> None:
    _create_table(
        'host_mappings',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column(
            'cell_id', sa.Integer, sa.ForeignKey('cell_mappings.id', name='fk_host_mappings_cell_id'), nullable=False
        ),
        sa.Column('host', sa.String(255), nullable=False),
        *_timestamps(),
        sa.UniqueConstraint('host', name='uniq_host_mappings0host'),
    )
    op.create_index('host_mappings_cell_id_idx', 'host_mappings', ['cell_id'])
    op.create_index('host_mappings_host_idx', 'host_mappings', ['host'])


def create_instance_mappings() -> None:
    _create_table(
        'instance_mappings',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('cell_id', sa.Integer, sa.ForeignKey('cell_mappings.id', name='fk_instance_mappings_cell_id')),
        sa.Column('project_id', sa.String(255), nullable=False),
        sa.Column('user_id', sa.String(255)),
        sa.Column('queued_for_delete', sa.Boolean),
        *_timestamps(),
        sa.UniqueConstraint('instance_uuid', name='uniq_instance_mappings0instance_uuid'),
    )
    op.create_index('instance_mappings_cell_id_idx', 'instance_mappings', ['cell_id'])
    op.create_index('instance_mappings_instance_uuid_idx', 'instance_mappings', ['instance_uuid'])
    op.create_index('instance_mappings_project_id_idx', 'instance_mappings', ['project_id'])
    op.create_index('instance_mappings_user_id_project_id_idx', 'instance_mappings', ['user_id', 'project_id'])
