"""The server actions lock and unlock: protect a server from changes by users who are not administrators."""

from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services import server_operations
from kilonova.api.wsgi import Call, server_action
from kilonova.db.queries import instances
from kilonova.errors import InstanceNotReady
from kilonova.rpc import updates

REASON_SINCE = 73

LOCK, UNLOCK = f'{PREFIX}os-lock-server:lock', f'{PREFIX}os-lock-server:unlock'
UNLOCK_OVERRIDE = f'{UNLOCK}:unlock_override'
RULES = (
    rule(LOCK, MEMBER, 'Lock a server.'),
    rule(UNLOCK, MEMBER, 'Unlock a server.'),
    rule(UNLOCK_OVERRIDE, ADMIN, 'Unlock a server that a user of another kind (owner or administrator) has locked.'),
)

LOCK_BODY = Obj(
    Prop(
        'lock',
        Windows(
            Window(t.ANYTHING, until=REASON_SINCE - 1),
            Window(
                {
                    'oneOf': [
                        t.NULL,
                        Obj(
                            Prop(
                                'locked_reason', {'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'text'}
                            )
                        ),
                    ]
                },
                since=REASON_SINCE,
            ),
        ),
        required=True,
    )
)
UNLOCK_BODY = Obj(Prop('unlock', t.ANYTHING, required=True))


def lock(call: Call) -> None:
    """Accept the action lock: protect the server from changes. From 2.73 on the request may contain a reason.

    A caller of the server's own project sets an owner's lock (locked_by is 'owner'). This changes nothing if the server
    is locked already. A caller of another project sets an administrator's lock ('admin'), which replaces any other
    lock. Raises InstanceNotReady (409) if the server is not in a cell yet.
    """
    server, backend = call.server, call.backend
    body = call.body['lock'] if call.version >= REASON_SINCE else None
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    kind = _kind(call)
    instances.lock(
        server.cell,
        server.uuid,
        locked_by=kind,
        reason=(body or {}).get('locked_reason'),
        again=kind != 'owner',
        action=server_operations.action(call.ctxt, 'lock'),
        host=backend.options.host,
    )
    updates.server_changed(backend.notify, call.ctxt, server.cell, server.uuid, 'instance.lock')


def unlock(call: Call) -> None:
    """Accept the action unlock: allow changes of the server again.

    There are two kinds of locks: locks of owners and locks of administrators (see ``_kind``). An owner may remove an
    owner's lock, and an administrator may remove an administrator's lock. To remove a lock of the other kind, a caller
    needs the policy rule UNLOCK_OVERRIDE.

    Raises InstanceNotReady (409) if the server is not in a cell yet, and InstanceIsLocked (409) if another user locked
    the server after it was read for this request.
    """
    server, backend = call.server, call.backend
    locked_by = server.row['locked_by']
    if locked_by not in (None, _kind(call)):
        call.authorise(UNLOCK_OVERRIDE)
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    instances.unlock(
        server.cell,
        server.uuid,
        locked_by=locked_by,
        action=server_operations.action(call.ctxt, 'unlock'),
        host=backend.options.host,
    )
    updates.server_changed(backend.notify, call.ctxt, server.cell, server.uuid, 'instance.unlock')


def _kind(call: Call) -> str:
    """Return the kind of the caller's lock: 'owner' if the caller's project owns the server, otherwise 'admin'."""
    return 'owner' if call.ctxt.project_id == call.server.row['project_id'] else 'admin'


ROUTES = (
    server_action('lock', lock, LOCK, LOCK_BODY),
    server_action('unlock', unlock, UNLOCK, UNLOCK_BODY, asks=(UNLOCK_OVERRIDE,)),
)
