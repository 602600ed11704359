"""What accepting an operation on one server has in common: its row, its action, the transaction, the wake-up."""
from __future__ import annotations

from typing import Any

from kilonova import states
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found, check_lock, check_ready
from kilonova.context import RequestContext
from kilonova.db.queries import operations
from kilonova.errors import InstanceInvalidState


def action(ctxt: RequestContext, name: str) -> dict[str, Any]:
    """The row that tells the server's story."""
    return {'action': name, 'request_id': ctxt.request_id, 'user_id': ctxt.user_id, 'project_id': ctxt.project_id}


def check(ctxt: RequestContext, server: Found, event: str, launched: bool = True, hosted: bool = True) -> None:
    """Lock, host and state, as the row in hand has them; the transaction checks the state once more. ``hosted`` False:
    it needs no host.

    Raises InstanceIsLocked, InstanceNotReady, InstanceInvalidState: all 409.
    """
    check_lock(ctxt, server)
    row = server.row
    rule = states.TRANSITIONS[event]
    if not rule.allows(row['vm_state'], row['task_state']):
        wrong_vm = rule.vm is not states.ANY and row['vm_state'] not in rule.vm
        attr = 'vm_state' if wrong_vm else 'task_state'
        raise InstanceInvalidState(method=rule.method, instance_uuid=server.uuid, attr=attr, state=row[attr])
    if launched and not row['launched_at']:
        raise InstanceInvalidState(method=rule.method, instance_uuid=server.uuid, attr='launched_at',
                                   state=row['launched_at'])
    if hosted:
        check_ready(server)


def accept(ctxt: RequestContext, server: Found, event: str, row: operations.Operation, name: str, **more: Any) -> None:
    """One transaction: state, operation, action. Raises InstanceInvalidState for the loser of a race."""
    operations.accept(server.cell, instance_uuid=server.uuid, event=event, operation=row, action=action(ctxt, name),
                      **more)


def run(backend: Backend, ctxt: RequestContext, server: Found, kind: str, event: str,
        args: dict[str, Any] | None = None) -> None:
    """One step on the server's host, accepted and begun."""
    check(ctxt, server, event)
    row = operations.Operation.new(ctxt, kind, server.uuid, args or {})
    accept(ctxt, server, event, row, kind)
    backend.conductor.run_operation(ctxt, operation=row.uuid)
