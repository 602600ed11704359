"""Reads of instance actions and their events (cell database): the stories of servers."""
from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from kilonova.db.models import cell as models

actions = models.InstanceAction.__table__
events = models.InstanceActionEvent.__table__
nodes, services = models.ComputeNode.__table__, models.Service.__table__


def page(conn: sa.Connection, instance_uuid: str, *, limit: int, marker: str | None = None,
         since: datetime.datetime | None = None,
         before: datetime.datetime | None = None) -> list[dict[str, Any]] | None:
    """Actions of a server, newest first, behind that of request ``marker``; None where that request did nothing.

    ``since`` and ``before`` (naive UTC) bound updated_at.
    """
    query = sa.select(actions).where(actions.c.instance_uuid == instance_uuid)
    if marker is not None:
        last = get(conn, instance_uuid, marker)
        if last is None:
            return None
        query = query.where(sa.or_(actions.c.created_at < last['created_at'], sa.and_(
            actions.c.created_at == last['created_at'], actions.c.id < last['id'])))
    if since is not None:
        query = query.where(actions.c.updated_at >= since)
    if before is not None:
        query = query.where(actions.c.updated_at <= before)
    rows = conn.execute(query.order_by(actions.c.created_at.desc(), actions.c.id.desc()).limit(limit)).mappings()
    return [dict(row) for row in rows]


def get(conn: sa.Connection, instance_uuid: str, request_id: str) -> dict[str, Any] | None:
    """What one request did to a server, or None."""
    row = conn.execute(sa.select(actions).where(actions.c.instance_uuid == instance_uuid,
                                                actions.c.request_id == request_id)).mappings().first()
    return dict(row) if row else None


def list_events(conn: sa.Connection, action_id: int) -> list[dict[str, Any]]:
    """Events of an action, newest first."""
    rows = conn.execute(sa.select(events).where(events.c.action_id == action_id).order_by(
        events.c.created_at.desc(), events.c.id.desc())).mappings()
    return [dict(row) for row in rows]


def reasons(conn: sa.Connection, action_ids: Iterable[int]) -> dict[int, str]:
    """Return what the last event of each action says that failed, or has not ended, as far as one says anything."""
    rows = conn.execute(sa.select(events.c.action_id, events.c.details).where(
        events.c.action_id.in_(list(action_ids)), events.c.details.is_not(None),
        sa.or_(events.c.result == 'Error', events.c.result.is_(None)))
        .order_by(events.c.id))
    return {row.action_id: row.details for row in rows}


def host_names(conn: sa.Connection) -> list[str]:
    """What the hosts and hypervisors of a cell are called, those included that are gone."""
    query = sa.union(sa.select(services.c.host), sa.select(nodes.c.hypervisor_hostname))
    return [name for (name,) in conn.execute(query) if name]
