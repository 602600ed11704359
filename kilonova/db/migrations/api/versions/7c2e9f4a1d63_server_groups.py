"""Add tables for server groups, limits of users, and decisions of the scheduler.

Revision: 7c2e9f4a1d63, after 4b6d0c1f9a27
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = '7c2e9f4a1d63'
down_revision = '4b6d0c1f9a27'
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
    create_instance_groups()
    create_instance_group_member()
    create_instance_group_policy()
    create_project_user_quotas()
    create_scheduler_decisions()


def _create_table(name: str, *items: sa.schema.SchemaItem) -> None:
    op.create_table(name, *items, **OPTIONS)


def _timestamps() -> tuple[sa.Column[Any], ...]:
    return sa.Column('created_at', DATETIME), sa.Column('updated_at', DATETIME)


def create_instance_groups() -> None:
    _create_table(
        'instance_groups',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('user_id', sa.String(255)),
        sa.Column('project_id', sa.String(255)),
        sa.Column('uuid', sa.String(36), nullable=False),
        sa.Column('name', sa.String(255)),
        *_timestamps(),
        sa.UniqueConstraint('uuid', name='uniq_instance_groups0uuid'),
    )
    op.create_index('instance_groups_project_id_idx', 'instance_groups', ['project_id'])


def create_instance_group_member() -> None:
    _create_table(
        'instance_group_member',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('instance_uuid', sa.String(255)),
        sa.Column(
            'group_id',
            sa.Integer,
            sa.ForeignKey('instance_groups.id', name='fk_instance_group_member_group_id'),
            nullable=False,
        ),
        *_timestamps(),
    )
    op.create_index('instance_group_member_group_id_idx', 'instance_group_member', ['group_id'])
    op.create_index('instance_group_member_instance_uuid_idx', 'instance_group_member', ['instance_uuid'])


def create_instance_group_policy() -> None:
    _create_table(
        'instance_group_policy',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('policy', sa.String(255)),
        sa.Column(
            'group_id',
            sa.Integer,
            sa.ForeignKey('instance_groups.id', name='fk_instance_group_policy_group_id'),
            nullable=False,
        ),
        sa.Column('rules', sa.Text),
        *_timestamps(),
    )
    op.create_index('instance_group_policy_group_id_idx', 'instance_group_policy', ['group_id'])
    op.create_index('instance_group_policy_policy_idx', 'instance_group_policy', ['policy'])


def create_project_user_quotas() -> None:
    _create_table(
        'project_user_quotas',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('project_id', sa.String(255), nullable=False),
        sa.Column('user_id', sa.String(255), nullable=False),
        sa.Column('resource', sa.String(255), nullable=False),
        sa.Column('hard_limit', sa.Integer),
        *_timestamps(),
        sa.UniqueConstraint(
            'user_id', 'project_id', 'resource', name='uniq_project_user_quotas0user_id0project_id0resource'
        ),
    )
    op.create_index('project_user_quotas_project_id_idx', 'project_user_quotas', ['project_id'])
    op.create_index('project_user_quotas_user_id_idx', 'project_user_quotas', ['user_id'])


def create_scheduler_decisions() -> None:
    _create_table(
        'scheduler_decisions',
        sa.Column('id', sa.Integer, primary_key=True),
        sa.Column('request_id', sa.String(255)),
        sa.Column('instance_uuid', sa.String(36)),
        sa.Column('created_at', DATETIME),
        sa.Column('chosen', sa.String(255)),
        sa.Column('body', MEDIUMTEXT),
    )
    op.create_index('scheduler_decisions_created_at_idx', 'scheduler_decisions', ['created_at'])
    op.create_index('scheduler_decisions_instance_uuid_idx', 'scheduler_decisions', ['instance_uuid'])
    op.create_index('scheduler_decisions_request_id_idx', 'scheduler_decisions', ['request_id'])
