"""Read the servers that existed in a period, and read and write the hosts' usage audits (cell database)."""

from __future__ import annotations

import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova import texts
from kilonova.db import envelopes
from kilonova.db.models.cell import Instance, InstanceExtra, Service, TaskLog
from kilonova.db.queries import owners
from kilonova.db.queries.owners import Owner
from kilonova.db.rows import Row, insert_missing, many
from kilonova.errors import shortened

instances = Instance.__table__
extras = InstanceExtra.__table__
services = Service.__table__
task_log = TaskLog.__table__

_COLUMNS = tuple(
    instances.c[name]
    for name in (
        'id',
        'uuid',
        'project_id',
        'display_name',
        'vm_state',
        'launched_at',
        'terminated_at',
        'vcpus',
        'memory_mb',
        'root_gb',
        'ephemeral_gb',
    )
)


def active(
    conn: Connection,
    begin: datetime.datetime,
    end: datetime.datetime,
    *,
    owner: Owner,
    limit: int,
    after: int = 0,
    with_flavor: bool = False,
) -> list[Row]:
    """Return servers, including deleted ones, that existed at some time between ``begin`` and ``end`` (naive UTC).

    The servers are sorted by id, and have ids greater than ``after``. If ``with_flavor`` is True, each row has the
    flavor's name as 'flavor' ('' if the name can't be read). Runs one SQL statement.
    """
    query = sa.select(*_COLUMNS).where(
        instances.c.id > after,
        instances.c.launched_at < end,
        sa.or_(instances.c.terminated_at.is_(None), instances.c.terminated_at > begin),
    )
    query = query.where(owners.of(instances.c.project_id, owner))
    if with_flavor:
        query = query.add_columns(extras.c.flavor).outerjoin(extras, extras.c.instance_uuid == instances.c.uuid)
    rows = many(conn.execute(query.order_by(instances.c.id).limit(limit)))
    for row in rows if with_flavor else ():
        row['flavor'] = texts.read(
            f'flavor of server {row["uuid"]}',
            row['flavor'],
            lambda text: str(envelopes.current_flavor(text)['name']),
            '',
        )
    return rows


def position(conn: Connection, uuid: str, owner: Owner) -> int | None:
    """Return the id of a server's row, by which lists of servers are sorted and continued after a marker.

    The server may be deleted. Return None if the cell doesn't have the server, or if the server does not belong to the
    owner.
    """
    return conn.execute(
        sa.select(instances.c.id).where(instances.c.uuid == uuid, owners.of(instances.c.project_id, owner))
    ).scalar()


def audits(conn: Connection, task: str, begin: datetime.datetime, end: datetime.datetime) -> list[Row]:
    """Return the runs of a periodic task for exactly this period, sorted by host.

    Each row has host, state, task_items, errors and message.
    """
    columns = [task_log.c[name] for name in ('host', 'state', 'task_items', 'errors', 'message')]
    return many(
        conn.execute(
            sa.select(*columns)
            .where(
                task_log.c.task_name == task,
                task_log.c.period_beginning == begin,
                task_log.c.period_ending == end,
                task_log.c.deleted == 0,
            )
            .order_by(task_log.c.host)
        )
    )


def begin_audit(conn: Connection, values: dict[str, Any]) -> int | None:
    """Write that a run of a periodic task has begun, and return the id of its row.

    Return None if a row exists for the same task, host and period. ``values`` has task_name, state, host,
    period_beginning, period_ending and task_items.
    """
    there = [task_log.c[name] == values[name] for name in ('task_name', 'host', 'period_beginning', 'period_ending')]
    if conn.execute(sa.select(task_log.c.id).where(*there)).first() is not None:
        return None
    insert_missing(conn, task_log, [{'message': '', 'errors': 0, **values}])
    return conn.execute(sa.select(task_log.c.id).where(*there)).scalar()


def end_audit(conn: Connection, task_id: int, state: str, errors: int, message: str) -> None:
    """Write the final state, number of errors and message of a task's run. The message is cut to 255 characters."""
    conn.execute(
        task_log.update()
        .where(task_log.c.id == task_id)
        .values(state=state, errors=errors, message=shortened(message, 255))
    )


def of_host(conn: Connection, host: str, begin: datetime.datetime, end: datetime.datetime) -> list[str]:
    """Return the uuids of the servers that were on a host at some time in a period, sorted by id.

    A deleted server is counted on the host in its column launched_on, because its column host is empty.
    """
    gone = sa.and_(instances.c.host.is_(None), instances.c.deleted != 0, instances.c.launched_on == host)
    return list(
        conn.execute(
            sa.select(instances.c.uuid)
            .where(
                sa.or_(instances.c.host == host, gone),
                instances.c.launched_at < end,
                sa.or_(instances.c.terminated_at.is_(None), instances.c.terminated_at > begin),
            )
            .order_by(instances.c.id)
        ).scalars()
    )


def hosts(conn: Connection, binary: str) -> list[str]:
    """Return the names of the hosts that have a service of this ``binary``, including disabled services."""
    return list(
        conn.execute(
            sa.select(services.c.host)
            .where(services.c.binary == binary, services.c.deleted == 0)
            .order_by(services.c.host)
        ).scalars()
    )
