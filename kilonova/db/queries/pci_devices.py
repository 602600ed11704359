"""Read and write rows of ``pci_devices``, the table of the PCI devices of compute nodes.

    with cell.write() as connection:
        save(connection, node_id, created=[...], changed=[{'id': 7, 'label': '...'}], removed=[9])

``save`` writes the changes that a compute has found on its host. The module ``queries.claims`` writes which server
holds which device. The column ``extra_info`` has JSON text. Soft-deleted rows are never returned.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.models.cell import ComputeNode, Instance, PciDevice
from kilonova.db.rows import Row, many, one, soft_delete

pci_devices = PciDevice.__table__
compute_nodes = ComputeNode.__table__
servers = Instance.__table__

LIVE = pci_devices.c.deleted == 0


def by_node(connection: sa.Connection, compute_node_id: int) -> list[Row]:
    """Return the devices of a node, sorted by address."""
    return many(
        connection.execute(
            sa.select(pci_devices)
            .where(LIVE, pci_devices.c.compute_node_id == compute_node_id)
            .order_by(pci_devices.c.address)
        )
    )


def by_instance(
    connection: sa.Connection,
    instance_uuid: str,
    statuses: Sequence[str] | None = None,
    compute_node_id: int | None = None,
) -> list[Row]:
    """Return the devices that a server holds, on all nodes or on the node ``compute_node_id``.

    A server that is being moved holds devices on the source and on the destination. If ``statuses`` is given, only
    devices with one of these statuses are returned.
    """
    query = sa.select(pci_devices).where(LIVE, pci_devices.c.instance_uuid == instance_uuid)
    if statuses is not None:
        query = query.where(pci_devices.c.status.in_(list(statuses)))
    if compute_node_id is not None:
        query = query.where(pci_devices.c.compute_node_id == compute_node_id)
    return many(connection.execute(query.order_by(pci_devices.c.id)))


def by_instances(
    connection: sa.Connection, instance_uuids: Iterable[str], statuses: Sequence[str] | None = None
) -> dict[str, list[Row]]:
    """Return {server uuid: devices that the server holds}. Runs one SQL statement.

    If ``statuses`` is given, only devices with one of these statuses are returned.
    """
    devices: dict[str, list[Row]] = {uuid: [] for uuid in instance_uuids}
    query = sa.select(pci_devices).where(LIVE, pci_devices.c.instance_uuid.in_(list(devices)))
    if statuses is not None:
        query = query.where(pci_devices.c.status.in_(list(statuses)))
    for row in many(connection.execute(query.order_by(pci_devices.c.id))):
        devices[row['instance_uuid']].append(row)
    return devices


def list_devices(
    connection: sa.Connection, *, statuses: Sequence[str] | None = None, host: str | None = None
) -> list[Row]:
    """Return the devices of a cell, sorted by host and address.

    Each row has the same keys as the rows of ``page``, such as ``host`` and ``server_name``.
    """
    query = _shown(statuses=statuses, host=host).order_by(compute_nodes.c.host, pci_devices.c.address)
    return many(connection.execute(query))


def page(connection: sa.Connection, *, after: int | None, limit: int, **filters: Any) -> list[Row]:
    """Return at most ``limit`` devices of a cell whose ids are greater than ``after``, sorted by id.

    A row has the device's columns, and ``host`` and ``hypervisor_hostname`` of its node. It also has ``server_name``
    and ``project_id`` of the server that holds the device, or None if no server holds it. ``filters`` are uuid, host,
    address, types, statuses, server and project_id.
    """
    query = _shown(**filters).order_by(pci_devices.c.id).limit(limit)
    return many(connection.execute(query if after is None else query.where(pci_devices.c.id > after)))


def find(connection: sa.Connection, **filters: Any) -> Row | None:
    """Return one device with the same keys as a row of ``page``, or None if the device does not exist.

    ``filters`` is either ``uuid``, or ``host`` and ``address``.
    """
    return one(connection.execute(_shown(**filters)))


def _shown(
    *,
    uuid: str | None = None,
    host: str | None = None,
    address: str | None = None,
    types: Sequence[str] | None = None,
    statuses: Sequence[str] | None = None,
    server: str | None = None,
    project_id: str | None = None,
) -> sa.Select[Any]:
    """Return the query for devices with ``host`` and ``hypervisor_hostname`` of their node.

    The rows also have ``server_name`` and ``project_id``. They are None if no server holds the device, or if the server
    is deleted.
    """
    query = (
        sa.select(
            pci_devices,
            compute_nodes.c.host,
            compute_nodes.c.hypervisor_hostname,
            servers.c.display_name.label('server_name'),
            servers.c.project_id,
        )
        .join_from(pci_devices, compute_nodes, compute_nodes.c.id == pci_devices.c.compute_node_id)
        .join(servers, sa.and_(servers.c.uuid == pci_devices.c.instance_uuid, servers.c.deleted == 0), isouter=True)
        .where(LIVE)
    )
    equal = {
        pci_devices.c.uuid: uuid,
        compute_nodes.c.host: host,
        pci_devices.c.address: address,
        pci_devices.c.instance_uuid: server,
        servers.c.project_id: project_id,
    }
    query = query.where(*(column == value for column, value in equal.items() if value is not None))
    among = {pci_devices.c.dev_type: types, pci_devices.c.status: statuses}
    return query.where(*(column.in_(list(values)) for column, values in among.items() if values is not None))


def save(
    connection: sa.Connection,
    compute_node_id: int,
    *,
    created: Sequence[Row] = (),
    changed: Sequence[Row] = (),
    removed: Sequence[int] = (),
) -> None:
    """Write the changes of a node's devices that a check of the host found.

    Rows of ``created`` get a uuid unless they have one. Rows of ``changed`` have an ``id`` and the new values. Runs one
    INSERT, one UPDATE for each set of changed columns, and one soft delete.
    """
    # Devices are removed first, because a device that comes back at the same address needs the unique key to be free.
    if removed:
        soft_delete(
            connection,
            pci_devices,
            pci_devices.c.compute_node_id == compute_node_id,
            pci_devices.c.id.in_(list(removed)),
        )
    groups: dict[frozenset[str], list[Row]] = {}
    for row in changed:
        groups.setdefault(frozenset(row), []).append(row)
    for names, rows in groups.items():
        values: dict[str, Any] = {name: sa.bindparam(f'new_{name}') for name in sorted(names - {'id'})}
        connection.execute(
            sa.update(pci_devices).where(pci_devices.c.id == sa.bindparam('row_id'), LIVE).values(values),
            [{'row_id': row['id'], **{f'new_{name}': row[name] for name in values}} for row in rows],
        )
    if created:
        keys: set[str] = set().union(*created)
        connection.execute(
            sa.insert(pci_devices),
            [
                {
                    **{name: row.get(name) for name in keys},
                    'compute_node_id': compute_node_id,
                    'uuid': row.get('uuid') or str(uuids.uuid4()),
                }
                for row in created
            ],
        )
