"""Add the log of the usage audit, and for archiving a shadow table of each table whose deleted rows are kept.

Revision: d3f8a6b20c17, after 9e1a7c3d5b08
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = 'd3f8a6b20c17'
down_revision = '9e1a7c3d5b08'
branch_labels = None
depends_on = None

DATETIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), 'mysql', 'mariadb')
OPTIONS: dict[str, Any] = {
    'mysql_engine': 'InnoDB',
    'mysql_charset': 'utf8mb4',
    'mysql_collate': 'utf8mb4_bin',
    'mariadb_engine': 'InnoDB',
    'mariadb_charset': 'utf8mb4',
    'mariadb_collate': 'utf8mb4_bin',
}
SHADOWED = (
    'block_device_mapping',
    'compute_nodes',
    'instance_actions',
    'instance_actions_events',
    'instance_extra',
    'instance_faults',
    'instance_info_caches',
    'instance_metadata',
    'instance_system_metadata',
    'instances',
    'migrations',
    'pci_devices',
    'services',
    'task_log',
)
# Columns that are enums. On PostgreSQL an enum type has a name, which the table itself uses already.
ENUMS = ('locked_by', 'migration_type')


# Tables that schedulers watch for changes.
WATCHED = ('compute_nodes', 'services')


def upgrade() -> None:
    create_task_log()
    for table in WATCHED:
        for column in ('updated_at', 'created_at', 'deleted_at'):
            op.create_index(f'{table}_{column}_idx', table, [column])
    metadata = sa.MetaData()
    for name in SHADOWED:
        create_shadow(sa.Table(name, metadata, autoload_with=op.get_bind(), resolve_fks=False))


def create_task_log() -> None:
    op.create_table(
        'task_log',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('task_name', sa.String(255), nullable=False),
        sa.Column('state', sa.String(255), nullable=False),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column('period_beginning', DATETIME, nullable=False),
        sa.Column('period_ending', DATETIME, nullable=False),
        sa.Column('message', sa.String(255), nullable=False),
        sa.Column('task_items', sa.Integer),
        sa.Column('errors', sa.Integer),
        sa.Column('created_at', DATETIME),
        sa.Column('updated_at', DATETIME),
        sa.Column('deleted_at', DATETIME),
        sa.Column('deleted', sa.Integer),
        sa.UniqueConstraint(
            'task_name',
            'host',
            'period_beginning',
            'period_ending',
            name='uniq_task_log0task_name0host0period_beginning0period_ending',
        ),
        **OPTIONS,
    )
    op.create_index('task_log_host_idx', 'task_log', ['host'])
    op.create_index('task_log_period_beginning_idx', 'task_log', ['period_beginning'])
    op.create_index('task_log_period_ending_idx', 'task_log', ['period_ending'])


def create_shadow(table: sa.Table) -> None:
    """Create the shadow of a table.

    It has the columns that the table has in this database at this revision, without constraints on their values.
    """
    columns = [
        sa.Column(column.name, sa.String(255) if column.name in ENUMS else column.type, nullable=column.nullable)
        for column in table.columns
    ]
    op.create_table(f'shadow_{table.name}', sa.Column('shadow_id', sa.Integer, primary_key=True), *columns, **OPTIONS)
