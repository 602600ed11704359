"""Read and write rows of ``request_specs`` (API database), which contain each server's RequestSpec as JSON."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova.db.models.api import RequestSpec
from kilonova.db.rows import Row, one

request_specs = RequestSpec.__table__


def get(connection: sa.Connection, instance_uuid: str) -> Row | None:
    """Return the row of a server's request spec (id, instance_uuid, spec and times), or None if it has none."""
    return one(connection.execute(sa.select(request_specs).where(request_specs.c.instance_uuid == instance_uuid)))


def create(connection: sa.Connection, specs: Iterable[tuple[str, str]]) -> None:
    """Insert request specs, given as pairs (server uuid, JSON text). Runs one SQL statement."""
    connection.execute(request_specs.insert(), [{'instance_uuid': uuid, 'spec': spec} for uuid, spec in specs])


def save(connection: sa.Connection, seen: Row, spec: str) -> bool:
    """Replace a request spec, if its row has not changed since ``get`` returned it (``seen``).

    Return False, and write nothing, if the row has changed.
    """
    updated = request_specs.c.updated_at
    same = updated.is_(None) if seen['updated_at'] is None else updated == seen['updated_at']
    result = connection.execute(
        sa.update(request_specs).where(request_specs.c.id == seen['id'], same).values(spec=spec)
    )
    return result.rowcount == 1


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete a server's request spec. Return False if the server has no request spec."""
    return (
        connection.execute(sa.delete(request_specs).where(request_specs.c.instance_uuid == instance_uuid)).rowcount == 1
    )


def destroy_all(connection: sa.Connection, instance_uuids: Iterable[str]) -> None:
    """Delete the request specs of several servers."""
    connection.execute(sa.delete(request_specs).where(request_specs.c.instance_uuid.in_(list(instance_uuids))))
