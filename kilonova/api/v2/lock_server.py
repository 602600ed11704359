"""lock and unlock: against changes by whoever is no administrator."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, Window, Windows
from kilonova.api.services import accept
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
    rule(UNLOCK_OVERRIDE, ADMIN, 'Unlock a server that somebody of another kind has locked.'),
)

LOCK_BODY = Obj(Prop('lock', Windows(
    Window(t.ANYTHING, until=REASON_SINCE - 1),
    Window({'oneOf': [t.NULL, Obj(Prop('locked_reason', {
        'type': 'string', 'minLength': 1, 'maxLength': 255, 'format': 'text'}))]}, since=REASON_SINCE)), required=True))
UNLOCK_BODY = Obj(Prop('unlock', t.ANYTHING, required=True))


def lock(call: Call) -> None:
    """lock; from 2.73 on perhaps with a reason. An owner's lock leaves a server that is locked already as it is; an
    administrator's replaces it."""
    server, backend = call.server, call.backend
    body = call.body['lock'] if call.version >= REASON_SINCE else None
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    kind = _kind(call)
    instances.lock(server.cell, server.uuid, locked_by=kind, reason=(body or {}).get('locked_reason'),
               again=kind != 'owner', action=accept.action(call.ctxt, 'lock'), host=backend.options.host)
    updates.server_changed(backend.notify, call.ctxt, server.cell, server.uuid, 'instance.lock')


def unlock(call: Call) -> None:
    """unlock; what the other kind of caller has locked takes a right of its own. InstanceIsLocked (409) when somebody
    else locked it since it was looked at."""
    server, backend = call.server, call.backend
    locked_by = server.row['locked_by']
    if locked_by not in (None, _kind(call)):
        call.authorise(UNLOCK_OVERRIDE)
    if server.cell is None:
        raise InstanceNotReady(instance_id=server.uuid)
    instances.unlock(server.cell, server.uuid, locked_by=locked_by, action=accept.action(call.ctxt, 'unlock'),
                 host=backend.options.host)
    updates.server_changed(backend.notify, call.ctxt, server.cell, server.uuid, 'instance.unlock')


def _kind(call: Call) -> str:
    """As what the caller locks: whose project it is, is its owner."""
    return 'owner' if call.ctxt.project_id == call.server.row['project_id'] else 'admin'


ROUTES = (
    server_action('lock', lock, LOCK, LOCK_BODY),
    server_action('unlock', unlock, UNLOCK, UNLOCK_BODY, asks=(UNLOCK_OVERRIDE,)),
)
