"""Accept evacuations from a host that an operator forced down, and wake the operations that wait for this host.

    accept_evacuation(cell_db, instance_uuid=uuid, host='gpu1', operation=row, action=action)
    for uuid in hurry(cell_db, 'gpu1'):                 # operations that may run now, since gpu1 is forced down
        conductor.run_operation(ctxt, operation=uuid)

The API calls ``hurry`` when a compute service was forced down or deleted. An operation that a conductor runs just now
is not returned: the conductor checks regularly whether the host is down (operations.md rule 15).
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from kilonova.db import engine
from kilonova.db.models import cell as models
from kilonova.db.queries import instances, migrations
from kilonova.db.queries.operations import (
    FORWARD_KINDS,
    RUN,
    WAIT,
    OperationRow,
    accepted,
    busy,
    insert,
    kinds,
    operations,
)

EVENT, KIND = 'evacuate.start', 'evacuate'
# Maximum number of operations that one call of ``hurry`` returns. Conductors find the others by their periodic search.
MOST_HURRIED = 500
_servers, _moves = models.Instance.__table__, models.Migration.__table__


@engine.retried
def accept_evacuation(
    cell_db: engine.Database, *, instance_uuid: str, host: str, operation: OperationRow, action: dict[str, Any]
) -> None:
    """Accept an evacuation of a server from ``host``, which is forced down, even while an operation runs on the server.

    The running operation is cancelled and undone, and the evacuation waits until the undo is complete (operations.md
    rule 17).

    Raises:
        InstanceInvalidState: The server's state does not allow an evacuation, or the server is on another host.
        InstanceBusy: The running operation is an evacuation, or can't be cancelled (a delete, confirm, revert,
            offload).
        InstanceNotFound: The server does not exist.
    """
    with cell_db.write() as conn:
        if accepted(conn, instance_uuid, action):
            return
        if not instances.transition(conn, instance_uuid, EVENT, expect={'host': host}):
            raise instances.refuse(conn, instance_uuid, EVENT)
        slots = kinds(conn, instance_uuid)
        if not {KIND, *FORWARD_KINDS}.isdisjoint(slots.values()):
            raise busy(conn, instance_uuid, EVENT)
        running = _end_what_runs(conn, instance_uuid, host) if slots else 0
        insert(conn, [replace(operation, slot=WAIT if running else RUN)])
        instances.start_action(conn, instance_uuid, action)


def _end_what_runs(conn: sa.Connection, instance_uuid: str, host: str) -> int:
    """Cancel the running operation of a server, with a reason that the server's user can read.

    Return the number of cancelled rows, 0 or 1.
    """
    reason = {
        'class': 'Cancelled',
        'message': f'Host {host} is forced down, and the server is evacuated from it.',
        'code': 409,
        'details': None,
    }
    running = sa.and_(operations.c.instance_uuid == instance_uuid, operations.c.slot == RUN)
    conn.execute(operations.update().where(running, operations.c.error.is_(None)).values(error=json.dumps(reason)))
    return conn.execute(operations.update().where(running).values(cancelled=True, not_before=0)).rowcount


@engine.retried
def hurry(cell_db: engine.Database, host: str) -> list[str]:
    """Let conductors take the operations that may wait for this lost host at once, and return the operations' uuids.

    The caller wakes a conductor for each uuid. An operation may wait for the host if one of these is true:

    - Its server is on the host.
    - Its server is moving from or to the host.
    - Its server has left something on the host, which is freed when the host is up again (by a pending release).
    - The operation has chosen the host in a step.

    The host's own pending releases are not changed, because only the host itself can do them.
    """
    here = sa.select(_servers.c.uuid).where(_servers.c.host == host, _servers.c.deleted == 0)
    moving = sa.select(_moves.c.instance_uuid).where(
        sa.or_(_moves.c.source_compute == host, _moves.c.dest_compute == host),
        _moves.c.deleted == 0,
        _moves.c.status.not_in(migrations.ENDED),
    )
    releases = sa.alias(operations)
    left = sa.select(releases.c.instance_uuid).where(releases.c.host == host)
    with cell_db.write() as conn:
        found = conn.execute(
            sa.select(operations.c.id, operations.c.uuid)
            .where(
                operations.c.slot != WAIT,
                sa.or_(operations.c.host.is_(None), operations.c.host != host),
                sa.or_(
                    operations.c.instance_uuid.in_(here),
                    operations.c.instance_uuid.in_(moving),
                    operations.c.instance_uuid.in_(left),
                    operations.c.outputs.contains(json.dumps(host), autoescape=True),
                ),
            )
            .order_by(operations.c.id)
            .limit(MOST_HURRIED)
        ).all()
        if found:
            conn.execute(operations.update().where(operations.c.id.in_([row.id for row in found])).values(not_before=0))
    return [row.uuid for row in found]
