"""Count the PCI devices of a cell, for the API's metrics and for ``kilonova-manage``."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from kilonova.db.models.cell import ComputeNode, Instance, PciDevice

devices = PciDevice.__table__
nodes = ComputeNode.__table__
servers = Instance.__table__


class Counted(NamedTuple):
    """The number of devices of a host that have the same type, status and project.

    ``project_id`` is the project of the servers that hold the devices. It is None if no server holds the devices, or if
    the server is deleted.
    """

    host: str
    dev_type: str
    status: str
    project_id: str | None
    number: int


class Barred(NamedTuple):
    """A PCI device that ``with_words`` found because it may be barred. A barred device is not offered to servers.

    ``extra_info`` is the JSON text in which a barred device has the reasons. The caller must parse this text to find
    out whether the device is barred.
    """

    host: str
    dev_type: str
    extra_info: str


def counts(conn: sa.Connection) -> list[Counted]:
    """Return the numbers of PCI devices in a cell by host, type, status and project, sorted by host."""
    groups = (nodes.c.host, devices.c.dev_type, devices.c.status, servers.c.project_id)
    query = (
        sa.select(*groups, sa.func.count())
        .join_from(devices, nodes, nodes.c.id == devices.c.compute_node_id)
        .join(servers, sa.and_(servers.c.uuid == devices.c.instance_uuid, servers.c.deleted == 0), isouter=True)
        .where(devices.c.deleted == 0, nodes.c.host.is_not(None))
        .group_by(*groups)
        .order_by(*groups)
    )
    return [Counted(*row) for row in conn.execute(query)]


def with_words(conn: sa.Connection, words: tuple[str, ...]) -> list[Barred]:
    """Return the devices that may be barred, because their ``extra_info`` contains one of ``words`` as a JSON string.

    ``words`` are the keys of the reasons why a device is barred. The query can't tell keys from values in the JSON
    text, so the caller must parse the text.
    """
    query = (
        sa.select(nodes.c.host, devices.c.dev_type, devices.c.extra_info)
        .join_from(devices, nodes, nodes.c.id == devices.c.compute_node_id)
        .where(
            devices.c.deleted == 0,
            nodes.c.host.is_not(None),
            sa.or_(*(devices.c.extra_info.contains(f'"{word}"') for word in words)),
        )
        .order_by(nodes.c.host, devices.c.id)
    )
    return [Barred(*row) for row in conn.execute(query)]
