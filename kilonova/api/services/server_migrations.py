"""Live migrations of one server that are under way."""
from __future__ import annotations

from typing import Any

from kilonova.api.services.lookup import Found
from kilonova.db.queries import migrations
from kilonova.errors import NotFound

LIVE = 'live-migration'


class NotLive(NotFound):
    msg_fmt = 'Migration %(id)s for server %(uuid)s is not live-migration.'


class NotUnderWay(NotFound):
    msg_fmt = 'Migration %(id)s for server %(uuid)s is not in progress.'


class Unknown(NotFound):
    msg_fmt = 'In-progress live migration %(id)s is not found for server %(uuid)s.'


def under_way(server: Found) -> list[dict[str, Any]]:
    """The newest first."""
    if server.cell is None:
        return []
    with server.cell.read() as conn:
        return migrations.by_instance(conn, server.uuid, statuses=migrations.LIVE_RUNNING, types=(LIVE,))


def one(server: Found, identifier: str) -> dict[str, Any]:
    """One of them by its number: Unknown, NotLive, NotUnderWay (all 404)."""
    row = None
    # No number of a row is longer; what is no number names none.
    if server.cell is not None and identifier.isascii() and identifier.isdigit() and len(identifier) < 10:
        with server.cell.read() as conn:
            row = migrations.get(conn, migration_id=int(identifier))
    if row is None or row['instance_uuid'] != server.uuid:
        raise Unknown(id=identifier, uuid=server.uuid)
    if row['migration_type'] != LIVE:
        raise NotLive(id=identifier, uuid=server.uuid)
    if row['status'] not in migrations.LIVE_RUNNING:
        raise NotUnderWay(id=identifier, uuid=server.uuid)
    return row
