"""Rows of ``build_requests`` (API database): servers that no cell holds yet."""
from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from kilonova.db.models.api import BuildRequest
from kilonova.db.rows import Row

build_requests = BuildRequest.__table__


def create(connection: sa.Connection, rows: Sequence[Row]) -> None:
    """Insert requests in one statement; all with the same columns."""
    connection.execute(build_requests.insert(), list(rows))


def exists(connection: sa.Connection, instance_uuid: str) -> bool:
    """Whether the server is still only asked for; False once a cell holds it or it was deleted early."""
    return connection.execute(
        sa.select(build_requests.c.id).where(build_requests.c.instance_uuid == instance_uuid)).first() is not None


def existing(connection: sa.Connection, instance_uuids: Collection[str]) -> set[str]:
    """Those of these servers that are still only asked for; one statement."""
    return set(connection.execute(sa.select(build_requests.c.instance_uuid).where(
        build_requests.c.instance_uuid.in_(list(instance_uuids)))).scalars())


def destroy(connection: sa.Connection, instance_uuid: str) -> bool:
    """Delete the request; False when it is gone already."""
    return connection.execute(
        sa.delete(build_requests).where(build_requests.c.instance_uuid == instance_uuid)).rowcount == 1


def destroy_all(connection: sa.Connection, instance_uuids: Sequence[str]) -> list[str]:
    """Delete the requests among these that are there: their uuids."""
    found = list(connection.execute(sa.select(build_requests.c.instance_uuid).where(
        build_requests.c.instance_uuid.in_(list(instance_uuids))).with_for_update()).scalars())
    connection.execute(sa.delete(build_requests).where(build_requests.c.instance_uuid.in_(found)))
    return found
