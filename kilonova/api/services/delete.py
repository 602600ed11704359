"""Delete a server, at whatever it is; and reset the state of one by hand."""
from __future__ import annotations

from typing import Any

from kilonova import states
from kilonova.api.services import accept
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import WORK, Found, check_lock, find_server
from kilonova.db.queries import operations
from kilonova.errors import InstanceNotFound, InstanceNotReady


def delete(backend: Backend, ctxt: Any, server: Found) -> None:
    """Delete always wins: what runs is unwound. Before a cell is chosen the build request goes, and that is all."""
    check_lock(ctxt, server)
    if server.cell is None:
        if operations.delete_build_request(backend.api_db, server.uuid):
            return
        # The hand-over was quicker: by now the mapping says which cell has it.
        server = find_server(backend, ctxt, server.uuid, purpose=WORK)
        if server.cell is None:
            raise InstanceNotReady(instance_id=server.uuid)
    if server.row['task_state'] == states.TaskState.DELETING:
        return
    row = accept.operation(ctxt, server, 'delete', {})
    wake = operations.accept_delete(server.cell, instance_uuid=server.uuid, operation=row,
                                    action=accept.action(ctxt, 'delete'))
    if wake is not None:
        backend.conductor.terminate_instance(ctxt, operation=wake)


def reset_state(backend: Backend, ctxt: Any, server: Found, state: str) -> None:
    """Say that a server is ``active`` or in ``error``; what runs is cancelled, except a delete: that always wins."""
    if server.cell is None:
        raise InstanceNotFound(instance_id=server.uuid)
    operations.reset_state(server.cell, instance_uuid=server.uuid, event=f'reset.{state}',
                           action=accept.action(ctxt, 'resetState'))
