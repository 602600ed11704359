"""What a rebuild changes of a server, as its request is accepted, and back again where nothing came of it.

    changed = {'values': {'image_ref': new}, 'extra': {}, 'system_metadata': {'image_min_ram': '1'}, 'metadata': None}
    write(conn, uuid, changed)
"""
from __future__ import annotations

from typing import TypedDict

import sqlalchemy as sa

from kilonova.db.queries import instances, metadata


class Changed(TypedDict):
    """Columns of instances and of instance_extra, keys of the system metadata (None: goes), and all metadata pairs
    (None: as they are). JSON: it travels in the row."""

    values: dict[str, object]
    extra: dict[str, str | None]
    system_metadata: dict[str, str | None]
    metadata: dict[str, str] | None


def write(conn: sa.Connection, uuid: str, changed: Changed) -> None:
    """All of it."""
    instances.update(conn, uuid, changed['values'])
    instances.update_extra(conn, uuid, changed['extra'])
    instances.set_system_metadata(conn, uuid, changed['system_metadata'])
    if changed['metadata'] is not None:
        metadata.replace(conn, uuid, changed['metadata'])
