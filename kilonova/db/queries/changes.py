"""Find changes of compute nodes, their services and aggregates since a scheduler last read them.

    now, nodes, services = everything(connection)       # ``now`` is the time of the call
    seen = changed(connection, since=now - overlap)     # a ChangedHosts; ``seen.now`` is the time of the call
    seen = changed(connection, since=seen.now - overlap)

A row gets its timestamp when its statement starts, but other transactions see the row only after the commit. So each
call of ``changed`` asks for changes since a time before the previous call. This interval, ``overlap``, must be longer
than a transaction takes. Timestamps of rows and times of calls are by the database's clock. Heartbeats don't change the
timestamps of rows. ``down`` finds services whose heartbeats are missing.
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
_SERVICE = [
    services.c[name]
    for name in (
        'id',
        'uuid',
        'host',
        'binary',
        'disabled',
        'disabled_reason',
        'forced_down',
        'last_seen_up',
        'version',
        'deleted',
    )
]

# A server in one of these vm states is on no host, and does not wait for the scheduler to choose a host.
_ON_NO_HOST = ('error', 'shelved_offloaded')


class ChangedHosts(NamedTuple):
    """Changes of compute nodes and compute services since a scheduler last read them.

    Attributes:
        now: Time of this reading by the database's clock.
        nodes: {id of a changed row: its timestamp} of compute nodes.
        services: {id of a changed row: its timestamp} of compute services.
    """

    now: dt.datetime
    nodes: dict[int, dt.datetime]
    services: dict[int, dt.datetime]


def _changes() -> sa.CompoundSelect[Any]:
    since = sa.bindparam('since', type_=DateTime)
    parts = [sa.select(sa.literal(0).label('kind'), sa.literal(0).label('id'), db_utcnow().label('stamp'))]
    for kind, table, criteria in ((1, compute_nodes, ()), (2, services, (COMPUTE,))):
        columns = table.c
        # At least one of these columns is never NULL, so coalesce() needs no literal as its last argument.
        # With a literal argument, MySQL's coalesce() would return a text instead of a datetime.
        stamp = sa.func.coalesce(columns.deleted_at, columns.updated_at, columns.created_at)
        # Use one SELECT for each of the columns updated_at, created_at and deleted_at, which all have an index.
        # A single SELECT with OR would use no index.
        parts.extend(
            sa.select(sa.literal(kind), columns.id, stamp).where(columns[name] >= since, *criteria)
            for name in ('updated_at', 'created_at', 'deleted_at')
        )
    return sa.union_all(*parts)


# The SELECT of changed compute nodes and services, which runs for each scheduling request.
# SQLAlchemy's object for this SELECT is created only once, and not for each request.
_CHANGES = _changes()
_MARK = sa.select(
    sa.func.count(),
    sa.func.max(aggregates.c.id),
    sa.func.max(aggregates.c.updated_at),
    sa.func.max(aggregates.c.created_at),
)


def changed(connection: sa.Connection, since: dt.datetime) -> ChangedHosts:
    """Return the compute nodes and services whose timestamp is ``since`` or later, including deleted ones.

    Runs one SQL statement.
    """
    found: list[dict[int, Any]] = [{}, {}, {}]
    for kind, row_id, stamp in connection.execute(_CHANGES, {'since': since}):
        found[kind][row_id] = stamp
    return ChangedHosts(found[0][0], found[1], found[2])


def everything(connection: sa.Connection) -> tuple[dt.datetime, list[Row], list[Row]]:
    """Return (time, all compute nodes, all compute services), without deleted rows.

    Runs three SQL statements, and reads the time by the database's clock first.
    """
    now = connection.execute(sa.select(db_utcnow())).scalar_one()
    nodes = many(connection.execute(sa.select(compute_nodes).where(compute_nodes.c.deleted == 0)))
    return now, nodes, many(connection.execute(sa.select(*_SERVICE).where(COMPUTE, services.c.deleted == 0)))


def nodes_by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """Return the compute nodes with these ids, including deleted ones. Runs one SQL statement."""
    return many(connection.execute(sa.select(compute_nodes).where(compute_nodes.c.id.in_(list(ids)))))


def services_by_id(connection: sa.Connection, ids: Collection[int]) -> list[Row]:
    """Return the services with these ids, including deleted ones. Runs one SQL statement."""
    return many(connection.execute(sa.select(*_SERVICE).where(services.c.id.in_(list(ids)))))


def down(connection: sa.Connection, down_time: float) -> set[int]:
    """Return the ids of the compute services that are down. Runs one SQL statement.

    A service is down if it is forced down or its last heartbeat is older than ``down_time`` seconds.
    """
    return set(
        connection.execute(
            sa.select(services.c.id).where(COMPUTE, services.c.deleted == 0, sa.not_(up(down_time)))
        ).scalars()
    )


def settled(connection: sa.Connection, uuids: Collection[str]) -> set[str]:
    """Return which of these servers no longer need a host from the scheduler. Runs one SQL statement.

    These servers are on a host, are shelved and offloaded, are deleted, or are in ERROR.
    """
    return set(
        connection.execute(
            sa.select(instances.c.uuid).where(
                instances.c.uuid.in_(list(uuids)),
                sa.or_(instances.c.host.is_not(None), instances.c.deleted != 0, instances.c.vm_state.in_(_ON_NO_HOST)),
            )
        ).scalars()
    )


def unknown(connection: sa.Connection, uuids: Collection[str]) -> set[str]:
    """Return which of the servers in ``uuids`` were never in this cell. Runs one SQL statement."""
    return set(uuids) - set(
        connection.execute(sa.select(instances.c.uuid).where(instances.c.uuid.in_(list(uuids)))).scalars()
    )


def hosts_of(connection: sa.Connection, uuids: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """Return {server: (host, node)} for the servers in ``uuids`` that are on a host. Runs one SQL statement."""
    return {
        uuid: (host, node)
        for uuid, host, node in connection.execute(
            sa.select(instances.c.uuid, instances.c.host, instances.c.node).where(
                instances.c.uuid.in_(list(uuids)), instances.c.deleted == 0, instances.c.host.is_not(None)
            )
        )
    }


def aggregates_mark(connection: sa.Connection) -> tuple[Any, ...]:
    """Return a value that stays equal as long as no aggregate, host list or metadata of aggregates is written.

    The value is made from the timestamps of aggregates. Functions that write hosts or metadata of an aggregate also set
    its ``updated_at`` (see ``queries.aggregates``). Runs one SQL statement.
    """
    return tuple(connection.execute(_MARK).one())
