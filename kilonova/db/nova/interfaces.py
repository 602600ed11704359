"""Write the table ``virtual_interfaces`` of a Nova, which Kilonova does not have: the interfaces with their tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.engine import Connection
from kilonova.db.nova.source import NovaDatabase
from kilonova.db.rows import Row

TABLE = 'virtual_interfaces'


def write(
    nova: NovaDatabase, connection: Connection, caches: Sequence[Row], tags: Mapping[tuple[str, str], str]
) -> None:
    """Make Nova's interfaces of some servers those of the servers' info caches.

    ``caches`` are rows of ``instance_info_caches``. ``tags`` is {(uuid of a server, id of a port): tag}. Interfaces
    that do not exist any more are marked as deleted.
    """
    if not nova.has(TABLE):
        return
    table = nova.table(TABLE)
    servers = [row['instance_uuid'] for row in caches]
    query = sa.select(table.c.id, table.c.uuid, table.c.instance_uuid, table.c.tag).where(
        table.c.instance_uuid.in_(servers), table.c.deleted == 0
    )
    known = {(row.instance_uuid, row.uuid): row for row in connection.execute(query)}
    wanted: dict[tuple[str, str], Any] = {
        (row['instance_uuid'], vif['id']): vif
        for row in caches
        if not row['deleted']
        for vif in json.loads(row['network_info'] or '[]')
    }
    new = [
        {
            'uuid': port,
            'address': f'{vif.get("address")}/{port}',
            'instance_uuid': server,
            'tag': tags.get((server, port)),
            'deleted': 0,
        }
        for (server, port), vif in wanted.items()
        if (server, port) not in known
    ]
    if new:
        connection.execute(sa.insert(table), new)
    for key, row in known.items():
        if key not in wanted:
            connection.execute(sa.update(table).where(table.c.id == row.id).values(deleted=row.id))
        elif row.tag != tags.get(key):
            connection.execute(sa.update(table).where(table.c.id == row.id).values(tag=tags.get(key)))
