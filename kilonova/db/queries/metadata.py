"""Metadata of servers: the user's pairs (``instance_metadata``).

    change(database, uuid, lambda pairs: {**pairs, 'a': 'b'}, method='update metadata')

The pairs have no unique key in the database: whoever changes them holds the server's row first.
"""
from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from kilonova import states
from kilonova.db import engine
from kilonova.db.models.cell import InstanceMetadata
from kilonova.db.queries import instances

table = InstanceMetadata.__table__


def get(conn: sa.Connection, uuid: str) -> dict[str, str]:
    """The pairs of a server, by key."""
    rows = conn.execute(sa.select(table.c.key, table.c.value).where(
        table.c.instance_uuid == uuid, table.c.deleted == 0).order_by(table.c.key))
    return {row.key: row.value for row in rows}


@engine.retried
def change(database: engine.Database, uuid: str, decide: Callable[[dict[str, str]], dict[str, str]], *,
           method: str) -> dict[str, str]:
    """Make the pairs what ``decide(pairs)`` says, which may refuse by raising; returns them.

    Only what differs is written: one DELETE and one INSERT at most. Raises InstanceNotFound, InstanceInvalidState.
    """
    with database.write() as conn:
        instances.hold(conn, uuid, states.EDITABLE, method)
        before = get(conn, uuid)
        after = decide(dict(before))
        _write(conn, uuid, before, after)
        return after


def replace(conn: sa.Connection, uuid: str, after: dict[str, str]) -> None:
    """Make the pairs of a server, whose row the caller has written, these."""
    _write(conn, uuid, get(conn, uuid), after)


def _write(conn: sa.Connection, uuid: str, before: dict[str, str], after: dict[str, str]) -> None:
    gone = [key for key, value in before.items() if after.get(key) != value]
    if gone:
        conn.execute(table.delete().where(table.c.instance_uuid == uuid, table.c.deleted == 0,
                                          table.c.key.in_(gone)))
    new = [{'instance_uuid': uuid, 'key': key, 'value': value, 'deleted': 0} for key, value in after.items()
           if before.get(key) != value]
    if new:
        conn.execute(table.insert(), new)
