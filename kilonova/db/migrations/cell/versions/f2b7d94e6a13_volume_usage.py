"""Add the table of what guests read from and write to volumes, and its shadow table.

Revision: f2b7d94e6a13, after d8f3a52c1e70
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = 'f2b7d94e6a13'
down_revision = 'd8f3a52c1e70'
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
COUNTERS = ('reads', 'read_bytes', 'writes', 'write_bytes')


def upgrade() -> None:
    op.create_table(
        'volume_usage_cache',
        sa.Column('id', sa.Integer, primary_key=True),
        *columns(),
        sa.ForeignKeyConstraint(['instance_uuid'], ['instances.uuid'], name='fk_volume_usage_cache_instance_uuid'),
        sa.UniqueConstraint('volume_id', 'instance_uuid', name='uniq_volume_usage_cache0volume_id0instance_uuid'),
        **OPTIONS,
    )
    op.create_index('volume_usage_cache_instance_uuid_idx', 'volume_usage_cache', ['instance_uuid'])
    op.create_table(
        'shadow_volume_usage_cache',
        sa.Column('shadow_id', sa.Integer, primary_key=True),
        sa.Column('id', sa.Integer, nullable=False),
        *columns(),
        **OPTIONS,
    )


def columns() -> list[sa.Column[Any]]:
    return [
        sa.Column('volume_id', sa.String(36), nullable=False),
        sa.Column('instance_uuid', sa.String(36)),
        sa.Column('project_id', sa.String(255)),
        sa.Column('user_id', sa.String(255)),
        sa.Column('availability_zone', sa.String(255)),
        sa.Column('tot_last_refreshed', DATETIME),
        *(sa.Column(f'tot_{name}', sa.BigInteger) for name in COUNTERS),
        sa.Column('curr_last_refreshed', DATETIME),
        *(sa.Column(f'curr_{name}', sa.BigInteger) for name in COUNTERS),
        sa.Column('created_at', DATETIME),
        sa.Column('updated_at', DATETIME),
        sa.Column('deleted_at', DATETIME),
        sa.Column('deleted', sa.Integer),
    ]
