"""Add the table of tokens that open consoles.

Revision: a5c81f27d460, after e4a70c95d218
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = 'a5c81f27d460'
down_revision = 'e4a70c95d218'
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
    op.create_table(
        'console_auth_tokens',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('token_hash', sa.String(255), nullable=False),
        sa.Column('console_type', sa.String(255), nullable=False),
        sa.Column('compute_host', sa.String(255), nullable=False),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column('port', sa.Integer, nullable=False),
        sa.Column('tls_port', sa.Integer),
        sa.Column('internal_access_path', sa.String(255)),
        sa.Column('instance_uuid', sa.String(36), nullable=False),
        sa.Column('access_url_base', sa.String(255)),
        sa.Column('expires', sa.Integer, nullable=False),
        sa.Column('created_at', DATETIME),
        sa.Column('updated_at', DATETIME),
        sa.UniqueConstraint('token_hash', name='uniq_console_auth_tokens0token_hash'),
        **OPTIONS,
    )
    op.create_index('console_auth_tokens_instance_uuid_idx', 'console_auth_tokens', ['instance_uuid'])
    op.create_index('console_auth_tokens_expires_idx', 'console_auth_tokens', ['expires'])
