"""Why servers went where they went, as schedulers wrote it down: ``scheduler_decisions`` of the api database.

    add(connection, [{'request_id', 'instance_uuid', 'created_at', 'chosen', 'body': {...}}])    # hosts in columns
    find(connection, server_uuid_or_request_id)         # oldest first
    of_action(connection, server_uuid, request_id)      # newest first
"""
from __future__ import annotations

import base64
import datetime as dt
import json
import zlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.models.api import SchedulerDecision
from kilonova.db.rows import Row, many

decisions = SchedulerDecision.__table__


def add(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Write them in one statement; ``body`` is what json takes."""
    connection.execute(sa.insert(decisions), [{**row, 'body': pack(row['body'])} for row in rows])


def find(connection: sa.Connection, which: str) -> list[Row]:
    """Those of a server or of a request, oldest first; one statement."""
    found = many(connection.execute(sa.select(decisions).where(
        sa.or_(decisions.c.instance_uuid == which, decisions.c.request_id == which)).order_by(decisions.c.id)))
    return [{**row, 'body': told(unpack(row['body']))} for row in found]


def of_action(connection: sa.Connection, instance_uuid: str, request_id: str) -> list[Row]:
    """Those about a server in one request, newest first; one statement."""
    found = many(connection.execute(sa.select(decisions).where(
        decisions.c.instance_uuid == instance_uuid, decisions.c.request_id == request_id)
        .order_by(decisions.c.id.desc())))
    return [{**row, 'body': told(unpack(row['body']))} for row in found]


def prune(connection: sa.Connection, before: dt.datetime, keep: int) -> int:
    """Drop those written before a time, and all but about the ``keep`` newest; returns how many. Two statements."""
    newest = connection.execute(sa.select(sa.func.max(decisions.c.id))).scalar()
    if newest is None:
        return 0
    return connection.execute(sa.delete(decisions).where(
        sa.or_(decisions.c.created_at < before, decisions.c.id <= newest - keep))).rowcount


def told(body: Any) -> Any:
    """The same host by host: where a decision holds {value: [of each host]} it has [{value: of this host}]."""
    if not body:
        return body
    said = dict(body)
    if 'filters' in said:
        said['filters'] = [{**step, 'fell': _hosts(step['fell'])} for step in said['filters']]
    if 'weighed' in said:
        said['weighed'] = _hosts(said['weighed'])
    return said


def _hosts(columns: dict[str, list[Any]] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(columns, list):
        # As it was written before there were columns.
        return columns
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)] \
        if columns else []


def pack(body: Any) -> str:
    """Compressed JSON as text."""
    return base64.b64encode(zlib.compress(json.dumps(body, separators=(',', ':')).encode(), 1)).decode()


def unpack(text: str | None) -> Any:
    """The opposite; None of nothing."""
    return None if not text else json.loads(zlib.decompress(base64.b64decode(text)))
