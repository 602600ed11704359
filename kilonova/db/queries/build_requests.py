"""Read and write rows of ``build_requests`` (API database): requested servers that are in no cell yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from kilonova.db.models.api import BuildRequest
from kilonova.db.rows import Row

build_requests = BuildRequest.__table__


def create(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert build requests, which must all have the same columns. Runs one SQL statement."""
    connection.execute(build_requests.insert(), list(rows))


def exists(connection: sa.Connection, instance_uuid: str) -> bool:
    """Return whether the server has a build request.

    A server without a build request is in a cell, or was deleted before it was in a cell.
    """
    return (
        connection.execute(
            sa.select(build_requests.c.id).where(build_requests.c.instance_uuid == instance_uuid)
        ).first()
        is not None
    )


def existing(connection: sa.Connection, instance_uuids: Collection[str]) -> set[str]:
    """Return the uuids of the servers that have a build request. Runs one SQL statement."""
    return set(
        connection.execute(
            sa.select(build_requests.c.instance_uuid).where(build_requests.c.instance_uuid.in_(list(instance_uuids)))
        ).scalars()
    )


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete the server's build request. Return False if the server has no build request."""
    return (
        connection.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid == instance_uuid)).rowcount
        == 1
    )


def destroy_all(connection: sa.Connection, instance_uuids: Sequence[str]) -> list[str]:
    """Delete the build requests of these servers. Return the uuids of the servers that had a build request."""
    found = list(
        connection.execute(
            sa.select(build_requests.c.instance_uuid)
            .where(build_requests.c.instance_uuid.in_(list(instance_uuids)))
            .with_for_update()
        ).scalars()
    )
    connection.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid.in_(found)))
    return found
