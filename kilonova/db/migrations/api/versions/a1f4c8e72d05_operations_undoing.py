"""Add the column ``undoing`` to operations: the steps of an attempt are being undone.

Revision: a1f4c8e72d05, after 7c2e9f4a1d63
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = 'a1f4c8e72d05'
down_revision = '7c2e9f4a1d63'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('operations', sa.Column('undoing', sa.Boolean, nullable=False, server_default=sa.false()))
