"""Widen JSON columns that grow with devices, vCPUs and extra specs beyond MySQL's TEXT (65,535 bytes).

Revision: 0b9e6d27c4f1, after f2b7d94e6a13
"""

from __future__ import annotations

from alembic import op

revision = '0b9e6d27c4f1'
down_revision = 'f2b7d94e6a13'
branch_labels = None
depends_on = None

COLUMNS = {
    'compute_nodes': ('pci_stats', 'numa_topology'),
    'instance_extra': (
        'device_metadata',
        'numa_topology',
        'pci_requests',
        'flavor',
        'vcpu_model',
        'migration_context',
        'keypairs',
        'trusted_certs',
        'resources',
    ),
}


def upgrade() -> None:
    """Widen the columns on MySQL and MariaDB. Other databases do not limit the length of texts."""
    if op.get_bind().dialect.name not in ('mysql', 'mariadb'):
        return
    for table, columns in COLUMNS.items():
        # One statement for each table, because the server copies the table for each statement that changes a type.
        changes = ', '.join(f'MODIFY {column} MEDIUMTEXT' for column in columns)
        for name in (table, f'shadow_{table}'):
            op.execute(f'ALTER TABLE {name} {changes}')
