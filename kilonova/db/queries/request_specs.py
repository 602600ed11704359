"""Rows of ``request_specs`` (API database): what each server asked for, as the JSON of a RequestSpec."""
from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova.db.models.api import RequestSpec
from kilonova.db.rows import Row, one

request_specs = RequestSpec.__table__


def get(connection: sa.Connection, instance_uuid: str) -> Row | None:
    """id, instance_uuid, spec and times of one server's spec."""
    return one(connection.execute(
        sa.select(request_specs).where(request_specs.c.instance_uuid == instance_uuid)))


def create(connection: sa.Connection, specs: Iterable[tuple[str, str]]) -> None:
    """Insert specs, (server uuid, JSON) each, in one statement."""
    connection.execute(request_specs.insert(), [{'instance_uuid': uuid, 'spec': spec} for uuid, spec in specs])


def save(connection: sa.Connection, seen: Row, spec: str) -> bool:
    """Replace a spec that is still as it was ``seen`` (``get``); False when it isn't."""
    updated = request_specs.c.updated_at
    same = updated.is_(None) if seen['updated_at'] is None else updated == seen['updated_at']
    result = connection.execute(
        sa.update(request_specs).where(request_specs.c.id == seen['id'], same).values(spec=spec))
    return result.rowcount == 1


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete a server's spec; False when it has none."""
    return connection.execute(
        sa.delete(request_specs).where(request_specs.c.instance_uuid == instance_uuid)).rowcount == 1


def destroy_all(connection: sa.Connection, instance_uuids: Iterable[str]) -> None:
    """Delete the specs of several servers."""
    connection.execute(sa.delete(request_specs).where(request_specs.c.instance_uuid.in_(list(instance_uuids))))
