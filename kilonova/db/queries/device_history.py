"""Read and write the table ``device_history``: which server held a PCI device, and from when to when.

    add(conn, [7], server)                    # in the transaction that releases the devices, before the release
    page(conn, server=server, after=None, limit=100)

The server that holds a device now, and since when, are in the row of the device. History entries remain when devices,
hosts and servers are deleted. ``purge`` deletes old entries.
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

# Columns of the device's row that are copied into a history entry.
_COPIED = ('compute_node_id', 'address', 'dev_type', 'vendor_id', 'product_id', 'instance_uuid')
# Maximum number of entries that one purge deletes in a cell.
BATCH = 1000
DAY = 86400


def add(conn: sa.Connection, device_ids: Iterable[int], instance_uuid: str) -> None:
    """Record that a server stops using these devices now, with one history entry for each device.

    Devices that the server does not hold are skipped.
    """
    project = sa.select(servers.c.project_id).where(servers.c.uuid == instance_uuid).scalar_subquery()
    # Do not read compute_nodes here: MySQL would lock rows of this table that the same transaction changes soon after.
    found = sa.select(
        devices.c.uuid,
        *(devices.c[name] for name in _COPIED),
        devices.c.held_since,
        project,
        sa.literal(utcnow(), DateTime),
    ).where(devices.c.id.in_(list(device_ids)), devices.c.instance_uuid == instance_uuid, devices.c.uuid.is_not(None))
    conn.execute(history.insert().from_select(['device_uuid', *_COPIED, 'began_at', 'project_id', 'ended_at'], found))


def page(
    conn: sa.Connection, *, after: int | None, limit: int, host: str | None = None, **filters: str | None
) -> list[Row]:
    """Return at most ``limit`` history entries with their ``host``, newest first, whose ids are less than ``after``.

    ``filters`` are {column: value}. The host is None if its node was deleted and archived.
    """
    query = (
        sa.select(history, nodes.c.host)
        .join_from(history, nodes, nodes.c.id == history.c.compute_node_id, isouter=True)
        .where(*(history.c[name] == value for name, value in filters.items() if value is not None))
    )
    if host is not None:
        query = query.where(nodes.c.host == host)
    if after is not None:
        query = query.where(history.c.id < after)
    return many(conn.execute(query.order_by(history.c.id.desc()).limit(limit)))


def has(conn: sa.Connection, device_uuid: str, number: int) -> bool:
    """Return whether this database has a history entry with the id ``number`` that is about this device."""
    return (
        conn.execute(
            sa.select(history.c.id).where(history.c.id == number, history.c.device_uuid == device_uuid)
        ).first()
        is not None
    )


@engine.retried
def purge(database: engine.Database, days: int) -> int:
    """Delete the oldest history entries whose period ended at least ``days`` days ago, at most ``BATCH`` entries.

    Return the number of deleted entries.
    """
    with database.read() as conn:
        old = list(
            conn.execute(
                sa.select(history.c.id)
                .where(db_age(history.c.ended_at) >= days * DAY)
                .order_by(history.c.ended_at)
                .limit(BATCH)
            ).scalars()
        )
    if not old:
        return 0
    with database.write() as conn:
        return conn.execute(history.delete().where(history.c.id.in_(old))).rowcount
