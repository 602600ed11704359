"""Read and write host aggregates (API database), which are named sets of hosts with metadata.

    snapshot(connection)    # [{'id', 'uuid', 'name', 'hosts': [...], 'metadata': {...}}], three SQL statements

An aggregate that has ``availability_zone`` in its metadata is an availability zone.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from kilonova import errors
from kilonova.db.clock import db_utcnow
from kilonova.db.failures import is_duplicate
from kilonova.db.models.api import Aggregate, AggregateHost, AggregateMetadata, HostMapping
from kilonova.db.rows import Row, insert_missing, many

aggregates = Aggregate.__table__
aggregate_hosts = AggregateHost.__table__
aggregate_metadata = AggregateMetadata.__table__
host_mappings = HostMapping.__table__


# The metadata key that makes an aggregate an availability zone.
ZONE = 'availability_zone'


class AggregateNotFound(errors.NotFound):
    """No aggregate has this id (HTTP 404)."""

    msg_fmt = 'Aggregate %(aggregate_id)s could not be found.'


class AggregateNameExists(errors.Conflict):
    """Another aggregate has this name (HTTP 409)."""

    msg_fmt = 'Aggregate %(aggregate_name)s already exists.'


class AggregateHostExists(errors.Conflict):
    """The aggregate has this host already (HTTP 409)."""

    msg_fmt = 'Aggregate %(aggregate_id)s already has host %(host)s.'


def snapshot(
    connection: sa.Connection, *, aggregate_ids: Iterable[int] | None = None, hosts: Iterable[str] | None = None
) -> list[Row]:
    """Return aggregates with their ``hosts`` and ``metadata``, sorted by id. Runs three SQL statements.

    The result has all aggregates, or only those with the given ids, or only those that contain one of the given hosts.
    """
    query = sa.select(aggregates).order_by(aggregates.c.id)
    member, pair = aggregate_hosts.c, aggregate_metadata.c
    of_hosts = sa.select(member.aggregate_id, member.host).order_by(member.id)
    of_metadata = sa.select(pair.aggregate_id, pair.key, pair.value)
    if hosts is not None:
        inside = sa.select(aggregate_hosts.c.aggregate_id).where(aggregate_hosts.c.host.in_(list(hosts)))
        query = query.where(aggregates.c.id.in_(inside))
    if aggregate_ids is not None:
        query = query.where(aggregates.c.id.in_(list(aggregate_ids)))
    rows = many(connection.execute(query))
    by_id = {row['id']: row for row in rows}
    if hosts is not None or aggregate_ids is not None:
        of_hosts = of_hosts.where(aggregate_hosts.c.aggregate_id.in_(list(by_id)))
        of_metadata = of_metadata.where(aggregate_metadata.c.aggregate_id.in_(list(by_id)))
    for row in rows:
        row['hosts'], row['metadata'] = [], {}
    for aggregate_id, host in connection.execute(of_hosts):
        if aggregate_id in by_id:
            by_id[aggregate_id]['hosts'].append(host)
    for aggregate_id, key, value in connection.execute(of_metadata):
        if aggregate_id in by_id:
            by_id[aggregate_id]['metadata'][key] = value
    return rows


def get(connection: sa.Connection, aggregate_id: int) -> Row:
    """Return the aggregate with this id, with its hosts and metadata. Raises AggregateNotFound if it does not exist."""
    found = snapshot(connection, aggregate_ids=[aggregate_id])
    if not found:
        raise AggregateNotFound(aggregate_id=aggregate_id)
    return found[0]


def lock(connection: sa.Connection, aggregate_id: int) -> None:
    """Lock an aggregate against other changes until the transaction ends.

    Raises AggregateNotFound if it does not exist.
    """
    if not connection.execute(
        sa.update(aggregates).where(aggregates.c.id == aggregate_id).values(updated_at=db_utcnow())
    ).rowcount:
        raise AggregateNotFound(aggregate_id=aggregate_id)


def lock_hosts(connection: sa.Connection, hosts: Iterable[str]) -> list[str]:
    """Return which of these hosts are mapped to a cell, and lock their mappings until the transaction ends.

    Another transaction that adds one of these hosts to an aggregate waits for the lock.
    """
    return list(
        connection.execute(
            sa.select(host_mappings.c.host)
            .where(host_mappings.c.host.in_(list(hosts)))
            .order_by(host_mappings.c.id)
            .with_for_update()
        ).scalars()
    )


def has_host(connection: sa.Connection, uuid: str, host: str) -> bool:
    """Return whether a host is in the aggregate with this uuid."""
    return (
        connection.execute(
            sa.select(aggregate_hosts.c.id)
            .join(aggregates, aggregates.c.id == aggregate_hosts.c.aggregate_id)
            .where(aggregates.c.uuid == uuid, aggregate_hosts.c.host == host)
        ).first()
        is not None
    )


def create(
    connection: sa.Connection, name: str, metadata: dict[str, str] | None = None, uuid: str | None = None
) -> Row:
    """Insert an aggregate and return it. Raises AggregateNameExists if another aggregate has this name."""
    try:
        key = connection.execute(
            sa.insert(aggregates).values(name=name, uuid=uuid or str(uuids.uuid4()))
        ).inserted_primary_key
    except sa.exc.IntegrityError as error:
        if is_duplicate(error):
            raise AggregateNameExists(aggregate_name=name) from error
        raise
    if key is None:
        raise LookupError(f'the insert of aggregate {name} returned no id')
    aggregate_id = key[0]
    # Leave ``updated_at`` NULL, because a new aggregate was not changed after its creation.
    # Schedulers find a new aggregate even without ``updated_at``, because they also compare ids and ``created_at``.
    _insert_metadata(connection, aggregate_id, metadata or {})
    return get(connection, aggregate_id)


def rename(connection: sa.Connection, aggregate_id: int, name: str) -> None:
    """Change the name of an aggregate.

    Raises AggregateNotFound if the aggregate does not exist, and AggregateNameExists if another one has this name.
    """
    try:
        result = connection.execute(
            sa.update(aggregates).where(aggregates.c.id == aggregate_id).values(name=name, updated_at=db_utcnow())
        )
    except sa.exc.IntegrityError as error:
        if is_duplicate(error):
            raise AggregateNameExists(aggregate_name=name) from error
        raise
    if not result.rowcount:
        raise AggregateNotFound(aggregate_id=aggregate_id)


def _stamp(connection: sa.Connection, *criteria: sa.ColumnElement[bool]) -> None:
    """Set ``updated_at`` of the aggregates that meet the criteria to the current time.

    Schedulers keep aggregates in memory, and find changed aggregates by this timestamp (``queries.changes``).
    """
    connection.execute(sa.update(aggregates).where(*criteria).values(updated_at=db_utcnow()))


def set_metadata(connection: sa.Connection, aggregate_id: int, metadata: dict[str, str | None]) -> None:
    """Set these metadata keys of an aggregate. A key whose value is None is deleted."""
    if metadata:
        connection.execute(
            sa.delete(aggregate_metadata).where(
                aggregate_metadata.c.aggregate_id == aggregate_id, aggregate_metadata.c.key.in_(list(metadata))
            )
        )
    _insert_metadata(connection, aggregate_id, metadata)
    _stamp(connection, aggregates.c.id == aggregate_id)


def _insert_metadata(connection: sa.Connection, aggregate_id: int, metadata: Mapping[str, str | None]) -> None:
    insert_missing(
        connection,
        aggregate_metadata,
        [
            {'aggregate_id': aggregate_id, 'key': key, 'value': value}
            for key, value in metadata.items()
            if value is not None
        ],
    )


def add_host(connection: sa.Connection, aggregate_id: int, host: str) -> None:
    """Add a host to an aggregate.

    Raises AggregateHostExists if the host is in the aggregate already, and AggregateNotFound if the aggregate does not
    exist.
    """
    try:
        connection.execute(sa.insert(aggregate_hosts).values(aggregate_id=aggregate_id, host=host))
    except sa.exc.IntegrityError as error:
        if is_duplicate(error):
            raise AggregateHostExists(aggregate_id=aggregate_id, host=host) from error
        raise AggregateNotFound(aggregate_id=aggregate_id) from error
    _stamp(connection, aggregates.c.id == aggregate_id)


def remove_host(connection: sa.Connection, host: str, aggregate_id: int | None = None) -> int:
    """Remove a host from an aggregate, or from all aggregates if ``aggregate_id`` is None.

    Return the number of aggregates that contained the host.
    """
    which = [aggregate_hosts.c.host == host]
    if aggregate_id is not None:
        which.append(aggregate_hosts.c.aggregate_id == aggregate_id)
    _stamp(connection, aggregates.c.id.in_(sa.select(aggregate_hosts.c.aggregate_id).where(*which)))
    return connection.execute(sa.delete(aggregate_hosts).where(*which)).rowcount


def destroy(connection: sa.Connection, aggregate_id: int) -> None:
    """Delete an aggregate with its metadata and hosts. Raises AggregateNotFound if the aggregate does not exist."""
    for table in (aggregate_hosts, aggregate_metadata):
        connection.execute(sa.delete(table).where(table.c.aggregate_id == aggregate_id))
    if not connection.execute(sa.delete(aggregates).where(aggregates.c.id == aggregate_id)).rowcount:
        raise AggregateNotFound(aggregate_id=aggregate_id)


def zones(conn: sa.Connection) -> dict[str, set[str]]:
    """Return {availability zone: set of its hosts}. The set may be empty. Runs one SQL statement."""
    found: dict[str, set[str]] = {}
    member, pair = aggregate_hosts.c, aggregate_metadata.c
    for zone, host in conn.execute(
        sa.select(pair.value, member.host)
        .join_from(aggregate_metadata, aggregate_hosts, member.aggregate_id == pair.aggregate_id, isouter=True)
        .where(pair.key == ZONE)
    ):
        found.setdefault(zone, set()).update([host] if host else [])
    return found
