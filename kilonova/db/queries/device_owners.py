"""Find the servers that hold PCI devices, and release devices whose server does not exist any more.

    for row in lost(connection, busy=set()):    # row['why']: 'allocated by 5c…, which is not a server of this cell'
        release(connection, row['id'], row['instance_uuid'])

A device isn't lost if its server has an operation, because a conductor releases the device when it runs the operation.
The operation may be a pending release: it frees what a host holds of a server when the host is up again. A pending
release can remain after its server was deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from kilonova.db.clock import db_utcnow
from kilonova.db.models import cell as models
from kilonova.db.queries import device_history
from kilonova.db.queries.pci_devices import list_devices
from kilonova.db.rows import Row

devices = models.PciDevice.__table__
servers = models.Instance.__table__
operations = models.Operation.__table__

HELD = ('claimed', 'allocated')


def names(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, str]:
    """Return {uuid: name} of the servers in ``uuids`` that exist and aren't deleted."""
    return {
        row.uuid: row.display_name or ''
        for row in connection.execute(
            sa.select(servers.c.uuid, servers.c.display_name).where(
                servers.c.uuid.in_(sorted(set(uuids))), servers.c.deleted == 0
            )
        )
    }


def at_work(connection: sa.Connection, uuid: str) -> Row | None:
    """Return uuid and kind of the oldest operation row of this server, or None if it has no operation.

    ``connection`` is a connection to the API database or to a cell's database.
    """
    row = (
        connection.execute(
            sa.select(operations.c.uuid, operations.c.kind)
            .where(operations.c.instance_uuid == uuid)
            .order_by(operations.c.id)
        )
        .mappings()
        .first()
    )
    return dict(row) if row is not None else None


def lost(connection: sa.Connection, busy: Collection[str]) -> list[Row]:
    """Return the devices of a cell that are held for a server that does not exist, each with the reason in ``why``.

    ``busy`` are servers that have operations in the API database. Their devices are left out, because the operations
    will release them.
    """
    held = [
        row
        for row in list_devices(connection, statuses=HELD)
        if row['instance_uuid'] is None or row['instance_uuid'] not in busy
    ]
    owners = {row['instance_uuid'] for row in held if row['instance_uuid'] is not None}
    there = set(names(connection, owners))
    there.update(
        connection.execute(
            sa.select(operations.c.instance_uuid).where(operations.c.instance_uuid.in_(sorted(owners)))
        ).scalars()
    )
    return [{**row, 'why': _why(row)} for row in held if row['instance_uuid'] not in there]


def _why(row: Row) -> str:
    if row['instance_uuid'] is None:
        return f'{row["status"]} without a server'
    return f'{row["status"]} by {row["instance_uuid"]}, which is not a server of this cell'


def release(connection: sa.Connection, device_id: int, owner: str | None) -> bool:
    """Release a device that ``lost`` found, because the server that holds it does not exist.

    Return False if the device's row has changed since, or if the server exists again.
    """
    same: Any = devices.c.instance_uuid.is_(None)
    if owner is not None:
        same = sa.and_(
            devices.c.instance_uuid == owner,
            ~sa.exists().where(operations.c.instance_uuid == owner),
            ~sa.exists().where(servers.c.uuid == owner, servers.c.deleted == 0),
        )
    condition = (devices.c.id == device_id, devices.c.deleted == 0, devices.c.status.in_(HELD), same)
    if connection.execute(sa.select(devices.c.id).where(*condition).with_for_update()).first() is None:
        return False
    if owner is not None:
        device_history.add(connection, [device_id], owner)
    return (
        connection.execute(
            devices.update()
            .where(*condition)
            .values(status='available', instance_uuid=None, request_id=None, held_since=None, updated_at=db_utcnow())
        ).rowcount
        == 1
    )
