"""Add the column ``usage_serial`` to compute nodes: the serial number of the host's usage in the row.

Revision: e4a70c95d218, after b6d92e0f3a48
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = 'e4a70c95d218'
down_revision = 'b6d92e0f3a48'
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ('compute_nodes', 'shadow_compute_nodes'):
        op.add_column(table, sa.Column('usage_serial', sa.BigInteger, nullable=False, server_default='0'))
    # Columns of shadow tables have no defaults.
    with op.batch_alter_table('shadow_compute_nodes') as batch:
        batch.alter_column('usage_serial', server_default=None, existing_type=sa.BigInteger, existing_nullable=False)
