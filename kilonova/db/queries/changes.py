"""What changed of compute nodes, their services and aggregates since a reader last looked.

    now, nodes, services = everything(connection)
    seen = changed(connection, since=now - overlap)     # and again from seen.now

A row is stamped by the database's clock when its statement starts and is visible when its transaction commits, so a
reader looks back further than a transaction takes. Heartbeats stamp nothing: who is silent is asked for apart.
"""
from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa

from kilonova.db.clock import db_utcnow
from kilonova.db.models.api import Aggregate
from kilonova.db.models.base import DateTime
from kilonova.db.models.cell import ComputeNode, Instance, Service
from kilonova.db.queries.services import up
from kilonova.db.rows import Row, many

compute_nodes = ComputeNode.__table__
services = Service.__table__
instances = Instance.__table__
aggregates = Aggregate.__table__

COMPUTE = services.c.binary == 'nova-compute'
_SERVICE = [services.c[name] for name in ('id', 'uuid', 'host', 'binary', 'disabled', 'disabled_reason', 'forced_down',
                                          'last_seen_up', 'version', 'deleted')]

# Without a host, and none was chosen for them that has yet to take them.
_ON_NO_HOST = ('error', 'shelved_offloaded')


class Changed(NamedTuple):
    """``now`` by the database's clock; {row id: stamp} of nodes and of compute services."""

    now: dt.datetime
    nodes: dict[int, dt.datetime]
    services: dict[int, dt.datetime]


def _changes() -> sa.CompoundSelect[Any]:
    since = sa.bindparam('since', type_=DateTime)
    parts = [sa.select(sa.literal(0).label('kind'), sa.literal(0).label('id'), db_utcnow().label('stamp'))]
    for kind, table, criteria in ((1, compute_nodes, ()), (2, services, (COMPUTE,))):
        columns = table.c
        # One of them is never NULL; a literal would make MySQL's union one of strings.
        stamp = sa.func.coalesce(columns.deleted_at, columns.updated_at, columns.created_at)
        # Apart, not with OR: each is a range of an index.
        parts.extend(sa.select(sa.literal(kind), columns.id, stamp).where(columns[name] >= since, *criteria)
                     for name in ('updated_at', 'created_at', 'deleted_at'))
    return sa.union_all(*parts)


# Asked by each select: put together once.
_CHANGES = _changes()
_MARK = sa.select(sa.func.count(), sa.func.max(aggregates.c.id), sa.func.max(aggregates.c.updated_at),
                  sa.func.max(aggregates.c.created_at))


def changed(connection: sa.Connection, since: dt.datetime) -> Changed:
    """Rows stamped at ``since`` or later, deleted ones too; one statement."""
    found: list[dict[int, Any]] = [{}, {}, {}]
    for kind, row_id, stamp in connection.execute(_CHANGES, {'since': since}):
        found[kind][row_id] = stamp
    return Changed(found[0][0], found[1], found[2])


def everything(connection: sa.Connection) -> tuple[dt.datetime, list[Row], list[Row]]:
    """The time, all live nodes, all live compute services; three statements, the time first."""
    now = connection.execute(sa.select(db_utcnow())).scalar_one()
    nodes = many(connection.execute(sa.select(compute_nodes).where(compute_nodes.c.deleted == 0)))
    return now, nodes, many(connection.execute(sa.select(*_SERVICE).where(COMPUTE, services.c.deleted == 0)))


def nodes_by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """These nodes, deleted ones too; one statement."""
    return many(connection.execute(sa.select(compute_nodes).where(compute_nodes.c.id.in_(list(ids)))))


def services_by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """These services, deleted ones too; one statement."""
    return many(connection.execute(sa.select(*_SERVICE).where(services.c.id.in_(list(ids)))))


def down(connection: sa.Connection, down_time: float) -> set[int]:
    """Ids of the compute services that are not up; one statement."""
    return set(connection.execute(
        sa.select(services.c.id).where(COMPUTE, services.c.deleted == 0, sa.not_(up(down_time)))).scalars())


def settled(connection: sa.Connection, uuids: Collection[str]) -> set[str]:
    """Those of these servers that a host has taken, or had taken before they were offloaded, or that will never be
    taken; one statement."""
    return set(connection.execute(sa.select(instances.c.uuid).where(
        instances.c.uuid.in_(list(uuids)), sa.or_(
            instances.c.host.is_not(None), instances.c.deleted != 0, instances.c.vm_state.in_(_ON_NO_HOST)))).scalars())


def unknown(connection: sa.Connection, uuids: Collection[str]) -> set[str]:
    """Those of these servers that never were in this cell; one statement."""
    return set(uuids) - set(connection.execute(
        sa.select(instances.c.uuid).where(instances.c.uuid.in_(list(uuids)))).scalars())


def hosts_of(connection: sa.Connection, uuids: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """{server: (host, node)} of those of these servers that are on a host; one statement."""
    return {uuid: (host, node) for uuid, host, node in connection.execute(
        sa.select(instances.c.uuid, instances.c.host, instances.c.node).where(
            instances.c.uuid.in_(list(uuids)), instances.c.deleted == 0, instances.c.host.is_not(None)))}


def aggregates_mark(connection: sa.Connection) -> tuple[Any, ...]:
    """Equal as long as no aggregate, host or metadata of one was written; one statement.

    Whoever writes hosts or metadata of an aggregate stamps its ``updated_at`` (see ``queries.aggregates``).
    """
    return tuple(connection.execute(_MARK).one())
