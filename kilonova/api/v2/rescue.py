"""Rescue and unrescue of servers."""
from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accept, images, passwords
from kilonova.api.wsgi import Call, server_action
from kilonova.errors import Invalid

EVENT = 'rescue.start'
RESCUE, UNRESCUE = f'{PREFIX}os-rescue', f'{PREFIX}os-unrescue'
RULES = (
    rule(RESCUE, MEMBER, 'Rescue a server.'),
    rule(UNRESCUE, MEMBER, 'Let a rescued server go back to its own system.'),
)
# Until 2.87 servers that boot from a volume could not be rescued.
VOLUMES_SINCE = 87
RESCUE_BODY = Obj(Prop('rescue', {'oneOf': [t.NULL, Obj(
    Prop('adminPass', t.PASSWORD), Prop('rescue_image_ref', t.UUID))]}, required=True))
UNRESCUE_BODY = Obj(Prop('unrescue', t.ANYTHING, required=True))


class CannotRescueVolume(Invalid):
    msg_fmt = ('Cannot rescue a volume-backed instance: this needs API 2.87, and a rescue image with the property '
               'hw_rescue_device or hw_rescue_bus.')


def rescue(call: Call) -> dict[str, Any]:
    """rescue: the guest starts from another image (None: the host's default), its own disks beside it; the answer has
    the administrator's password there: the one that was given, or a new one, if there are keys to send one with.

    Invalid (400): the image can't be had or doesn't fit; InstanceInvalidState, InstanceIsLocked, InstanceNotReady
    (409); NothingToSealWith; CannotRescueVolume.
    """
    backend, server, asked = call.backend, call.server, call.body['rescue'] or {}
    accept.check(call.ctxt, server, EVENT)
    image = None
    if not server.row['image_ref'] and (call.version < VOLUMES_SINCE or asked.get('rescue_image_ref') is None):
        raise CannotRescueVolume
    if asked.get('rescue_image_ref') is not None:
        image = images.find(backend, call.ctxt, asked['rescue_image_ref'])
        if not server.row['image_ref']:
            _check_stable(image['properties'])
            images.check_memory(image, server.row)
        else:
            images.check_fits(image, server.row, zero_disk_allowed=True)
        images.find_kernels(backend, call.ctxt, image, server.row['memory_mb'])
    keys = passwords.keys(backend, asked.get('adminPass'))
    password = passwords.choose(backend, keys, asked.get('adminPass'))
    accept.run(backend, call.ctxt, server, 'rescue', EVENT, {
        'image': image, 'sealed': passwords.seal(keys, password, (), server.uuid)})
    return {'adminPass': password} if password is not None and backend.options.enable_instance_password else {}


def _check_stable(properties: dict[str, Any]) -> None:
    """CannotRescueVolume: the server's volume would not keep its place."""
    if not (properties.get('hw_rescue_device') or properties.get('hw_rescue_bus')):
        raise CannotRescueVolume


def unrescue(call: Call) -> None:
    """unrescue: the guest starts from its own disk again."""
    accept.run(call.backend, call.ctxt, call.server, 'unrescue', 'unrescue.start')


ROUTES = (
    server_action('rescue', rescue, RESCUE, RESCUE_BODY, status=200),
    server_action('unrescue', unrescue, UNRESCUE, UNRESCUE_BODY),
)
