"""Change existing cells for kilonova-manage cell_v2: cell mappings, host mappings and server mappings.

    update_cell(databases, uuid, {'disabled': True})
    locate(databases, server).state             # 'here', 'unknown', 'waiting', 'deleted' or 'archived'

The functions return data and print nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from kilonova import errors
from kilonova.db.engine import Database, Databases
from kilonova.db.models.api import CellMapping, HostMapping, InstanceMapping
from kilonova.db.models.cell import Instance
from kilonova.db.queries import cells, compute_nodes
from kilonova.db.rows import insert_missing

cell_mappings = CellMapping.__table__
host_mappings = HostMapping.__table__
instance_mappings = InstanceMapping.__table__
instances = Instance.__table__

BATCH = 1000


class CellInUse(errors.Conflict):
    """Base class of errors: the cell can't be deleted because it is in use."""


class CellHasHosts(CellInUse):
    """The cell can't be deleted because hosts are mapped to it."""

    msg_fmt = 'There are existing hosts mapped to cell with uuid %(uuid)s.'


class CellHasServers(CellInUse):
    """The cell can't be deleted because servers are mapped to it."""

    msg_fmt = 'There are existing instances mapped to cell with uuid %(uuid)s.'


class CellHasDeletedServers(CellInUse):
    """The cell can't be deleted because deleted servers are mapped to it. They must be archived first."""

    msg_fmt = (
        'There are instance mappings to cell with uuid %(uuid)s, but all instances have been deleted in the '
        "cell. So execute 'kilonova-manage db archive_deleted_rows' to delete the instance mappings."
    )


class HostInNoCell(errors.NotFound):
    """The host is not mapped to any cell."""

    msg_fmt = 'The host %(host)s was not found.'


class HostElsewhere(errors.Conflict):
    """The host's mapping can't be deleted from this cell, because the host is mapped to another cell."""

    msg_fmt = 'The host %(host)s was not found in the cell %(uuid)s.'


class HostHasServers(errors.Conflict):
    """The mapping of the host can't be deleted because the host has servers."""

    msg_fmt = 'There are instances on the host %(host)s.'


def _row(connection: sa.Connection, uuid: str) -> dict[str, Any]:
    found = cells.get_cell(connection, uuid)
    if found is None:
        raise errors.CellMappingNotFound(uuid=uuid)
    return found


# --- cells
def update_cell(databases: Databases, uuid: str, values: dict[str, Any]) -> None:
    """Update name, transport_url, database_connection or disabled of a cell mapping.

    Raises CellMappingNotFound if the cell does not exist, and CellExists if another cell has one of the URLs.
    """
    with databases.api().write() as connection:
        _row(connection, uuid)
        for other in cells.get_cells(connection):
            if other['uuid'] != uuid and any(
                values.get(name) == other[name] for name in ('transport_url', 'database_connection')
            ):
                raise cells.CellExists(uuid=other['uuid'])
        connection.execute(sa.update(cell_mappings).where(cell_mappings.c.uuid == uuid).values(**values))


def delete_cell(databases: Databases, uuid: str, *, force: bool = False, transport_url: str | None = None) -> None:
    """Delete a cell mapping.

    If ``force`` is True, also delete the mappings of its hosts, which can be discovered again.

    Raises CellMappingNotFound if the cell does not exist. Raises CellInUse if the cell has servers, or if it has hosts
    and ``force`` is False.
    """
    with databases.api().read() as connection:
        row = _row(connection, uuid)
        hosts = cells.get_hosts(connection, cell_uuid=uuid)
        mapped = (
            connection.execute(
                sa.select(instance_mappings.c.id).where(instance_mappings.c.cell_id == row['id']).limit(1)
            ).first()
            is not None
        )
    if hosts and not force:
        raise CellHasHosts(uuid=uuid)
    if mapped:
        with _database(databases, uuid, transport_url).read() as connection:
            alive = connection.execute(sa.select(instances.c.id).where(instances.c.deleted == 0).limit(1)).first()
        raise CellHasDeletedServers(uuid=uuid) if alive is None else CellHasServers(uuid=uuid)
    if hosts:
        with _database(databases, uuid, transport_url).write() as connection:
            compute_nodes.set_mapped(connection, [host['host'] for host in hosts], False)
    with databases.api().write() as connection:
        connection.execute(sa.delete(host_mappings).where(host_mappings.c.cell_id == row['id']))
        connection.execute(sa.delete(cell_mappings).where(cell_mappings.c.id == row['id']))


def _database(databases: Databases, uuid: str, transport_url: str | None) -> Database:
    return cells.CellDatabases(databases, transport_url).by_uuid(uuid)


# --- hosts
def delete_host(databases: Databases, uuid: str, host: str, *, transport_url: str | None = None) -> None:
    """Delete the mapping of a host. Afterwards the host counts as new and can be mapped again (discover_hosts).

    Raises:
        CellMappingNotFound: The cell does not exist.
        HostInNoCell: The host has no mapping.
        HostElsewhere: The host is mapped to another cell.
        HostHasServers: The host has servers.
    """
    with databases.api().read() as connection:
        row = _row(connection, uuid)
        mapping = cells.get_host(connection, host)
    if mapping is None:
        raise HostInNoCell(host=host)
    if mapping['cell_id'] != row['id']:
        raise HostElsewhere(host=host, uuid=uuid)
    with _database(databases, uuid, transport_url).write() as connection:
        if (
            connection.execute(
                sa.select(instances.c.id).where(instances.c.host == host, instances.c.deleted == 0).limit(1)
            ).first()
            is not None
        ):
            raise HostHasServers(host=host)
        compute_nodes.set_mapped(connection, [host], False)
    with databases.api().write() as connection:
        cells.unmap_host(connection, host)


# --- servers
def map_instances(
    databases: Databases, uuid: str, max_count: int | None = None, *, transport_url: str | None = None
) -> tuple[int, bool]:
    """Create at most ``max_count`` missing mappings of servers that are in the cell ``uuid`` and not deleted.

    Return (number of new mappings, whether more are missing). Raises CellMappingNotFound if the cell does not exist.
    """
    database, mapped, last = _database(databases, uuid, transport_url), 0, 0
    while True:
        with database.read() as connection:
            rows = connection.execute(
                sa.select(instances.c.id, instances.c.uuid, instances.c.project_id, instances.c.user_id)
                .where(instances.c.id > last, instances.c.deleted == 0)
                .order_by(instances.c.id)
                .limit(BATCH)
            ).all()
        if not rows:
            return mapped, False
        with databases.api().write() as connection:
            known = set(
                connection.execute(
                    sa.select(instance_mappings.c.instance_uuid).where(
                        instance_mappings.c.instance_uuid.in_([row.uuid for row in rows])
                    )
                ).scalars()
            )
            missing = [row for row in rows if row.uuid not in known]
            chosen = missing if max_count is None else missing[: max_count - mapped]
            insert_missing(
                connection,
                instance_mappings,
                [
                    {
                        'instance_uuid': row.uuid,
                        'cell_id': database.cell.id,
                        'project_id': row.project_id,
                        'user_id': row.user_id,
                        'queued_for_delete': False,
                    }
                    for row in chosen
                ],
            )
        mapped += len(chosen)
        if len(chosen) < len(missing):
            return mapped, True
        last = rows[-1].id


@dataclass(frozen=True)
class Located:
    """The location of a server. ``cell`` is None if the server is in no cell."""

    state: str
    cell: cells.CellRecord | None = None


def locate(databases: Databases, server: str, transport_url: str | None = None) -> Located:
    """Return the location of a server, according to its mapping and its row in the cell.

    The result's ``state`` is one of:

    - 'unknown': the server has no mapping.
    - 'waiting': its mapping has no cell.
    - 'here': its cell has a row of the server that is not deleted.
    - 'deleted': the row in the cell is marked as deleted.
    - 'archived': the cell has no row of the server.
    """
    with databases.api().read() as connection:
        row = connection.execute(
            sa.select(instance_mappings.c.cell_id).where(instance_mappings.c.instance_uuid == server)
        ).first()
    if row is None:
        return Located('unknown')
    if row.cell_id is None:
        return Located('waiting')
    database = cells.CellDatabases(databases, transport_url).by_id(row.cell_id)
    with database.read() as connection:
        deleted = connection.execute(sa.select(instances.c.deleted).where(instances.c.uuid == server)).scalar()
    if deleted == 0:
        return Located('here', database.cell)
    return Located('archived' if deleted is None else 'deleted', database.cell)
