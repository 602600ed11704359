"""Delete servers immediately or as a soft delete, restore soft-deleted servers, and reset a server's state."""

from __future__ import annotations

from typing import Any

from kilonova import states
from kilonova.api.services import images, quota, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import WORK, ServerRef, check_lock, find_server
from kilonova.context import RequestContext
from kilonova.db.queries import instances, operations, withdrawals
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import InstanceInvalidState, InstanceNotFound, InstanceNotReady
from kilonova.objects import Instance

# The states that the action os-resetState can set, with the event that changes the server's state.
RESETS = {'active': 'reset.active', 'error': 'reset.error'}


def delete(backend: Backend, ctxt: RequestContext, server: ServerRef, *, at_once: bool = False) -> None:
    """Delete a server. If [DEFAULT]reclaim_instance_interval is set, accept a soft delete instead.

    A soft delete needs a server that has run and is on a host. All other servers, and every server if ``at_once`` is
    true, are deleted completely. A running operation of the server is cancelled and undone. If the server has no cell
    yet, only its build request is deleted. Do nothing if the server is being deleted already.

    Raises:
        InstanceIsLocked: The server is locked and the caller is no administrator.
        InstanceInvalidState: A soft delete is refused while a confirm, revert or restore runs (error 409), because
            these short operations can't be cancelled. A complete delete is accepted in every state.
        InstanceNotReady: The build request no longer exists, but no cell has the server yet.
    """
    check_lock(ctxt, server)
    if server.cell is None:
        if operations.delete_build_request(backend.api_db, server.uuid):
            return
        # A conductor has moved the server into a cell in the meantime, so look the server up again.
        server = find_server(backend, ctxt, server.uuid, purpose=WORK)
        if server.cell is None:
            raise InstanceNotReady(instance_id=server.uuid)
    if server.row['task_state'] == states.TaskState.DELETING:
        return
    if not at_once and _is_kept(backend, server.row):
        _soft_delete(backend, ctxt, server)
        return
    row = OperationRow.new(ctxt, 'delete', server.uuid)
    wake = operations.accept_delete(
        server.cell, instance_uuid=server.uuid, operation=row, action=server_operations.action(ctxt, 'delete')
    )
    if wake is not None:
        backend.conductor.terminate_instance(ctxt, operation=wake)


def _is_kept(backend: Backend, row: dict[str, Any]) -> bool:
    """Return whether a delete of the server is only a soft delete, so that the server can be restored.

    The delete is soft if [DEFAULT]reclaim_instance_interval is set, and the server ran once, is on a host, and is not
    shelved offloaded.
    """
    return bool(
        backend.options.reclaim_instance_interval
        and row['launched_at']
        and row['host']
        and row['vm_state'] != states.VmState.SHELVED_OFFLOADED
    )


def _soft_delete(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    row = server.row
    if row['task_state'] == states.TaskState.RESTORING:
        # The server is still in the state SOFT_DELETED, but a restore is running, so a new soft delete is refused.
        raise InstanceInvalidState(
            method='soft_delete', instance_uuid=server.uuid, attr='task_state', state=row['task_state']
        )
    if row['vm_state'] == states.VmState.SOFT_DELETED or row['task_state'] == states.TaskState.SOFT_DELETING:
        return
    operation = OperationRow.new(ctxt, 'soft_delete', server.uuid)
    wake = operations.accept_soft_delete(
        server.cell, instance_uuid=server.uuid, operation=operation, action=server_operations.action(ctxt, 'delete')
    )
    backend.conductor.terminate_instance(ctxt, operation=wake)


@quota.settled
def restore(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Accept the restore of a soft-deleted server, which becomes ACTIVE.

    Raises OverQuota if the quota has no room for the server, because a restored server counts against the quota again.
    Also raises the errors of ``server_operations.check`` and ``server_operations.accept``.
    """
    server_operations.check(ctxt, server, 'restore.start')
    allowed = quota.limits(backend, server.row['project_id'], server.row['user_id'])
    instance = Instance.from_row(ctxt, *instances.split(server.row))
    with server.cell.read() as conn:
        kept = instances.get_system_metadata(conn, server.uuid)
    image = images.of_server(kept, instance.image_ref)
    more = quota.of_servers(backend, 1, quota.sizes(instance.flavor, image))
    quota.check(backend, allowed, more)
    row = OperationRow.new(ctxt, 'restore', server.uuid)
    server_operations.accept(ctxt, server, 'restore.start', row, 'restore')
    quota.recheck(
        backend,
        allowed,
        more,
        lambda: withdrawals.operation(
            server.cell, uuid=row.uuid, instance_uuid=server.uuid, event='restore.failed', request_id=ctxt.request_id
        ),
    )
    backend.conductor.run_operation(ctxt, operation=row.uuid)


def reset_state(backend: Backend, ctxt: RequestContext, server: ServerRef, state: str) -> None:
    """Set a server's state to ``state``, 'active' or 'error', and cancel the server's running operation.

    Operations that free resources, such as a delete, are not cancelled. If a resize or cold migration waits for a
    confirm or revert, a conductor confirms it, because the user can't do so in the new state. Raises InstanceNotFound
    if the server is in no cell.
    """
    if server.cell is None:
        raise InstanceNotFound(instance_id=server.uuid)
    row = OperationRow.new(ctxt, 'confirm', server.uuid)
    wake = operations.reset_state(
        server.cell,
        instance_uuid=server.uuid,
        event=RESETS[state],
        action=server_operations.action(ctxt, 'resetState'),
        operation=row,
    )
    if wake is not None:
        backend.conductor.run_operation(ctxt, operation=wake)
