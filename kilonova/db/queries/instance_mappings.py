"""Rows of ``instance_mappings`` (API database): which cell a server lives in.

    mapping = get(connection, instance_uuid)        # mapping['cell_id'] is None while it is a build request
    set_cell(connection, [instance_uuid], cell_id)

Rows come with ``cell_uuid`` beside their own columns.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from kilonova.db.models.api import CellMapping, InstanceMapping
from kilonova.db.rows import Row, insert_missing, many, one

instance_mappings = InstanceMapping.__table__
cell_mappings = CellMapping.__table__

LIVE = sa.func.coalesce(instance_mappings.c.queued_for_delete, sa.false()) == sa.false()


def _select() -> sa.Select[Any]:
    return sa.select(instance_mappings, cell_mappings.c.uuid.label('cell_uuid')).select_from(
        instance_mappings.outerjoin(cell_mappings, cell_mappings.c.id == instance_mappings.c.cell_id))


def get(connection: sa.Connection, instance_uuid: str) -> Row | None:
    """The mapping of one server, also of one that is queued for deletion."""
    return one(connection.execute(_select().where(instance_mappings.c.instance_uuid == instance_uuid)))


def get_many(connection: sa.Connection, instance_uuids: Iterable[str]) -> list[Row]:
    """The mappings of several servers, in no order; one statement."""
    query = _select().where(instance_mappings.c.instance_uuid.in_(list(instance_uuids)))
    return many(connection.execute(query))


def list_mappings(connection: sa.Connection, *, project_id: str | None = None, user_id: str | None = None,
                  cell_id: int | None = None, queued_for_delete: bool | None = None,
                  limit: int | None = None) -> list[Row]:
    """Mappings by rising id; ``queued_for_delete=False`` leaves out servers that are being deleted."""
    query = _select().order_by(instance_mappings.c.id)
    for name, value in (('project_id', project_id), ('user_id', user_id), ('cell_id', cell_id)):
        if value is not None:
            query = query.where(instance_mappings.c[name] == value)
    if queued_for_delete is not None:
        query = query.where(~LIVE if queued_for_delete else LIVE)
    return many(connection.execute(query if limit is None else query.limit(limit)))


def count(connection: sa.Connection, project_id: str, user_id: str | None = None) -> int:
    """How many servers a project (or one of its users) has, those without a cell included."""
    query = sa.select(sa.func.count()).select_from(instance_mappings).where(
        LIVE, instance_mappings.c.project_id == project_id)
    if user_id is not None:
        query = query.where(instance_mappings.c.user_id == user_id)
    return connection.execute(query).scalar_one()


def create(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert mappings (instance_uuid, project_id, user_id, cell_id) in one statement; those there stay."""
    insert_missing(connection, instance_mappings, [{'queued_for_delete': False, **row} for row in rows])


def set_cell(connection: sa.Connection, instance_uuids: Iterable[str], cell_id: int) -> int:
    """Say which cell these servers live in; returns how many mappings there were."""
    return connection.execute(
        sa.update(instance_mappings).where(instance_mappings.c.instance_uuid.in_(list(instance_uuids)))
        .values(cell_id=cell_id)).rowcount


def set_queued_for_delete(connection: sa.Connection, instance_uuid: str, queued: bool) -> bool:
    """Mark a server as being deleted (its quota is free from now on) or not; False without a mapping."""
    return connection.execute(
        sa.update(instance_mappings).where(instance_mappings.c.instance_uuid == instance_uuid)
        .values(queued_for_delete=queued)).rowcount == 1


def destroy(connection: sa.Connection, instance_uuids: Iterable[str]) -> int:
    """Delete the mappings of these servers; returns how many there were."""
    return connection.execute(sa.delete(instance_mappings).where(
        instance_mappings.c.instance_uuid.in_(list(instance_uuids)))).rowcount
