"""Rescue and unrescue of servers."""
from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accept
from kilonova.api.services import rescue as use_case
from kilonova.api.wsgi import Call, server_action

RESCUE, UNRESCUE = f'{PREFIX}os-rescue', f'{PREFIX}os-unrescue'
RULES = (
    rule(RESCUE, MEMBER, 'Rescue a server.'),
    rule(UNRESCUE, MEMBER, 'Let a rescued server go back to its own system.'),
)
RESCUE_BODY = Obj(Prop('rescue', {'oneOf': [t.NULL, Obj(
    Prop('adminPass', t.PASSWORD), Prop('rescue_image_ref', t.UUID))]}, required=True))
UNRESCUE_BODY = Obj(Prop('unrescue', t.ANYTHING, required=True))


def rescue(call: Call) -> dict[str, Any]:
    """rescue: the guest starts from another image; the answer has the administrator's password there."""
    asked = call.body['rescue'] or {}
    password = use_case.rescue(call.backend, call.ctxt, call.server, asked.get('rescue_image_ref'),
                               asked.get('adminPass'))
    return {'adminPass': password} if password is not None and call.backend.options.enable_instance_password else {}


def unrescue(call: Call) -> None:
    """unrescue: the guest starts from its own disk again."""
    accept.run(call.backend, call.ctxt, call.server, 'unrescue', 'unrescue.start')


ROUTES = (
    server_action('rescue', rescue, RESCUE, RESCUE_BODY, status=200),
    server_action('unrescue', unrescue, UNRESCUE, UNRESCUE_BODY),
)
