"""Read and write rows of ``services``: daemons, their heartbeats, and whether they are up.

    with cell.write() as connection:
        service = get_or_create(connection, 'node1', 'nova-compute', 'compute', version=73)
        report(connection, service['id'])

A service is up if its last heartbeat is at most ``down_time`` seconds old by the database's clock, and it isn't forced
down. Soft-deleted rows are never returned.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from kilonova.db.clock import db_age, db_utcnow
from kilonova.db.models.cell import ComputeNode, PciDevice, Service
from kilonova.db.queries import adoption
from kilonova.db.rows import Row, insert_missing, many, one, soft_delete

services = Service.__table__
compute_nodes = ComputeNode.__table__
pci_devices = PciDevice.__table__

LIVE = services.c.deleted == 0
COMPUTE = 'nova-compute'
# If a host disabled its own service, the reason begins with this prefix.
AUTO = 'AUTO:'
# Seconds since the last heartbeat of a service, or since its creation if it has never reported.
_AGE = db_age(sa.func.coalesce(services.c.last_seen_up, services.c.created_at))
_FORCED = sa.func.coalesce(services.c.forced_down, sa.false())
# Conditions of the compute services whose heartbeats count: not deleted and not forced down.
_REPORTING = (LIVE, services.c.binary == COMPUTE, sa.not_(_FORCED))
# These statements run every few seconds, so they are built only once.
_NEWEST = sa.select(sa.func.min(_AGE)).where(*_REPORTING)
_COMPUTES = sa.select(
    services.c.host,
    _AGE.label('age'),
    _FORCED.label('forced'),
    sa.func.coalesce(services.c.disabled, sa.false()).label('disabled'),
    sa.func.coalesce(_NEWEST.correlate(None).scalar_subquery(), _AGE).label('newest'),
).where(LIVE, services.c.binary == COMPUTE)
_QUIET = _COMPUTES.where(sa.or_(_FORCED, sa.bindparam('down_time', type_=sa.Double) < _AGE))
_FEW = sa.and_(services.c.id.in_(sa.bindparam('few', expanding=True)), LIVE)
_AGES = sa.select(services.c.id, _AGE.label('age')).where(_FEW)
_REPORT = sa.update(services).values(
    report_count=services.c.report_count + 1, last_seen_up=db_utcnow(), updated_at=services.c.updated_at
)
# Maximum number of services whose heartbeats ``report_together`` writes by one statement.
_TOGETHER = 1000
# The SELECT for the last heartbeat of the compute service of the host ``name``.
_HEARD = _COMPUTES.where(services.c.host == sa.bindparam('name'))


class Heard(NamedTuple):
    """The last heartbeat of a compute service.

    Attributes:
        host: Name of the host.
        age: Age of the last heartbeat in seconds.
        forced_down: True if an operator has forced the service down.
        disabled: True if the service is disabled.
        newest: Age in seconds of the newest heartbeat of any compute service. If it is large, too, the reason may be
        that
            no heartbeat was recorded, and not that the host is down.
    """

    host: str
    age: float
    forced_down: bool
    disabled: bool
    newest: float


def up(down_time: float) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a service is up.

    It is up if it isn't forced down and its last heartbeat is at most ``down_time`` seconds old.
    """
    age = db_age(sa.func.coalesce(services.c.last_seen_up, services.c.created_at))
    forced = sa.func.coalesce(services.c.forced_down, sa.false())
    return sa.and_(forced == sa.false(), sa.func.abs(age) <= down_time)


def get(
    connection: sa.Connection,
    *,
    service_id: int | None = None,
    uuid: str | None = None,
    host: str | None = None,
    binary: str | None = None,
    down_time: float | None = None,
) -> Row | None:
    """Return one service by id, by uuid, or by host and binary, or None if it does not exist.

    The row has the additional key ``up`` if ``down_time`` is given.
    """
    wanted = {'id': service_id, 'uuid': uuid, 'host': host, 'binary': binary}
    criteria = [services.c[name] == value for name, value in wanted.items() if value is not None]
    if not criteria:
        raise ValueError('to find a service, its id, its uuid, or its host and binary are needed')
    return one(connection.execute(_select(down_time).where(LIVE, *criteria)))


def get_or_create(
    connection: sa.Connection,
    host: str,
    binary: str,
    topic: str,
    *,
    version: int = 0,
    disabled: bool = False,
    disabled_reason: str | None = None,
) -> Row:
    """Return the service of a daemon that starts, and insert its row if it does not exist.

    ``disabled`` and ``disabled_reason`` are written only to a new row. ``version`` is written to an existing row, too.
    """
    found = get(connection, host=host, binary=binary)
    if found is None:
        insert_missing(
            connection,
            services,
            [
                {
                    'uuid': str(uuids.uuid4()),
                    'host': host,
                    'binary': binary,
                    'topic': topic,
                    'version': version,
                    'disabled': disabled,
                    'disabled_reason': disabled_reason,
                }
            ],
            created_at=db_utcnow(),
        )
        found = get(connection, host=host, binary=binary)
    if found is None:
        raise LookupError(f'service {binary} of {host} was neither found nor created')
    if found['version'] != version:
        update(connection, found['id'], {'version': version})
        found['version'] = version
    return found


def create(connection: sa.Connection, values: Row) -> Row:
    """Insert a service with these values and return its row. The row gets a new uuid unless ``values`` has one."""
    values = {'uuid': str(uuids.uuid4()), 'created_at': db_utcnow(), **values}
    connection.execute(sa.insert(services).values(values))
    row = get(connection, uuid=values['uuid'])
    if row is None:
        raise LookupError(f'service {values["uuid"]} was deleted right after its creation')
    return row


def report(connection: sa.Connection, service_id: int) -> bool:
    """Write a heartbeat. Return False if the service's row does not exist any more. Runs one SQL statement.

    ``updated_at`` is left unchanged, because a heartbeat does not count as a change of the service.
    """
    return connection.execute(_REPORT.where(services.c.id == service_id, LIVE)).rowcount == 1


def report_together(connection: sa.Connection, service_ids: Sequence[int], down_time: float) -> dict[int, bool]:
    """Write the heartbeats of many services.

    Return {service id: True if the service counts as down}. Ids of services that don't exist are left out. No heartbeat
    is written for a service that counts as down, because the heartbeat may be an old message from a host that is dead
    now. The caller must ask such a host to report by an RPC call. Runs two SQL statements for each thousand services.
    Even without any service, one statement tests the database.
    """
    silent: dict[int, bool] = {}
    for few in [service_ids[at : at + _TOGETHER] for at in range(0, len(service_ids), _TOGETHER)] or [()]:
        found = connection.execute(_AGES, {'few': few}).all()
        silent |= {row.id: row.age > down_time for row in found}
        heard = [row.id for row in found if not silent[row.id]]
        if heard:
            connection.execute(_REPORT.where(_FEW), {'few': heard})
    return silent


def update(connection: sa.Connection, service_id: int, values: Row) -> bool:
    """Update columns of a service. Return False if its row does not exist any more.

    Heartbeats are not written by this function, but by ``report``.
    """
    result = connection.execute(sa.update(services).where(services.c.id == service_id, LIVE).values(values))
    return result.rowcount == 1


def switch(connection: sa.Connection, service_id: int, values: Row) -> None:
    """Enable or disable a service with a reason, on behalf of its own host.

    Nothing is written if an administrator has disabled the service in the meantime.
    """
    auto = sa.or_(
        sa.func.coalesce(services.c.disabled, sa.false()) == sa.false(), services.c.disabled_reason.startswith(AUTO)
    )
    connection.execute(sa.update(services).where(services.c.id == service_id, LIVE, auto).values(values))


def list_services(
    connection: sa.Connection,
    *,
    down_time: float,
    host: str | None = None,
    binary: str | None = None,
    hosts: Iterable[str] | None = None,
    disabled: bool | None = None,
) -> list[Row]:
    """Return services that fit the filters, each with ``up``, sorted by id."""
    query = _select(down_time).where(LIVE).order_by(services.c.id)
    if host is not None:
        query = query.where(services.c.host == host)
    if binary is not None:
        query = query.where(services.c.binary == binary)
    if hosts is not None:
        query = query.where(services.c.host.in_(list(hosts)))
    if disabled is not None:
        query = query.where(services.c.disabled == sa.literal(disabled))
    return many(connection.execute(query))


def host_is_up(connection: sa.Connection, host: str, binary: str, down_time: float) -> bool | None:
    """Return whether a host's service of this binary is up, or None if the host has no such service."""
    return connection.execute(
        sa.select(up(down_time)).where(LIVE, services.c.host == host, services.c.binary == binary)
    ).scalar()


def newest_report(connection: sa.Connection) -> float | None:
    """Return the age in seconds of the newest heartbeat of all compute services that are not forced down.

    Return None if there is no such service.
    """
    return connection.execute(_NEWEST).scalar()


def report_of(connection: sa.Connection, host: str) -> Heard | None:
    """Return the last heartbeat of a host's compute service, or None if the host has none. Runs one SQL statement."""
    row = connection.execute(_HEARD, {'name': host}).first()
    return _heard(row) if row is not None else None


def quiet_hosts(connection: sa.Connection, down_time: float) -> list[Heard]:
    """Return the compute services that are forced down or whose last heartbeat is older than ``down_time`` seconds.

    Runs one SQL statement.
    """
    rows = connection.execute(_QUIET, {'down_time': down_time})
    return [_heard(row) for row in rows]


def _heard(row: Sequence[Any]) -> Heard:
    return Heard(row[0], float(row[1]), bool(row[2]), bool(row[3]), float(row[4]))


def minimum_version(connection: sa.Connection, binary: str) -> int:
    """Return the lowest version of the services of this binary that aren't forced down, or 0 if there is none.

    Hosts that still run nova-compute (``adoption.NOT_ADOPTED``) are left out, because no messages are sent to them.
    Services that have not reported for a long time are included, because their host may start again with its old
    release, and would then read messages that were sent to its queue in the meantime.
    """
    lowest = connection.execute(
        sa.select(sa.func.min(services.c.version)).where(
            LIVE, services.c.binary == binary, sa.not_(_FORCED), services.c.version != adoption.NOT_ADOPTED
        )
    ).scalar()
    return lowest or 0


class Outdated(NamedTuple):
    """A service whose version is lower than required (see ``outdated``).

    ``silent`` is the age of the service's last heartbeat in seconds, or None if it never reported.
    """

    binary: str
    host: str
    version: int
    silent: float | None


def outdated(
    connection: sa.Connection, binary: str, below: int, limit: int, silent_for: float | None = None
) -> tuple[list[Outdated], int]:
    """Return (services of this binary whose version is lower than ``below``, their total number).

    At most ``limit`` services are returned, lowest versions first. Services that are forced down are left out. If
    ``silent_for`` is given, only services that have not reported for this number of seconds are counted and returned.
    Runs two SQL statements.
    """
    wanted = [LIVE, services.c.binary == binary, sa.not_(_FORCED), services.c.version < below]
    wanted.append(services.c.version != adoption.NOT_ADOPTED)
    if silent_for is not None:
        wanted.append(silent_for < _AGE)
    found = connection.execute(
        sa.select(
            services.c.binary,
            services.c.host,
            services.c.version,
            sa.case((services.c.last_seen_up.is_not(None), _AGE)).label('silent'),
        )
        .where(*wanted)
        .order_by(services.c.version, services.c.host)
        .limit(limit)
    )
    rows = [Outdated(row[0], row[1], row[2], None if row[3] is None else float(row[3])) for row in found]
    count = connection.execute(sa.select(sa.func.count()).select_from(services).where(*wanted)).scalar()
    return rows, count or 0


def destroy(connection: sa.Connection, service_id: int) -> list[Row]:
    """Soft-delete a service, and for a compute service also its nodes and their devices.

    Return the nodes that were deleted.
    """
    service = get(connection, service_id=service_id)
    if service is None:
        return []
    gone: list[Row] = []
    if service['binary'] == 'nova-compute':
        gone = many(
            connection.execute(
                sa.select(compute_nodes).where(compute_nodes.c.host == service['host'], compute_nodes.c.deleted == 0)
            )
        )
    ids = [node['id'] for node in gone]
    if ids:
        soft_delete(connection, pci_devices, pci_devices.c.compute_node_id.in_(ids))
        soft_delete(connection, compute_nodes, compute_nodes.c.id.in_(ids))
    soft_delete(connection, services, services.c.id == service_id)
    return gone


def _select(down_time: float | None) -> sa.Select[Any]:
    query = sa.select(services)
    return query if down_time is None else query.add_columns(up(down_time).label('up'))
