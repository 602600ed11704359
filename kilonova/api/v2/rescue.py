"""The server actions rescue and unrescue."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import images, passwords, server_operations
from kilonova.api.wsgi import Call, server_action
from kilonova.db.arguments.servers import RescueArguments
from kilonova.errors import Invalid

EVENT = 'rescue.start'
RESCUE, UNRESCUE = f'{PREFIX}os-rescue', f'{PREFIX}os-unrescue'
RULES = (
    rule(RESCUE, MEMBER, 'Rescue a server.'),
    rule(UNRESCUE, MEMBER, 'Unrescue a server: start it from its own disk again.'),
)
# Servers that boot from a volume can be rescued from microversion 2.87 on.
VOLUMES_SINCE = 87
RESCUE_BODY = Obj(
    Prop(
        'rescue',
        {'oneOf': [t.NULL, Obj(Prop('adminPass', t.PASSWORD), Prop('rescue_image_ref', t.UUID))]},
        required=True,
    )
)
UNRESCUE_BODY = Obj(Prop('unrescue', t.ANYTHING, required=True))


class CannotRescueVolume(Invalid):
    """Error 400: a volume-backed server cannot be rescued with this microversion or this rescue image."""

    msg_fmt = (
        'Cannot rescue a volume-backed instance: this needs API 2.87, and a rescue image with the property '
        'hw_rescue_device or hw_rescue_bus.'
    )


def rescue(call: Call) -> dict[str, Any]:
    """Accept the action rescue: boot the guest from another image, with its own disks attached as additional disks.

    If the request names no image, the host uses its default rescue image. The response contains the password of the
    rescue system, from the request or random. The API passes the password to the host only in encrypted form. Without a
    configured encryption key, the rescue system gets no password, and the response contains none. It also contains none
    if [api]enable_instance_password is off.

    Raises:
        Invalid: The image does not exist, cannot be booted, or does not fit the server (400).
        CannotRescueVolume: The server boots from a volume, and the microversion or the image does not allow a rescue
            (400).
        InstanceInvalidState, InstanceIsLocked, InstanceNotReady: The server's state or lock forbids a rescue (409).
        NothingToSealWith: The request contains a password, but no encryption key is configured (503).
    """
    backend, server, asked = call.backend, call.server, call.body['rescue'] or {}
    server_operations.check(call.ctxt, server, EVENT)
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
    server_operations.run(
        backend,
        call.ctxt,
        server,
        'rescue',
        EVENT,
        RescueArguments(image=image, sealed=passwords.seal(keys, password, (), server.uuid)),
    )
    return {'adminPass': password} if password is not None and backend.options.enable_instance_password else {}


def _check_stable(properties: dict[str, Any]) -> None:
    """Raise CannotRescueVolume if a rescue image has neither the property hw_rescue_device nor hw_rescue_bus.

    Called for a server that boots from a volume. With one of these properties, the rescue disk is attached in addition
    (stable device rescue), and the root volume stays the first disk. Without them it could not stay there.
    """
    if not (properties.get('hw_rescue_device') or properties.get('hw_rescue_bus')):
        raise CannotRescueVolume


def unrescue(call: Call) -> None:
    """Accept the action unrescue: the guest boots from its own disk again."""
    server_operations.run(call.backend, call.ctxt, call.server, 'unrescue', 'unrescue.start')


ROUTES = (
    server_action('rescue', rescue, RESCUE, RESCUE_BODY, status=200),
    server_action('unrescue', unrescue, UNRESCUE, UNRESCUE_BODY),
)
