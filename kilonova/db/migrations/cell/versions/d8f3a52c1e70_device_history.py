"""Add the history of devices: which server held a device, and from when to when.

Revision: d8f3a52c1e70, after c7e2d41f9b60
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = 'd8f3a52c1e70'
down_revision = 'c7e2d41f9b60'
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


def upgrade() -> None:
    for table in ('pci_devices', 'shadow_pci_devices'):
        op.add_column(table, sa.Column('held_since', DATETIME))
    op.create_index('pci_devices_uuid_idx', 'pci_devices', ['uuid'])
    op.create_table(
        'device_history',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('device_uuid', sa.String(36), nullable=False),
        sa.Column('compute_node_id', sa.Integer, nullable=False),
        sa.Column('address', sa.String(36), nullable=False),
        sa.Column('dev_type', sa.String(8), nullable=False),
        sa.Column('vendor_id', sa.String(4), nullable=False),
        sa.Column('product_id', sa.String(4), nullable=False),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('project_id', sa.String(255)),
        sa.Column('began_at', DATETIME),
        sa.Column('ended_at', DATETIME, nullable=False),
        **OPTIONS,
    )
    op.create_index('device_history_device_uuid_idx', 'device_history', ['device_uuid'])
    op.create_index('device_history_instance_uuid_idx', 'device_history', ['instance_uuid'])
    op.create_index('device_history_ended_at_idx', 'device_history', ['ended_at'])
