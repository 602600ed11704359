"""Availability zones, which are aggregates that name one (API database)."""
from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from kilonova.db.models import api as models

metadata = models.AggregateMetadata.__table__
members = models.AggregateHost.__table__

KEY = 'availability_zone'


def zones(conn: Connection) -> dict[str, set[str]]:
    """zone → its hosts, which may be none. One statement."""
    found: dict[str, set[str]] = {}
    for zone, host in conn.execute(sa.select(metadata.c.value, members.c.host).join_from(
            metadata, members, members.c.aggregate_id == metadata.c.aggregate_id, isouter=True).where(
            metadata.c.key == KEY)):
        found.setdefault(zone, set()).update([host] if host else [])
    return found
