"""Operation rows for servers that ran when their host went down, and that the host could not start again at once.

    resumes.plan(db, ctxt, 'gpu1', {'5c…': 'The accelerator service did not answer: …'}, is_off=True)
    resumes.tell(conn, row.instance_uuid, row.request_id, 'Cyborg …')        # a later try failed as well
    resumes.finish(conn, row.instance_uuid, row.request_id, 'Success', 'Started after 3 failed tries')

The operation runs concurrently with the server's other operations, so the user can stop, reboot or delete the
server in the meantime. As long as the row exists, an instance action shows it to the user: the action's message is
WAITING, and its event has the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from kilonova import states
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.arguments.servers import HostBootArguments
from kilonova.db.models import cell as models
from kilonova.db.queries import instances as instance_queries
from kilonova.db.queries.operations import RESUME, OperationRow, insert, operations

# KIND is the kind of the operations that start servers after a boot of their host.
# The instance action of an operation of kind KIND has the same name. EVENT is the name of the action's event.
KIND, EVENT = RESUME, 'compute_resume_on_host_boot'
# The message of the instance action while all attempts have failed so far and more attempts will follow.
WAITING = 'Waiting'
# In these states, the guest of a server should be running.
WANTED_RUNNING = (states.VmState.ACTIVE, states.VmState.RESIZED, states.VmState.RESCUED)
# Maximum number of characters of a reason that are stored.
LONGEST = 4096

actions, events = models.InstanceAction.__table__, models.InstanceActionEvent.__table__
servers = models.Instance.__table__


@engine.retried
def plan(db: engine.Database, ctxt: RequestContext, host: str, reasons: Mapping[str, str], is_off: bool) -> None:
    """Write an operation row and an action for each server that a host could not start.

    ``reasons`` is {server: reason}. A server that already has such a row, from an earlier boot of the host, keeps it.
    All such rows of the host become due now, and their created_at is set to now, because the host was just started.
    Servers are left out if they are on another host, are deleted, have a task state, or should not be running. If
    ``is_off`` is True, the guests are known to be off, so the servers' power state is set to SHUTDOWN. Runs at most six
    SQL statements.
    """
    with db.write() as conn:
        conn.execute(
            operations.update()
            .where(operations.c.kind == KIND, operations.c.host == host)
            .values(not_before=0, created_at=engine.db_utcnow())
        )
        wanted = _without_row(conn, host, list(reasons)) if reasons else []
        if not wanted:
            return
        insert(conn, [_row(ctxt, uuid, host, reasons[uuid][:LONGEST]) for uuid in wanted])
        now = instance_queries.utcnow()
        conn.execute(
            actions.insert(),
            [
                {
                    'instance_uuid': uuid,
                    'start_time': now,
                    'created_at': now,
                    'updated_at': now,
                    'deleted': 0,
                    'action': KIND,
                    'request_id': ctxt.request_id,
                    'user_id': ctxt.user_id,
                    'project_id': ctxt.project_id,
                    'message': WAITING,
                }
                for uuid in wanted
            ],
        )
        conn.execute(
            _ADD_EVENT,
            [
                {
                    'of_uuid': uuid,
                    'of_request': ctxt.request_id,
                    'event': EVENT,
                    'start_time': now,
                    'created_at': now,
                    'deleted': 0,
                    'host': host,
                    'details': reasons[uuid][:LONGEST],
                }
                for uuid in wanted
            ],
        )
        if is_off:
            conn.execute(
                servers.update()
                .where(servers.c.uuid.in_(wanted))
                .values(power_state=int(states.PowerState.SHUTDOWN), updated_at=now)
            )


def _row(ctxt: RequestContext, uuid: str, host: str, reason: str) -> OperationRow:
    row = OperationRow.new(ctxt, KIND, uuid, HostBootArguments(host=host), beside=True, host=host)
    row.outputs = {'reason': reason, 'told': reason}
    return row


def _without_row(conn: sa.Connection, host: str, uuids: list[str]) -> list[str]:
    """Return the servers in ``uuids`` that are on the host and have no operation of kind KIND, sorted by id.

    Only servers that should be running and have no task state are returned.
    """
    planned = sa.select(operations.c.instance_uuid).where(operations.c.kind == KIND)
    return list(
        conn.execute(
            sa.select(servers.c.uuid)
            .where(
                servers.c.uuid.in_(uuids),
                servers.c.host == host,
                servers.c.deleted == 0,
                servers.c.task_state.is_(None),
                servers.c.vm_state.in_([state.value for state in WANTED_RUNNING]),
                servers.c.uuid.not_in(planned),
            )
            .order_by(servers.c.id)
        ).scalars()
    )


def _action(uuid: object, request_id: object) -> Any:
    return (
        sa.select(sa.func.max(actions.c.id))
        .where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id, actions.c.action == KIND)
        .scalar_subquery()
    )


_ADD_EVENT = events.insert().values(action_id=_action(sa.bindparam('of_uuid'), sa.bindparam('of_request')))


def age(conn: sa.Connection, uuid: str) -> float:
    """Return the age of an operation row in seconds, or 0 if the row does not exist.

    The age starts again from zero when the server's host is started again (see ``plan``).
    """
    found = conn.execute(sa.select(engine.db_age(operations.c.created_at)).where(operations.c.uuid == uuid)).scalar()
    return float(found or 0.0)


def tell(conn: sa.Connection, uuid: str, request_id: str, reason: str) -> None:
    """Write into the server's action why the last attempt to start the server failed."""
    now = instance_queries.utcnow()
    conn.execute(
        events.update()
        .where(events.c.action_id == _action(uuid, request_id))
        .values(details=reason[:LONGEST], updated_at=now)
    )
    conn.execute(
        actions.update()
        .where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id, actions.c.action == KIND)
        .values(updated_at=now)
    )


def finish(
    conn: sa.Connection, uuid: str, request_id: str, result: str, details: str, trace: str | None = None
) -> None:
    """Finish the action that shows the attempts to start the server. ``result`` is 'Success' or 'Error'."""
    now = instance_queries.utcnow()
    conn.execute(
        events.update()
        .where(events.c.action_id == _action(uuid, request_id))
        .values(result=result, details=details[:LONGEST], traceback=trace, finish_time=now, updated_at=now)
    )
    conn.execute(
        actions.update()
        .where(actions.c.instance_uuid == uuid, actions.c.request_id == request_id, actions.c.action == KIND)
        .values(message=result if result == 'Error' else None, finish_time=now, updated_at=now)
    )
