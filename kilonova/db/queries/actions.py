"""Read instance actions and their events, the history of a server (cell database)."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from kilonova.db.models import cell as models

actions = models.InstanceAction.__table__
events = models.InstanceActionEvent.__table__
nodes, services = models.ComputeNode.__table__, models.Service.__table__


def page(
    conn: sa.Connection,
    instance_uuid: str,
    *,
    limit: int,
    marker: str | None = None,
    since: datetime.datetime | None = None,
    before: datetime.datetime | None = None,
) -> list[dict[str, Any]] | None:
    """Return at most ``limit`` actions of a server, newest first.

    ``marker`` is the request id of the last action on the previous page: the result continues after this action. If
    ``since`` or ``before`` (naive UTC) are given, updated_at must not be before ``since`` or after ``before``. Return
    None if the server has no action with the request id ``marker``.
    """
    query = sa.select(actions).where(actions.c.instance_uuid == instance_uuid)
    if marker is not None:
        # A request may have several actions, and the previous page may have ended with any of them.
        # Continue after the request's oldest action: otherwise pages could repeat actions and never end.
        last = get(conn, instance_uuid, marker, newest=False)
        if last is None:
            return None
        query = query.where(
            sa.or_(
                actions.c.created_at < last['created_at'],
                sa.and_(actions.c.created_at == last['created_at'], actions.c.id < last['id']),
            )
        )
    if since is not None:
        query = query.where(actions.c.updated_at >= since)
    if before is not None:
        query = query.where(actions.c.updated_at <= before)
    rows = conn.execute(query.order_by(actions.c.created_at.desc(), actions.c.id.desc()).limit(limit)).mappings()
    return [dict(row) for row in rows]


def get(conn: sa.Connection, instance_uuid: str, request_id: str, *, newest: bool = True) -> dict[str, Any] | None:
    """Return the action of a request on a server, or None if the request has no action on it.

    If the request has several actions on the server, the newest one is returned, or the oldest one if ``newest`` is
    False. For example, a delete of a resized server also confirms the resize, with the same request id.
    """
    turn = sa.desc if newest else sa.asc
    row = (
        conn.execute(
            sa.select(actions)
            .where(actions.c.instance_uuid == instance_uuid, actions.c.request_id == request_id)
            .order_by(turn(actions.c.created_at), turn(actions.c.id))
            .limit(1)
        )
        .mappings()
        .first()
    )
    return dict(row) if row else None


def list_events(conn: sa.Connection, action_id: int) -> list[dict[str, Any]]:
    """Return the events of an action, newest first."""
    rows = conn.execute(
        sa.select(events)
        .where(events.c.action_id == action_id)
        .order_by(events.c.created_at.desc(), events.c.id.desc())
    ).mappings()
    return [dict(row) for row in rows]


def reasons(conn: sa.Connection, action_ids: Iterable[int]) -> dict[int, str]:
    """Return {action id: details of the action's last event that failed or has not ended}.

    Actions that have no failed or unfinished event are left out.
    """
    rows = conn.execute(
        sa.select(events.c.action_id, events.c.details)
        .where(
            events.c.action_id.in_(list(action_ids)),
            events.c.details.is_not(None),
            sa.or_(events.c.result == 'Error', events.c.result.is_(None)),
        )
        .order_by(events.c.id)
    )
    return {row.action_id: row.details for row in rows}


def host_names(conn: sa.Connection) -> list[str]:
    """Return the names of the hosts and hypervisors of a cell, including deleted ones."""
    query = sa.union(sa.select(services.c.host), sa.select(nodes.c.hypervisor_hostname))
    return [name for (name,) in conn.execute(query) if name]
