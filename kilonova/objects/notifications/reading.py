"""Read a server from the database, for callers that send a notification and have only the server's uuid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kilonova.context import RequestContext
from kilonova.objects import storage
from kilonova.objects.instance import Instance
from kilonova.objects.instance_tables import TagList

if TYPE_CHECKING:
    from kilonova.db.engine import Database


def server(ctxt: RequestContext, database: Database, uuid: str) -> Instance | None:
    """Return a server with its metadata and tags, even if it is deleted, or None if the cell does not have it.

    Runs three SQL statements.
    """
    with database.read() as conn:
        instances = storage.queries('instances')
        row = instances.get(conn, uuid, deleted=True)
        if row is None:
            return None
        facts = storage.queries('servers').facts(conn, [uuid])[uuid]
        system_metadata = instances.get_system_metadata(conn, uuid)
    values, extra = instances.split(row)
    found = Instance.from_row(ctxt, values, extra, metadata=facts['metadata'], system_metadata=system_metadata)
    found.load((('tags', TagList.from_words(ctxt, uuid, facts['tags'])),))
    return found
