"""Read and write the decisions of schedulers, which record why a server got its host (``scheduler_decisions``).

    add(connection, [{'request_id': …, 'instance_uuid': …, 'created_at': …, 'chosen': 'gpu1', 'body': {…}}])
    find(connection, server_uuid_or_request_id)         # oldest first
    of_action(connection, server_uuid, request_id)      # newest first

The table is in the API database.
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
    """Insert scheduler decisions.

    The ``body`` of each row is a value that can be encoded as JSON. Runs one SQL statement.
    """
    connection.execute(sa.insert(decisions), [{**row, 'body': pack(row['body'])} for row in rows])


def find(connection: sa.Connection, which: str) -> list[Row]:
    """Return the decisions about one server, or the decisions of one request, oldest first. Runs one SQL statement.

    ``which`` is the server's uuid or the request's id. The ``body`` of each row has one dict for each host (see
    ``told``).
    """
    found = many(
        connection.execute(
            sa.select(decisions)
            .where(sa.or_(decisions.c.instance_uuid == which, decisions.c.request_id == which))
            .order_by(decisions.c.id)
        )
    )
    return [{**row, 'body': told(unpack(row['body']))} for row in found]


def of_action(connection: sa.Connection, instance_uuid: str, request_id: str) -> list[Row]:
    """Return the decisions about a server in one request, newest first. Runs one SQL statement."""
    found = many(
        connection.execute(
            sa.select(decisions)
            .where(decisions.c.instance_uuid == instance_uuid, decisions.c.request_id == request_id)
            .order_by(decisions.c.id.desc())
        )
    )
    return [{**row, 'body': told(unpack(row['body']))} for row in found]


def prune(connection: sa.Connection, before: dt.datetime, keep: int) -> int:
    """Delete scheduler decisions that are old or too many, and return the number of deleted rows.

    Decisions that were written before the time ``before`` are deleted. If more than ``keep`` decisions (approximately)
    remain, the oldest of them are deleted, too. Runs two SQL statements.
    """
    newest = connection.execute(sa.select(sa.func.max(decisions.c.id))).scalar()
    if newest is None:
        return 0
    return connection.execute(
        sa.delete(decisions).where(sa.or_(decisions.c.created_at < before, decisions.c.id <= newest - keep))
    ).rowcount


def told(body: Any) -> Any:
    """Return the body of a scheduler decision in a form that is easy to read: one dict for each host.

    The database stores the values of several hosts column by column, such as {'host': ['gpu1', 'gpu2'], 'weight': [2,
    1]}. The result has a list instead, [{'host': 'gpu1', 'weight': 2}, {'host': 'gpu2', 'weight': 1}].
    """
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
        # An older release has stored the decision with one dict for each host already.
        return columns
    return (
        [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)] if columns else []
    )


def pack(body: Any) -> str:
    """Return a JSON value as compressed JSON, encoded as base64 text. ``unpack`` decodes the text."""
    return base64.b64encode(zlib.compress(json.dumps(body, separators=(',', ':')).encode(), 1)).decode()


def unpack(text: str | None) -> Any:
    """Return the JSON value that ``pack`` encoded, or None if the text is empty or None."""
    return None if not text else json.loads(zlib.decompress(base64.b64decode(text)))
