"""The server actions restore and forceDelete, for soft-deleted servers."""

from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import delete
from kilonova.api.wsgi import Call, server_action

RESTORE, FORCE = f'{PREFIX}os-deferred-delete:restore', f'{PREFIX}os-deferred-delete:force'
RULES = (
    rule(RESTORE, MEMBER, 'Restore a soft-deleted server.'),
    rule(FORCE, MEMBER, 'Delete a server immediately, even if it is not soft-deleted.'),
)

RESTORE_BODY = Obj(Prop('restore', t.ANYTHING, required=True))
FORCE_BODY = Obj(Prop('forceDelete', t.ANYTHING, required=True))


def restore(call: Call) -> None:
    """Accept the action restore: make a soft-deleted server active again."""
    delete.restore(call.backend, call.ctxt, call.server)


def force_delete(call: Call) -> None:
    """Accept the action forceDelete: delete a server at once, even if it is not soft-deleted."""
    delete.delete(call.backend, call.ctxt, call.server, at_once=True)


ROUTES = (
    server_action('restore', restore, RESTORE, RESTORE_BODY),
    server_action('forceDelete', force_delete, FORCE, FORCE_BODY),
)
