"""Questions about a running Nova that one SQL statement, or one for each batch of rows, answers.

Each function takes a database that is open and a connection of its ``read``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.clock import db_age
from kilonova.db.engine import Connection
from kilonova.db.migration import METADATA, Schema
from kilonova.db.nova.source import BATCH, NovaDatabase
from kilonova.db.rows import Row
from kilonova.states import VmState

# States of a migration that has ended.
ENDED = ('confirmed', 'reverted', 'error', 'failed', 'completed', 'cancelled', 'done')
COMPUTE = 'nova-compute'
CONTROLLERS = ('nova-conductor', 'nova-scheduler')
# Tables whose copies have other rows, or other times, than Nova's.
NOT_COMPARED = ('services', 'volume_usage_cache', 'tags')

Fingerprints = dict[str, list[Any]]


def servers_by_state(cell: NovaDatabase, connection: Connection) -> dict[str, int]:
    """Return {vm_state: number of servers} for the servers that are not deleted.

    The key 'deleted' has the number of deleted servers, and 'none' the number of servers without a vm_state.
    """
    table = cell.table('instances')
    state = sa.case((table.c.deleted != 0, 'deleted'), else_=table.c.vm_state)
    found = connection.execute(sa.select(state, sa.func.count()).group_by(state)).all()
    return {name or 'none': number for name, number in found}


def live(database: NovaDatabase, connection: Connection, table: str) -> int:
    """Return the number of rows of a table that are not deleted."""
    if not database.has(table, 'deleted'):
        return database.count(connection, table)
    return database.count(connection, table, database.table(table).c.deleted == 0)


def reporting(cell: NovaDatabase, connection: Connection, seconds: float) -> list[Row]:
    """Return the conductors and schedulers of a cell that reported in the last ``seconds`` seconds.

    Each row has binary, host and ``age``, the seconds since the last report. The rows are sorted by binary and host.
    """
    table = cell.table('services')
    age = db_age(table.c.last_seen_up)
    query = sa.select(table.c.binary, table.c.host, age.label('age')).where(
        table.c.deleted == 0, table.c.binary.in_(CONTROLLERS), age < seconds
    )
    return [dict(row) for row in connection.execute(query.order_by(table.c.binary, table.c.host)).mappings()]


def computes(cell: NovaDatabase, connection: Connection) -> list[Row]:
    """Return host, version and uuid of the compute services that are not deleted, sorted by host."""
    table = cell.table('services')
    query = sa.select(table.c.host, table.c.version, table.c.uuid).where(
        table.c.deleted == 0, table.c.binary == COMPUTE
    )
    return [dict(row) for row in connection.execute(query.order_by(table.c.host)).mappings()]


def nodes(cell: NovaDatabase, connection: Connection) -> list[Row]:
    """Return id, uuid, host, hypervisor_hostname and hypervisor_type of the nodes that are not deleted."""
    table = cell.table('compute_nodes')
    query = sa.select(
        table.c.id, table.c.uuid, table.c.host, table.c.hypervisor_hostname, table.c.hypervisor_type
    ).where(table.c.deleted == 0)
    return [dict(row) for row in connection.execute(query.order_by(table.c.id)).mappings()]


def moves_under_way(cell: NovaDatabase, connection: Connection) -> list[Row]:
    """Return the migrations that have not ended, with the ``vm_state`` of their servers. Deleted servers are left out.

    An evacuation with the status 'done' is included, because its source host has not deleted the server's files yet.
    """
    move, server = cell.table('migrations'), cell.table('instances')
    columns = (
        move.c.id,
        move.c.instance_uuid,
        move.c.status,
        move.c.migration_type,
        move.c.source_compute,
        move.c.dest_compute,
        move.c.source_node,
        move.c.dest_node,
        server.c.vm_state,
    )
    uncleaned = sa.and_(move.c.migration_type == 'evacuation', move.c.status == 'done')
    query = (
        sa.select(*columns)
        .join_from(move, server, server.c.uuid == move.c.instance_uuid)
        .where(move.c.deleted == 0, server.c.deleted == 0)
        .where(sa.or_(move.c.status.not_in(ENDED), uncleaned))
    )
    return [dict(row) for row in connection.execute(query.order_by(move.c.id)).mappings()]


def stale_devices(cell: NovaDatabase, connection: Connection) -> list[Row]:
    """Return the PCI devices that are claimed or allocated for a server that is deleted or does not exist.

    Each row has id, address, compute_node_id, status and instance_uuid.
    """
    device, server = cell.table('pci_devices'), cell.table('instances')
    owner = sa.and_(server.c.uuid == device.c.instance_uuid, server.c.deleted == 0)
    query = (
        sa.select(device.c.id, device.c.address, device.c.compute_node_id, device.c.status, device.c.instance_uuid)
        .join_from(device, server, owner, isouter=True)
        .where(device.c.deleted == 0, device.c.status.in_(('allocated', 'claimed')), server.c.id.is_(None))
    )
    return [dict(row) for row in connection.execute(query.order_by(device.c.id)).mappings()]


def unplaced(api: NovaDatabase, connection: Connection) -> list[str]:
    """Return the uuids of the servers whose mapping names no cell, sorted: they are being created."""
    table = api.table('instance_mappings')
    query = sa.select(table.c.instance_uuid).where(table.c.cell_id.is_(None), sa.not_(_gone(table)))
    return list(connection.execute(query.order_by(table.c.instance_uuid)).scalars())


def _gone(mapping: sa.Table) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(mapping.c.queued_for_delete, sa.false())


def of_unknown_cells(api: NovaDatabase, connection: Connection) -> Iterator[str]:
    """Yield a text for each mapping of a host or a server to a cell that does not exist."""
    cell = api.table('cell_mappings')
    for name, column in (('host_mappings', 'host'), ('instance_mappings', 'instance_uuid')):
        table = api.table(name)
        query = (
            sa.select(table.c[column], table.c.cell_id)
            .join_from(table, cell, cell.c.id == table.c.cell_id, isouter=True)
            .where(table.c.cell_id.is_not(None), cell.c.id.is_(None))
        )
        for found, cell_id in connection.execute(query.order_by(table.c.id)):
            yield f'{name.partition("_")[0]} {found}: cell {cell_id}'


def mapped_hosts(api: NovaDatabase, connection: Connection) -> dict[str, int]:
    """Return {host: id of its cell}."""
    table = api.table('host_mappings')
    return {row.host: row.cell_id for row in connection.execute(sa.select(table.c.host, table.c.cell_id))}


def flavors(api: NovaDatabase, connection: Connection) -> dict[str, dict[str, str]]:
    """Return {name of a flavor: its extra specs}, sorted by name."""
    flavor, spec = api.table('flavors'), api.table('flavor_extra_specs')
    query = sa.select(flavor.c.name, spec.c.key, spec.c.value).join_from(
        flavor, spec, spec.c.flavor_id == flavor.c.id, isouter=True
    )
    found: dict[str, dict[str, str]] = {}
    for name, key, value in connection.execute(query.order_by(flavor.c.name, spec.c.key)):
        found.setdefault(name, {})
        if key is not None:
            found[name][key] = value or ''
    return found


# --- for copying
def copied(database: NovaDatabase, table: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the SQL conditions that select the rows of a table to copy.

    From the table ``services`` only the rows of nova-compute are copied, from the other tables all rows.
    """
    return (database.table('services').c.binary == COMPUTE,) if table == 'services' else ()


def common_columns(database: NovaDatabase, table: str) -> list[str]:
    """Return the columns that a table has in this release of Nova and in Kilonova."""
    ours = METADATA[database.schema].tables[table].c
    return [column.name for column in database.table(table).c if column.name in ours]


def node_ids(cell: NovaDatabase, connection: Connection) -> dict[tuple[str, str], int]:
    """Return {(host, node): id of the node} of the nodes that are not deleted."""
    return {(row['host'], row['hypervisor_hostname']): row['id'] for row in nodes(cell, connection)}


def hosts_of(cell: NovaDatabase, connection: Connection, servers: Collection[str]) -> dict[str, str | None]:
    """Return {uuid: host} of the servers of a cell, also of deleted ones. A server without host has None."""
    table = cell.table('instances')
    query = sa.select(table.c.uuid, table.c.host).where(table.c.uuid.in_(set(servers) - {None}))
    return {row.uuid: row.host for row in connection.execute(query)}


def soft_deleted(cell: NovaDatabase, connection: Connection) -> set[str]:
    """Return the uuids of the servers of a cell that are soft-deleted."""
    table = cell.table('instances')
    query = sa.select(table.c.uuid).where(table.c.deleted == 0, table.c.vm_state == VmState.SOFT_DELETED)
    return set(connection.execute(query).scalars())


def interface_tags(cell: NovaDatabase, connection: Connection, servers: Collection[str]) -> dict[str, dict[str, str]]:
    """Return {uuid of a server: {id of a port: tag}} of the interfaces that have a tag."""
    found: dict[str, dict[str, str]] = {}
    if cell.has('virtual_interfaces'):
        table = cell.table('virtual_interfaces')
        query = sa.select(table.c.instance_uuid, table.c.uuid, table.c.tag).where(
            table.c.instance_uuid.in_(list(servers)), table.c.tag.is_not(None), table.c.deleted == 0
        )
        for server, port, tag in connection.execute(query):
            found.setdefault(server, {})[port] = tag
    return found


# --- for the takeover and the way back
def fingerprints(database: NovaDatabase | Schema, connection: Connection, tables: Sequence[str]) -> Fingerprints:
    """Return {table: [number of rows, highest id, time of the last change]}. Tables without a part have None there.

    ``database`` is one of Nova, or the schema of one of Kilonova. The result for a copy is equal to that for Nova's
    table, and differs after a change of either.
    """
    found: Fingerprints = {}
    for name in tables:
        if name in NOT_COMPARED:
            continue
        table = METADATA[database].tables[name] if isinstance(database, str) else database.table(name)
        parts = [sa.func.max(table.c[column]) if column in table.c else sa.null() for column in ('id', 'updated_at')]
        number, highest, changed = connection.execute(sa.select(sa.func.count(), *parts).select_from(table)).one()
        found[name] = [number, highest, None if changed is None else str(changed)]
    return found


def live_keys(database: NovaDatabase, table: str, names: Sequence[str], soft: bool) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the keys of the rows that would be copied, in lists. ``names`` are the columns of the primary key.

    If ``soft`` is True, rows that are marked as deleted are left out. Each list is read in a transaction of its own, so
    rows may be changed in between.
    """
    source = database.table(table)
    order = [source.c[name] for name in names]
    conditions = [*copied(database, table), *([source.c.deleted == 0] if soft else [])]
    query = page = sa.select(*order).where(*conditions).order_by(*order).limit(BATCH)
    while True:
        with database.read() as connection:
            keys = [tuple(row) for row in connection.execute(page)]
        if keys:
            yield keys
        if len(keys) < BATCH:
            return
        page = query.where(order[0] > keys[-1][0] if len(order) == 1 else sa.tuple_(*order) > sa.tuple_(*keys[-1]))


def usage_ids(database: NovaDatabase, connection: Connection) -> dict[tuple[str, str], list[int]]:
    """Return {(volume, server): ids of the rows with their counters}, the oldest first."""
    table = database.table('volume_usage_cache')
    found: dict[tuple[str, str], list[int]] = {}
    query = sa.select(table.c.id, table.c.volume_id, table.c.instance_uuid).order_by(table.c.id)
    for row in connection.execute(query):
        found.setdefault((row.volume_id, row.instance_uuid), []).append(row.id)
    return found
