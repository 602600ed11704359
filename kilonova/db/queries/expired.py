"""Find servers and operations whose waiting time has expired by the database's clock.

    expired.soft_deleted(connection, 86400, 200)        # [Due(server='3b7d…')]

Each function runs one SQL statement, and returns at most ``limit`` results, oldest first. A caller that acts on a
result must use a compare-and-swap, because the row may have changed in the meantime.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from kilonova import states
from kilonova.db import engine
from kilonova.db.queries import instances as instance_queries
from kilonova.db.queries.instances import actions, instances
from kilonova.db.queries.instances import system_metadata_table as system_metadata
from kilonova.db.queries.operations import MOVES, migrations, operations


class Due(NamedTuple):
    """A server that has been in a state for too long, or that has a migration or operation that lasts too long.

    ``row`` is the uuid of this migration or operation, or '' if the server's own state has lasted too long, for example
    soft-deleted longer than reclaim_instance_interval.
    """

    server: str
    row: str = ''


def soft_deleted(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Return servers that were soft-deleted at least ``seconds`` ago and have no task state."""
    when = sa.func.coalesce(instances.c.deleted_at, instances.c.updated_at)
    return _due(
        conn,
        sa.select(instances.c.uuid).where(
            instances.c.deleted == 0,
            instances.c.vm_state == states.VmState.SOFT_DELETED.value,
            instances.c.task_state.is_(None),
        ),
        when,
        seconds,
        limit,
    )


def unconfirmed(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Return resized servers that have waited for a confirm or revert for at least ``seconds``.

    ``row`` of a result is the uuid of the migration.
    """
    when = sa.func.coalesce(migrations.c.updated_at, migrations.c.created_at)
    return _due(
        conn,
        sa.select(instances.c.uuid, migrations.c.uuid)
        .join_from(migrations, instances, instances.c.uuid == migrations.c.instance_uuid)
        .where(
            migrations.c.deleted == 0,
            migrations.c.status == 'finished',
            migrations.c.migration_type.in_(MOVES),
            instances.c.deleted == 0,
            instances.c.vm_state == states.VmState.RESIZED.value,
            instances.c.task_state.is_(None),
        ),
        when,
        seconds,
        limit,
    )


def shelved(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Return servers that were shelved at least ``seconds`` ago and are still on their host.

    The time counts by the clock of this process and not by the database's clock, because a conductor stored the time of
    shelving as text.
    """
    since = system_metadata.c.value
    latest = (instance_queries.utcnow() - datetime.timedelta(seconds=seconds)).isoformat()
    return [
        Due(*row)
        for row in conn.execute(
            sa.select(instances.c.uuid)
            .join_from(instances, system_metadata, system_metadata.c.instance_uuid == instances.c.uuid)
            .where(
                instances.c.deleted == 0,
                instances.c.vm_state == states.VmState.SHELVED.value,
                instances.c.task_state.is_(None),
                system_metadata.c.deleted == 0,
                system_metadata.c.key == 'shelved_at',
                since <= latest,
            )
            .order_by(since)
            .limit(limit)
        )
    ]


def rescued(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Return servers that were put into rescue at least ``seconds`` ago and have no task state."""
    when = (
        sa.select(sa.func.max(actions.c.start_time))
        .where(actions.c.instance_uuid == instances.c.uuid, actions.c.action == 'rescue')
        .scalar_subquery()
    )
    return _due(
        conn,
        sa.select(instances.c.uuid).where(
            instances.c.deleted == 0,
            instances.c.vm_state == states.VmState.RESCUED.value,
            instances.c.task_state.is_(None),
        ),
        when,
        seconds,
        limit,
    )


def builds(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Return boot operations that were created at least ``seconds`` ago and are not being undone.

    ``row`` of a result is the uuid of the operation.
    """
    return _due(
        conn,
        sa.select(operations.c.instance_uuid, operations.c.uuid).where(
            operations.c.kind == 'boot', operations.c.cancelled == sa.false(), operations.c.failed == sa.false()
        ),
        operations.c.created_at,
        seconds,
        limit,
    )


def _due(
    conn: sa.Connection, query: sa.Select[Any], when: sa.ColumnElement[object], seconds: float, limit: int
) -> list[Due]:
    return [Due(*row) for row in conn.execute(query.where(engine.db_age(when) >= seconds).order_by(when).limit(limit))]
