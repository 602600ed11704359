"""Who held a device from when to when (table ``device_history``); who holds it now, and since when, its own row says.

    add(conn, [7], server)                    # in the transaction that frees devices, before it does
    page(conn, server=server, after=None, limit=100)

Entries outlive devices, hosts and servers; ``purge`` deletes them when they are old.
"""
from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.clock import db_age
from kilonova.db.models.base import DateTime
from kilonova.db.models.cell import ComputeNode, DeviceHistory, Instance, PciDevice
from kilonova.db.queries.instances import utcnow
from kilonova.db.rows import Row, many

history = DeviceHistory.__table__
devices = PciDevice.__table__
nodes = ComputeNode.__table__
servers = Instance.__table__

# What an entry has of its device's row.
_COPIED = ('compute_node_id', 'address', 'dev_type', 'vendor_id', 'product_id', 'instance_uuid')
# Entries that one purge deletes of a cell.
BATCH = 1000
DAY = 86400


def add(conn: sa.Connection, device_ids: Iterable[int], instance_uuid: str) -> None:
    """The server held those of these devices that it holds, until now."""
    project = sa.select(servers.c.project_id).where(servers.c.uuid == instance_uuid).scalar_subquery()
    # No columns of nodes: on MySQL their rows would be locked, which the same transaction changes a moment later.
    found = sa.select(devices.c.uuid, *(devices.c[name] for name in _COPIED), devices.c.held_since, project,
                      sa.literal(utcnow(), DateTime)).where(
        devices.c.id.in_(list(device_ids)), devices.c.instance_uuid == instance_uuid, devices.c.uuid.is_not(None))
    conn.execute(history.insert().from_select(
        ['device_uuid', *_COPIED, 'began_at', 'project_id', 'ended_at'], found))


def page(conn: sa.Connection, *, after: int | None, limit: int, host: str | None = None,
         **filters: str | None) -> list[Row]:
    """At most ``limit`` entries with their ``host``, the newest first, behind the one whose id is ``after``. Filters:
    columns. A host that was deleted and archived is None."""
    query = sa.select(history, nodes.c.host).join_from(
        history, nodes, nodes.c.id == history.c.compute_node_id, isouter=True).where(*(
            history.c[name] == value for name, value in filters.items() if value is not None))
    if host is not None:
        query = query.where(nodes.c.host == host)
    if after is not None:
        query = query.where(history.c.id < after)
    return many(conn.execute(query.order_by(history.c.id.desc()).limit(limit)))


def has(conn: sa.Connection, device_uuid: str, number: int) -> bool:
    """Whether this database has an entry: its device and its id."""
    return conn.execute(sa.select(history.c.id).where(
        history.c.id == number, history.c.device_uuid == device_uuid)).first() is not None


@engine.retried
def purge(database: engine.Database, days: int) -> int:
    """Delete the oldest of what ended ``days`` ago, at most ``BATCH``; how many."""
    with database.read() as conn:
        old = list(conn.execute(sa.select(history.c.id).where(db_age(history.c.ended_at) >= days * DAY)
                                .order_by(history.c.ended_at).limit(BATCH)).scalars())
    if not old:
        return 0
    with database.write() as conn:
        return conn.execute(history.delete().where(history.c.id.in_(old))).rowcount
