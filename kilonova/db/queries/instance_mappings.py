"""Rows of ``instance_mappings`` (API database): which cell a server lives in.

    create(connection, [{'instance_uuid': uuid, 'project_id': …, 'user_id': …}])    # no cell yet: a build request
    set_cell(connection, uuid, cell_id)
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from kilonova.db.models.api import InstanceMapping
from kilonova.db.rows import Row

instance_mappings = InstanceMapping.__table__


def create(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert mappings (instance_uuid, project_id, user_id) in one statement."""
    connection.execute(instance_mappings.insert(), [{'queued_for_delete': False, **row} for row in rows])


def cells_of(connection: sa.Connection, uuids: Iterable[str]) -> dict[str, int | None]:
    """uuid → id of its cell (None: a build request) of the servers among these that are known; one statement."""
    found = connection.execute(sa.select(instance_mappings.c.instance_uuid, instance_mappings.c.cell_id).where(
        instance_mappings.c.instance_uuid.in_(list(uuids))))
    return {row.instance_uuid: row.cell_id for row in found}


def set_cell(connection: sa.Connection, instance_uuid: str, cell_id: int) -> bool:
    """Say which cell the server lives in; False without a mapping."""
    return connection.execute(
        sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == instance_uuid)
        .values(cell_id=cell_id)).rowcount == 1


def set_queued_for_delete(connection: sa.Connection, instance_uuid: str) -> bool:
    """Mark a server as being deleted (its quota is free from now on); False without a mapping."""
    return connection.execute(
        sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == instance_uuid)
        .values(queued_for_delete=True)).rowcount == 1


def is_queued_for_delete(connection: sa.Connection, instance_uuid: str) -> bool:
    """Whether ``set_queued_for_delete`` was called."""
    return bool(connection.execute(sa.select(instance_mappings.c.queued_for_delete).where(
        instance_mappings.c.instance_uuid == instance_uuid)).scalar())


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete the mapping; False without one."""
    return connection.execute(
        sa.delete(instance_mappings).where(instance_mappings.c.instance_uuid == instance_uuid)).rowcount == 1


def destroy_all(connection: sa.Connection, instance_uuids: Iterable[str]) -> None:
    """Delete the mappings of several servers."""
    connection.execute(sa.delete(instance_mappings).where(
        instance_mappings.c.instance_uuid.in_(list(instance_uuids))))
