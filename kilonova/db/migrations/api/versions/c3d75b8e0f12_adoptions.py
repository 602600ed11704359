"""Add the table ``adoptions``: the takeover of a Nova, or its way back.

Revision: c3d75b8e0f12, after a1f4c8e72d05
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = 'c3d75b8e0f12'
down_revision = 'a1f4c8e72d05'
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
    op.create_table(
        'adoptions',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('state', sa.String(16), nullable=False),
        sa.Column('nova', MEDIUMTEXT, nullable=False),
        sa.Column('created_at', DATETIME),
        sa.Column('updated_at', DATETIME),
        **OPTIONS,
    )
