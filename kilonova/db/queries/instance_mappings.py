"""Read and write rows of ``instance_mappings`` (API database), which say in which cell a server is.

    create(connection, [{'instance_uuid': uuid, 'project_id': …, 'user_id': …}])    # no cell yet: a build request
    set_cell(connection, uuid, cell_id)

The row is written when a create request is accepted. It has no cell until a cell is chosen for the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from kilonova.db.models.api import InstanceMapping
from kilonova.db.rows import Row

instance_mappings = InstanceMapping.__table__


def create(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert mappings (instance_uuid, project_id, user_id) without a cell. Runs one SQL statement."""
    connection.execute(instance_mappings.insert(), [{'queued_for_delete': False, **row} for row in rows])


def cells_of(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, int | None]:
    """Return {server: id of its cell}. The id is None for a server without a cell (a build request).

    Servers without a mapping are left out. Runs one SQL statement.
    """
    found = connection.execute(
        sa.select(instance_mappings.c.instance_uuid, instance_mappings.c.cell_id).where(
            instance_mappings.c.instance_uuid.in_(list(uuids))
        )
    )
    return {row.instance_uuid: row.cell_id for row in found}


def set_cell(connection: sa.Connection, instance_uuid: str, cell_id: int) -> bool:
    """Write in which cell the server is. Return False if the server has no mapping."""
    return (
        connection.execute(
            sa.update(instance_mappings)
            .where(instance_mappings.c.instance_uuid == instance_uuid)
            .values(cell_id=cell_id)
        ).rowcount
        == 1
    )


def set_queued_for_delete(connection: sa.Connection, instance_uuid: str) -> bool:
    """Mark a server as being deleted, which frees its quota at once. Return False if the server has no mapping."""
    return (
        connection.execute(
            sa.update(instance_mappings)
            .where(instance_mappings.c.instance_uuid == instance_uuid)
            .values(queued_for_delete=True)
        ).rowcount
        == 1
    )


def is_queued_for_delete(connection: sa.Connection, instance_uuid: str) -> bool:
    """Return whether the server is marked as being deleted. Return False if it has no mapping."""
    return bool(
        connection.execute(
            sa.select(instance_mappings.c.queued_for_delete).where(instance_mappings.c.instance_uuid == instance_uuid)
        ).scalar()
    )


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete the server's mapping. Return False if the server has no mapping."""
    return (
        connection.execute(
            sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == instance_uuid)
        ).rowcount
        == 1
    )


def destroy_all(connection: sa.Connection, instance_uuids: Iterable[str]) -> None:
    """Delete the mappings of several servers."""
    connection.execute(sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid.in_(list(instance_uuids))))
