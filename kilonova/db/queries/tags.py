"""Read and write the tags of servers (``tags``).

Each change locks the server's row, so that two concurrent changes can't together exceed the limit.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova import states
from kilonova.db import engine
from kilonova.db.collation import by_code_point
from kilonova.db.models.cell import Tag
from kilonova.db.queries import instances
from kilonova.db.rows import insert_missing
from kilonova.errors import Invalid

tags = Tag.__table__


class TooManyTags(Invalid):
    """No tag can be added, because the server already has the maximum number of tags (HTTP 400)."""

    msg_fmt = 'The number of tags exceeded the per-server limit %(limit)d'


def words(conn: sa.Connection, uuid: str) -> list[str]:
    """Return the tags of a server, sorted by code point."""
    return list(
        conn.execute(
            sa.select(tags.c.tag).where(tags.c.resource_id == uuid).order_by(by_code_point(tags.c.tag))
        ).scalars()
    )


@engine.retried
def replace(database: engine.Database, uuid: str, wanted: Iterable[str]) -> None:
    """Replace all tags of a server by the tags ``wanted``. Runs one DELETE and one INSERT.

    Raises InstanceNotFound if the server does not exist, and InstanceInvalidState if its state does not allow the
    change.
    """
    wanted = list(dict.fromkeys(wanted))
    with database.write() as conn:
        instances.hold(conn, uuid, states.EDITABLE, 'update tags')
        conn.execute(tags.delete().where(tags.c.resource_id == uuid, tags.c.tag.not_in(wanted)))
        insert_missing(conn, tags, [{'resource_id': uuid, 'tag': word} for word in wanted])


@engine.retried
def add(database: engine.Database, uuid: str, word: str, limit: int) -> bool:
    """Add a tag to a server. Return False if the server has this tag already.

    Raises TooManyTags if the server already has ``limit`` tags, InstanceNotFound if the server does not exist, and
    InstanceInvalidState if its state does not allow the change.
    """
    with database.write() as conn:
        instances.hold(conn, uuid, states.EDITABLE, 'update tag')
        there = words(conn, uuid)
        if word in there:
            return False
        if len(there) >= limit:
            raise TooManyTags(limit=limit)
        conn.execute(tags.insert(), {'resource_id': uuid, 'tag': word})
        return True


@engine.retried
def remove(database: engine.Database, uuid: str, word: str) -> bool:
    """Delete a tag of a server. Return False, without a change, if the server does not have this tag.

    Raises InstanceNotFound if the server does not exist, and InstanceInvalidState if its state does not allow the
    change.
    """
    with database.write() as conn:
        if word not in words(conn, uuid):
            return False
        instances.hold(conn, uuid, states.EDITABLE, 'delete tag')
        return conn.execute(tags.delete().where(tags.c.resource_id == uuid, tags.c.tag == word)).rowcount == 1


@engine.retried
def clear(database: engine.Database, uuid: str) -> None:
    """Delete all tags of a server.

    Raises InstanceNotFound if the server does not exist, and InstanceInvalidState if its state does not allow the
    change.
    """
    with database.write() as conn:
        instances.hold(conn, uuid, states.EDITABLE, 'delete tags')
        conn.execute(tags.delete().where(tags.c.resource_id == uuid))
