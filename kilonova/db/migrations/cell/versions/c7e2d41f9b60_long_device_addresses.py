"""Widen the addresses of devices, so that they can contain the UUID of a mediated device.

Revision: c7e2d41f9b60, after a5c81f27d460
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = 'c7e2d41f9b60'
down_revision = 'a5c81f27d460'
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ('pci_devices', 'shadow_pci_devices'):
        with op.batch_alter_table(table) as batch:
            batch.alter_column('address', type_=sa.String(36), existing_type=sa.String(12), existing_nullable=False)
