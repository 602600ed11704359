"""Write the changes that a rebuild makes to a server's rows.

The changes are written when the request is accepted. If the rebuild fails before it changed anything on the host, the
old values are written back.

    changed = {'values': {'image_ref': new}, 'extra': {}, 'system_metadata': {'image_min_ram': '1'}, 'metadata': None}
    write(conn, uuid, changed)
"""

from __future__ import annotations

from typing import TypedDict

import sqlalchemy as sa

from kilonova.db.queries import instances, metadata


class RebuildChanges(TypedDict):
    """The changes that a rebuild makes to a server's rows. The operation row stores them as JSON.

    ``values`` are columns of instances, and ``extra`` columns of instance_extra. ``system_metadata`` is {key: new
    value, or None to delete the key}. ``metadata`` replaces all metadata of the server, or is None to keep them.
    """

    values: dict[str, object]
    extra: dict[str, str | None]
    system_metadata: dict[str, str | None]
    metadata: dict[str, str] | None


def write(conn: sa.Connection, uuid: str, changed: RebuildChanges) -> None:
    """Write all changes of a rebuild to a server's rows."""
    instances.update(conn, uuid, changed['values'])
    instances.update_extra(conn, uuid, changed['extra'])
    instances.set_system_metadata(conn, uuid, changed['system_metadata'])
    if changed['metadata'] is not None:
        metadata.replace(conn, uuid, changed['metadata'])
