"""Operation rows for hosts whose compute service was deleted, and the check that refuses to register such hosts.

The transaction that deletes the service writes the operation row. The row is deleted when the API database and
Placement have no records of the host any more. Until then, a machine with the host's name can't register.
"""

from __future__ import annotations

import sqlalchemy as sa

from kilonova import texts
from kilonova.db.queries.operations import operations
from kilonova.errors import HostIsBeingRemoved

KIND = 'host_removal'


def refuse(conn: sa.Connection, host: str) -> None:
    """Raise HostIsBeingRemoved if the removal of a host with this name is not complete. Runs one SQL statement."""
    row = conn.execute(
        sa.select(operations.c.uuid, operations.c.outputs)
        .where(operations.c.kind == KIND, operations.c.host == host)
        .limit(1)
    ).first()
    if row is not None:
        read, why = texts.split(row._mapping, ['outputs'])  # noqa: SLF001 - SQLAlchemy's name for it
        reason = read['outputs'].get('reason') or why
        raise HostIsBeingRemoved(host=host, operation=row.uuid, reason=f': {reason}' if reason else '')
