"""Add the column ``undoing`` to operations: the steps of an attempt are being undone.

Revision: b6d92e0f3a48, after d3f8a6b20c17
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = 'b6d92e0f3a48'
down_revision = 'd3f8a6b20c17'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('operations', sa.Column('undoing', sa.Boolean, nullable=False, server_default=sa.false()))
