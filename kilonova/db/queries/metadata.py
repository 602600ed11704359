"""Read and write the metadata of servers, which are pairs of key and value that users set (``instance_metadata``).

    change(database, uuid, lambda pairs: {**pairs, 'a': 'b'}, method='update metadata')

The table has no unique key for the pairs. So a caller that changes pairs must lock the server's row first.
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
    """Return the metadata of a server as a dict, sorted by key."""
    rows = conn.execute(
        sa.select(table.c.key, table.c.value)
        .where(table.c.instance_uuid == uuid, table.c.deleted == 0)
        .order_by(table.c.key)
    )
    return {row.key: row.value for row in rows}


@engine.retried
def change(
    database: engine.Database, uuid: str, decide: Callable[[dict[str, str]], dict[str, str]], *, method: str
) -> dict[str, str]:
    """Replace the metadata of a server by the result of ``decide(pairs)``, and return the result.

    ``decide`` receives the present pairs, and may refuse by raising an exception. ``method`` names the request in
    errors. Only the differences are written, by at most one DELETE and one INSERT, while the server's row is locked.
    Raises InstanceNotFound if the server does not exist, and InstanceInvalidState if its state does not allow the
    change.
    """
    with database.write() as conn:
        instances.hold(conn, uuid, states.EDITABLE, method)
        before = get(conn, uuid)
        after = decide(dict(before))
        _write(conn, uuid, before, after)
        return after


def replace(conn: sa.Connection, uuid: str, after: dict[str, str]) -> None:
    """Replace the metadata of a server.

    The caller must have locked the server's row by an UPDATE of this row in the same transaction.
    """
    _write(conn, uuid, get(conn, uuid), after)


def _write(conn: sa.Connection, uuid: str, before: dict[str, str], after: dict[str, str]) -> None:
    gone = [key for key, value in before.items() if after.get(key) != value]
    if gone:
        conn.execute(table.delete().where(table.c.instance_uuid == uuid, table.c.deleted == 0, table.c.key.in_(gone)))
    new = [
        {'instance_uuid': uuid, 'key': key, 'value': value, 'deleted': 0}
        for key, value in after.items()
        if before.get(key) != value
    ]
    if new:
        conn.execute(table.insert(), new)
