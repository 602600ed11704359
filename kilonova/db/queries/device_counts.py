"""How many devices a cell has, by what operators watch."""
from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from kilonova.db.models.cell import ComputeNode, Instance, PciDevice

devices = PciDevice.__table__
nodes = ComputeNode.__table__
servers = Instance.__table__


class Counted(NamedTuple):
    """``number`` devices of a host with this type and status; ``project_id`` of the servers that hold them, None:
    nobody holds them, or their server is deleted."""

    host: str
    dev_type: str
    status: str
    project_id: str | None
    number: int


class Barred(NamedTuple):
    """A device that has text beside what was found of it in ``extra_info`` (JSON)."""

    host: str
    dev_type: str
    extra_info: str


def counts(conn: sa.Connection) -> list[Counted]:
    """Of all devices of a cell, by host."""
    groups = (nodes.c.host, devices.c.dev_type, devices.c.status, servers.c.project_id)
    query = (sa.select(*groups, sa.func.count()).join_from(
        devices, nodes, nodes.c.id == devices.c.compute_node_id)
        .join(servers, sa.and_(servers.c.uuid == devices.c.instance_uuid, servers.c.deleted == 0), isouter=True)
        .where(devices.c.deleted == 0, nodes.c.host.is_not(None)).group_by(*groups).order_by(*groups))
    return [Counted(*row) for row in conn.execute(query)]


def with_words(conn: sa.Connection, words: tuple[str, ...]) -> list[Barred]:
    """Devices whose ``extra_info`` has one of these keys, or perhaps only looks so: the caller reads it."""
    query = (sa.select(nodes.c.host, devices.c.dev_type, devices.c.extra_info)
             .join_from(devices, nodes, nodes.c.id == devices.c.compute_node_id)
             .where(devices.c.deleted == 0, nodes.c.host.is_not(None),
                    sa.or_(*(devices.c.extra_info.contains(f'"{word}"') for word in words)))
             .order_by(nodes.c.host, devices.c.id))
    return [Barred(*row) for row in conn.execute(query)]
