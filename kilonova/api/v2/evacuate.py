"""The server action evacuate: rebuild a server of a dead host on another host."""

from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import evacuate as evacuating
from kilonova.api.wsgi import Call, Reply, server_action

EVACUATE = f'{PREFIX}os-evacuate'
RULES = (rule(EVACUATE, ADMIN, 'Evacuate a server from a dead host.'),)

# ASKED_SINCE: the first microversion (2.N) with the field ``force``. Without force, a named host must pass the filters.
# FORCED_UNTIL: the last microversion (2.N) in which a named host can be used without running the filters.
# PASSWORD_UNTIL: the last microversion (2.N) whose response contains the new password.
# OFF_SINCE: from this microversion (2.N) on, an evacuation leaves the server stopped on its new host.
ASKED_SINCE, FORCED_UNTIL, PASSWORD_UNTIL, OFF_SINCE = 29, 67, 13, 95
BODY = Obj(
    Prop(
        'evacuate',
        Obj(
            Prop('host', t.HOST),
            Prop('adminPass', t.PASSWORD),
            Prop('onSharedStorage', t.BOOLEAN, required=True, until=PASSWORD_UNTIL),
            Prop('force', t.BOOLEAN, since=ASKED_SINCE, until=FORCED_UNTIL),
        ),
        required=True,
    )
)


def evacuate(call: Call) -> Any:
    """Accept the action evacuate: rebuild a server of a dead host on another host.

    Before microversion 2.14 the response contains the administrator's new password. From 2.14 on the response is empty.
    """
    body = call.body['evacuate']
    shared = body.get('onSharedStorage')
    password = evacuating.evacuate(
        call.backend,
        call.ctxt,
        call.server,
        evacuating.EvacuateRequest(
            host=body.get('host'),
            admin_password=body.get('adminPass'),
            stays_off=call.version >= OFF_SINCE,
            force=call.version < ASKED_SINCE or strutils.bool_from_string(body.get('force')),
            shared=None if shared is None else strutils.bool_from_string(shared),
        ),
    )
    if call.version > PASSWORD_UNTIL:
        return None
    shown = password is not None and call.backend.options.enable_instance_password
    return Reply({'adminPass': password} if shown else {})


ROUTES = (server_action('evacuate', evacuate, EVACUATE, BODY, status=200),)
