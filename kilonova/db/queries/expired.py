"""What is over by the database's clock: one bounded statement each, the oldest first.

    expired.soft_deleted(connection, 86400, 200)        # [Due(server='3b7d…')]

Whoever acts on it does so by a compare-and-swap: it may be over for another reason by then.
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
    """A server, and the uuid of its row that is over, where that isn't the server's own."""

    server: str
    row: str = ''


def soft_deleted(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Servers that were soft-deleted ``seconds`` ago or earlier, and at which nobody works."""
    when = sa.func.coalesce(instances.c.deleted_at, instances.c.updated_at)
    return _due(conn, sa.select(instances.c.uuid).where(
        instances.c.deleted == 0, instances.c.vm_state == states.VmState.SOFT_DELETED.value,
        instances.c.task_state.is_(None)), when, seconds, limit)


def unconfirmed(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Resized servers whose move (``row``) has waited for an answer for ``seconds``."""
    when = sa.func.coalesce(migrations.c.updated_at, migrations.c.created_at)
    return _due(conn, sa.select(instances.c.uuid, migrations.c.uuid).join_from(
        migrations, instances, instances.c.uuid == migrations.c.instance_uuid).where(
        migrations.c.deleted == 0, migrations.c.status == 'finished', migrations.c.migration_type.in_(MOVES),
        instances.c.deleted == 0, instances.c.vm_state == states.VmState.RESIZED.value,
        instances.c.task_state.is_(None)), when, seconds, limit)


def shelved(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Shelved servers that are still on their host after ``seconds``, by the clock of whoever asks: when they were
    shelved is a text that a conductor wrote."""
    since = system_metadata.c.value
    latest = (instance_queries.utcnow() - datetime.timedelta(seconds=seconds)).isoformat()
    return [Due(*row) for row in conn.execute(sa.select(instances.c.uuid).join_from(
        instances, system_metadata, system_metadata.c.instance_uuid == instances.c.uuid).where(
        instances.c.deleted == 0, instances.c.vm_state == states.VmState.SHELVED.value,
        instances.c.task_state.is_(None), system_metadata.c.deleted == 0, system_metadata.c.key == 'shelved_at',
        since <= latest).order_by(since).limit(limit))]


def rescued(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Servers that were put into rescue ``seconds`` ago or earlier, and at which nobody works."""
    when = sa.select(sa.func.max(actions.c.start_time)).where(
        actions.c.instance_uuid == instances.c.uuid, actions.c.action == 'rescue').scalar_subquery()
    return _due(conn, sa.select(instances.c.uuid).where(
        instances.c.deleted == 0, instances.c.vm_state == states.VmState.RESCUED.value,
        instances.c.task_state.is_(None)), when, seconds, limit)


def builds(conn: sa.Connection, seconds: float, limit: int) -> list[Due]:
    """Boots (``row``) that have been in this database for ``seconds`` and are not being unwound."""
    return _due(conn, sa.select(operations.c.instance_uuid, operations.c.uuid).where(
        operations.c.kind == 'boot', operations.c.cancelled == sa.false(), operations.c.failed == sa.false()),
        operations.c.created_at, seconds, limit)


def _due(conn: sa.Connection, query: sa.Select[Any], when: sa.ColumnElement[object], seconds: float,
         limit: int) -> list[Due]:
    return [Due(*row) for row in conn.execute(
        query.where(engine.db_age(when) >= seconds).order_by(when).limit(limit))]
