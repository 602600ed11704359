"""Rows of ``request_specs`` (API database): what each server asked for, as the JSON of a RequestSpec."""
from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from kilonova.db.models.api import RequestSpec
from kilonova.db.rows import Row, insert_missing, one

request_specs = RequestSpec.__table__


def get(connection: sa.Connection, instance_uuid: str) -> Row | None:
    """id, instance_uuid, spec and times of one server's spec."""
    return one(connection.execute(
        sa.select(request_specs).where(request_specs.c.instance_uuid == instance_uuid)))


def get_many(connection: sa.Connection, instance_uuids: Iterable[str]) -> dict[str, str]:
    """The JSON of several servers' specs by server uuid; one statement."""
    query = sa.select(request_specs.c.instance_uuid, request_specs.c.spec).where(
        request_specs.c.instance_uuid.in_(list(instance_uuids)))
    return {row.instance_uuid: row.spec for row in connection.execute(query)}


def create(connection: sa.Connection, specs: dict[str, str]) -> None:
    """Insert specs (JSON by server uuid) in one statement; those that are there stay."""
    insert_missing(connection, request_specs,
                   [{'instance_uuid': uuid, 'spec': spec} for uuid, spec in specs.items()])


def save(connection: sa.Connection, instance_uuid: str, spec: str) -> bool:
    """Replace a spec; False when the server has none."""
    result = connection.execute(
        sa.update(request_specs).where(request_specs.c.instance_uuid == instance_uuid).values(spec=spec))
    return result.rowcount == 1


def destroy(connection: sa.Connection, instance_uuids: Iterable[str]) -> int:
    """Delete the specs of these servers; returns how many there were."""
    return connection.execute(sa.delete(request_specs).where(
        request_specs.c.instance_uuid.in_(list(instance_uuids)))).rowcount
