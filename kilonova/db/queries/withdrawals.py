"""Withdraw requests that were accepted but exceed a quota. Afterwards it is as if they had never been made.

The API checks the quota a second time after it has accepted a request, because other requests may have used the quota
meanwhile. If the quota is exceeded, the API calls these functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models.api import InstanceGroupMember
from kilonova.db.queries import build_requests, instance_mappings, instances, request_specs
from kilonova.db.queries.operations import RUN, WAIT, operations

members = InstanceGroupMember.__table__


@engine.retried
def create(api_db: engine.Database, instance_uuids: Sequence[str]) -> list[str]:
    """Undo ``operations.accept_create`` for these servers, in one transaction of the API database.

    If no conductor owns a server's boot operation yet, all rows of the server are deleted. If a conductor owns it, the
    operation is cancelled, and the conductor deletes the other rows. Return the uuids of the servers for which nothing
    was undone, because they are in a cell or deleted by now.
    """
    with api_db.write() as conn:
        waiting = build_requests.destroy_all(conn, instance_uuids)
        rows = operations.c.instance_uuid.in_(waiting)
        conn.execute(operations.delete().where(rows, operations.c.owner.is_(None)))
        taken = set(conn.execute(sa.select(operations.c.instance_uuid).where(rows)).scalars())
        if taken:
            conn.execute(operations.update().where(rows).values(cancelled=True, not_before=0))
        untouched = [uuid for uuid in waiting if uuid not in taken]
        request_specs.destroy_all(conn, untouched)
        instance_mappings.destroy_all(conn, untouched)
        conn.execute(members.delete().where(members.c.instance_uuid.in_(untouched)))
    return [uuid for uuid in instance_uuids if uuid not in waiting]


@engine.retried
def operation(cell_db: engine.Database, *, uuid: str, instance_uuid: str, event: str, request_id: str) -> bool:
    """Undo ``operations.accept``: delete the operation row and the action, and change the state by ``event``.

    Return True if this was done. If a conductor owns the row already, or if a delete waits for the end of the
    operation, the operation is only cancelled, so that a conductor undoes it, and the result is False.
    """
    with cell_db.write() as conn:
        rows = conn.execute(
            sa.select(operations.c.uuid, operations.c.owner)
            .where(operations.c.instance_uuid == instance_uuid, operations.c.slot.in_([RUN, WAIT]))
            .with_for_update()
        ).all()
        if [tuple(row) for row in rows] == [(uuid, None)]:
            conn.execute(operations.delete().where(operations.c.uuid == uuid))
            instances.transition(conn, instance_uuid, event)
            instances.forget_action(conn, instance_uuid, request_id)
            return True
        conn.execute(operations.update().where(operations.c.uuid == uuid).values(cancelled=True, not_before=0))
    return False
