"""Rescue and unrescue of servers."""
from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accept, images, passwords
from kilonova.api.wsgi import Call, server_action

EVENT = 'rescue.start'
RESCUE, UNRESCUE = f'{PREFIX}os-rescue', f'{PREFIX}os-unrescue'
RULES = (
    rule(RESCUE, MEMBER, 'Rescue a server.'),
    rule(UNRESCUE, MEMBER, 'Let a rescued server go back to its own system.'),
)
RESCUE_BODY = Obj(Prop('rescue', {'oneOf': [t.NULL, Obj(
    Prop('adminPass', t.PASSWORD), Prop('rescue_image_ref', t.UUID))]}, required=True))
UNRESCUE_BODY = Obj(Prop('unrescue', t.ANYTHING, required=True))


def rescue(call: Call) -> dict[str, Any]:
    """rescue: the guest starts from another image (None: the host's default), its own disks beside it; the answer has
    the administrator's password there: the one that was given, or a new one, if there are keys to send one with.

    Invalid (400): the image can't be had or doesn't fit; InstanceInvalidState, InstanceIsLocked, InstanceNotReady
    (409); NothingToSealWith.
    """
    backend, server, asked = call.backend, call.server, call.body['rescue'] or {}
    accept.check(call.ctxt, server, EVENT)
    image = None
    if asked.get('rescue_image_ref') is not None:
        image = images.find(backend, call.ctxt, asked['rescue_image_ref'])
        images.check_fits(image, server.row, zero_disk_allowed=True)
        images.find_kernels(backend, call.ctxt, image, server.row['memory_mb'])
    keys = passwords.keys(backend, asked.get('adminPass'))
    password = passwords.choose(backend, keys, asked.get('adminPass'))
    accept.run(backend, call.ctxt, server, 'rescue', EVENT, {
        'image': image, 'sealed': passwords.seal(keys, password, (), server.uuid)})
    return {'adminPass': password} if password is not None and backend.options.enable_instance_password else {}


def unrescue(call: Call) -> None:
    """unrescue: the guest starts from its own disk again."""
    accept.run(call.backend, call.ctxt, call.server, 'unrescue', 'unrescue.start')


ROUTES = (
    server_action('rescue', rescue, RESCUE, RESCUE_BODY, status=200),
    server_action('unrescue', unrescue, UNRESCUE, UNRESCUE_BODY),
)
