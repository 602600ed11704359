"""Read and write the rows of block_device_mapping for servers' volumes (destination_type 'volume').

    volumes.add(conn, uuid, volumes.new_row(volume_id, size=10, connection_info='{…}'))
    volumes.change(conn, row_uuid, seen_attachment, {'attachment_id': …, 'connection_info': …})
    volumes.remove(conn, row_uuid)

Conductors attach and detach volumes. The API adds a volume that will be attached, and sets whether a volume is deleted
together with its server. ``instances.get`` returns these rows with a server's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from oslo_utils import uuidutils

from kilonova.db.models import cell as models
from kilonova.db.queries.instances import utcnow

bdm_table = models.BlockDeviceMapping.__table__
instances = models.Instance.__table__


def new_row(
    volume_id: str,
    *,
    size: int,
    connection_info: str,
    delete_on_termination: bool = False,
    tag: str | None = None,
    volume_type: str | None = None,
) -> dict[str, Any]:
    """Return the columns of a new row for an existing volume that will be attached to an existing server."""
    return {
        'uuid': uuidutils.generate_uuid(),
        'source_type': 'volume',
        'destination_type': 'volume',
        'volume_id': volume_id,
        'volume_size': size,
        'connection_info': connection_info,
        'delete_on_termination': delete_on_termination,
        'boot_index': None,
        'no_device': False,
        'tag': tag,
        'volume_type': volume_type,
    }


def add(conn: sa.Connection, uuid: str, row: Mapping[str, Any]) -> bool:
    """Add a volume to a server. Return False, and write nothing, if the server has this volume already.

    The caller must have locked the server's row.
    """
    there = conn.execute(
        sa.select(bdm_table.c.id).where(
            bdm_table.c.instance_uuid == uuid, bdm_table.c.volume_id == row['volume_id'], bdm_table.c.deleted == 0
        )
    ).first()
    if there is None:
        conn.execute(bdm_table.insert(), {'created_at': utcnow(), 'deleted': 0, 'instance_uuid': uuid, **row})
    return there is None


def change(conn: sa.Connection, row_uuid: str, seen: str | None, values: Mapping[str, Any]) -> bool:
    """Update a volume's row, if its attachment id is still ``seen``. Return False if it is not.

    ``seen`` is None if the volume had no attachment.
    """
    return bool(
        conn.execute(
            bdm_table.update()
            .where(
                bdm_table.c.uuid == row_uuid,
                bdm_table.c.deleted == 0,
                bdm_table.c.attachment_id.is_(None) if seen is None else bdm_table.c.attachment_id == seen,
            )
            .values(updated_at=utcnow(), **values)
        ).rowcount
    )


def set_delete_on_termination(conn: sa.Connection, uuid: str, volume_id: str, value: bool) -> bool:
    """Set whether a volume is deleted together with its server. Return False if the server has no such volume."""
    return bool(
        conn.execute(
            bdm_table.update()
            .where(bdm_table.c.instance_uuid == uuid, bdm_table.c.volume_id == volume_id, bdm_table.c.deleted == 0)
            .values(updated_at=utcnow(), delete_on_termination=value)
        ).rowcount
    )


def remove(conn: sa.Connection, row_uuid: str) -> None:
    """Soft-delete the row of a server's volume."""
    _remove(conn, bdm_table.c.uuid == row_uuid)


def remove_all(conn: sa.Connection, uuid: str) -> None:
    """Soft-delete the rows of all volumes of a server."""
    _remove(conn, sa.and_(bdm_table.c.instance_uuid == uuid, bdm_table.c.destination_type == 'volume'))


def _remove(conn: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    conn.execute(
        bdm_table.update().where(which, bdm_table.c.deleted == 0).values(deleted=bdm_table.c.id, deleted_at=utcnow())
    )


def servers_of(conn: sa.Connection, volume_id: str) -> list[str]:
    """Return the uuids of the servers that have a volume."""
    return list(
        conn.execute(
            sa.select(bdm_table.c.instance_uuid).where(
                bdm_table.c.volume_id == volume_id, bdm_table.c.destination_type == 'volume', bdm_table.c.deleted == 0
            )
        ).scalars()
    )


def of_servers(conn: sa.Connection, uuids: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return {server: rows of its volumes, sorted by id}. Runs one SQL statement."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in conn.execute(
        sa.select(bdm_table)
        .where(
            bdm_table.c.instance_uuid.in_(list(uuids)),
            bdm_table.c.destination_type == 'volume',
            bdm_table.c.deleted == 0,
        )
        .order_by(bdm_table.c.id)
    ).mappings():
        found.setdefault(row['instance_uuid'], []).append(dict(row))
    return found
