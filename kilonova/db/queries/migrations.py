"""Read and write rows of ``migrations``, the moves of servers.

    list_migrations(connection, filters={'status': 'finished', 'host': 'node1'}, limit=50)

The status of a running move is written together with the claim or the end state of its server (``queries.claims``,
``queries.instances``). ``create`` and ``update`` are for steps that write nothing else.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova import errors
from kilonova.db.models.cell import Migration
from kilonova.db.rows import Row, insert_missing, many, one

migrations = Migration.__table__

LIVE = migrations.c.deleted == 0

# Final statuses. A move with one of these statuses holds no resources on any host.
ENDED = ('confirmed', 'reverted', 'error', 'failed', 'completed', 'cancelled', 'done')

# Statuses of live migrations that are running.
LIVE_RUNNING = ('queued', 'preparing', 'running', 'post-migrating')

_EQUAL = ('source_compute', 'migration_type', 'hidden', 'user_id', 'project_id')


def get(connection: sa.Connection, *, uuid: str | None = None, migration_id: int | None = None) -> Row | None:
    """Return one migration by uuid or id, or None if it does not exist."""
    criterion = migrations.c.uuid == uuid if uuid is not None else migrations.c.id == migration_id
    return one(connection.execute(sa.select(migrations).where(LIVE, criterion)))


def by_uuids(connection: sa.Connection, uuids: Iterable[str]) -> list[Row]:
    """Return the migrations with these uuids, with any status."""
    return many(connection.execute(sa.select(migrations).where(LIVE, migrations.c.uuid.in_(list(uuids)))))


def by_instance(
    connection: sa.Connection,
    instance_uuid: str,
    statuses: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
) -> list[Row]:
    """Return the moves of a server, newest first."""
    query = sa.select(migrations).where(LIVE, migrations.c.instance_uuid == instance_uuid)
    if statuses is not None:
        query = query.where(migrations.c.status.in_(list(statuses)))
    if types is not None:
        query = query.where(migrations.c.migration_type.in_(list(types)))
    return many(connection.execute(query.order_by(migrations.c.created_at.desc(), migrations.c.id.desc())))


def unended_on_host(connection: sa.Connection, host: str, node: str | None = None) -> list[Row]:
    """Return the moves from or to a host (or one node of the host) that haven't ended, sorted by id."""
    ends = []
    for side in ('source', 'dest'):
        criterion = migrations.c[f'{side}_compute'] == host
        if node is not None:
            criterion = sa.and_(criterion, migrations.c[f'{side}_node'] == node)
        ends.append(criterion)
    return many(
        connection.execute(
            sa.select(migrations)
            .where(LIVE, sa.or_(*ends), migrations.c.status.not_in(ENDED))
            .order_by(migrations.c.id)
        )
    )


def unended_of_instance(connection: sa.Connection, instance_uuid: str) -> list[Row]:
    """Return the moves of a server that have not ended and so still hold resources, sorted by id."""
    return many(
        connection.execute(
            sa.select(migrations)
            .where(LIVE, migrations.c.instance_uuid == instance_uuid, migrations.c.status.not_in(ENDED))
            .order_by(migrations.c.id)
        )
    )


def unended_of_instances(connection: sa.Connection, instance_uuids: Iterable[str]) -> list[Row]:
    """Return the moves of several servers that have not ended and so still hold resources. Runs one SQL statement."""
    return many(
        connection.execute(
            sa.select(migrations).where(
                LIVE, migrations.c.instance_uuid.in_(list(instance_uuids)), migrations.c.status.not_in(ENDED)
            )
        )
    )


def end_all(connection: sa.Connection, instance_uuid: str, status: str) -> None:
    """Give this ``status`` to all moves of a server that haven't ended, because the server is deleted."""
    connection.execute(
        sa.update(migrations)
        .where(LIVE, migrations.c.instance_uuid == instance_uuid, migrations.c.status.not_in(ENDED))
        .values(status=status)
    )


def list_migrations(
    connection: sa.Connection,
    *,
    filters: dict[str, Any] | None = None,
    limit: int | None = None,
    marker: str | None = None,
) -> list[Row]:
    """Return migrations of a cell, newest first (sorted by created_at and id).

    ``filters`` may have host (source or destination), source_compute, instance_uuid (one or several), status (one or
    several), migration_type, hidden (bool), user_id, project_id, changes_since and changes_before (naive UTC,
    inclusive). ``marker`` is the uuid of the last migration on the previous page. Raises MarkerNotFound if this cell
    doesn't have the migration ``marker``.
    """
    query = sa.select(migrations).where(LIVE, *_criteria(filters or {}))
    if marker is not None:
        last = get(connection, uuid=marker)
        if last is None:
            raise errors.MarkerNotFound(marker=marker)
        query = query.where(after(last['created_at'], last['id']))
    query = query.order_by(migrations.c.created_at.desc(), migrations.c.id.desc())
    return many(connection.execute(query if limit is None else query.limit(limit)))


def after(created_at: dt.datetime, migration_id: int) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a migration comes after a given migration in a list that is sorted newest first.

    ``created_at`` and ``migration_id`` are the creation time and the id of the given migration.
    """
    return sa.or_(
        migrations.c.created_at < created_at,
        sa.and_(migrations.c.created_at == created_at, migrations.c.id < migration_id),
    )


def create(connection: sa.Connection, values: Row) -> Row:
    """Insert a migration and return it.

    If a migration with this uuid exists, because the caller's step is repeated, return it unchanged.
    """
    insert_missing(connection, migrations, [values])
    row = get(connection, uuid=values['uuid'])
    if row is None:
        raise errors.MigrationNotFound(migration_id=values['uuid'])
    return row


def update(connection: sa.Connection, uuid: str, values: Row, expected: Sequence[str] | None = None) -> bool:
    """Update columns of a migration, if its status is one of ``expected``.

    Return False if the migration does not exist or has another status.
    """
    statement = sa.update(migrations).where(LIVE, migrations.c.uuid == uuid)
    if expected is not None:
        statement = statement.where(migrations.c.status.in_(list(expected)))
    return connection.execute(statement.values(values)).rowcount == 1


def _criteria(filters: dict[str, Any]) -> list[sa.ColumnElement[bool]]:
    unknown = set(filters) - {'host', 'instance_uuid', 'status', 'changes_since', 'changes_before', *_EQUAL}
    if unknown:
        raise ValueError(f'unknown filters: {sorted(unknown)}')
    criteria: list[sa.ColumnElement[bool]] = [
        migrations.c[name] == sa.literal(filters[name], migrations.c[name].type)
        for name in _EQUAL
        if filters.get(name) is not None
    ]
    if filters.get('host') is not None:
        criteria.append(
            sa.or_(migrations.c.source_compute == filters['host'], migrations.c.dest_compute == filters['host'])
        )
    for name in ('instance_uuid', 'status'):
        value = filters.get(name)
        if value is not None:
            criteria.append(migrations.c[name].in_([value] if isinstance(value, str) else list(value)))
    changed = sa.func.coalesce(migrations.c.updated_at, migrations.c.created_at)
    if filters.get('changes_since') is not None:
        criteria.append(changed >= filters['changes_since'])
    if filters.get('changes_before') is not None:
        criteria.append(changed <= filters['changes_before'])
    return criteria
