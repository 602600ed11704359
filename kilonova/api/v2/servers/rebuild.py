"""The server action rebuild: create a server's disks again from an image, on the same host."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import rebuild as rebuilding
from kilonova.api.services.server_operations import find_server
from kilonova.api.v2.servers import show
from kilonova.api.v2.servers.create import CERTIFICATES, HOSTNAME, PERSONALITY, USER_DATA, boolean, has_password
from kilonova.api.wsgi import Call, Reply, server_action

REBUILD, TRUSTED_CERTS = f'{PREFIX}servers:rebuild', f'{PREFIX}servers:rebuild:trusted_certs'
RULES = (
    rule(REBUILD, MEMBER, 'Rebuild a server.'),
    rule(TRUSTED_CERTS, MEMBER, 'Rebuild a server with trusted image certificates.'),
)

# From this microversion on a rebuild also writes the image to the volume that the server boots from.
REIMAGE_SINCE = 93
BODY = Obj(
    Prop(
        'rebuild',
        Obj(
            Prop('imageRef', t.UUID, required=True),
            Prop('name', t.NAME),
            Prop('adminPass', t.PASSWORD),
            Prop('metadata', t.METADATA),
            Prop('preserve_ephemeral', t.BOOLEAN),
            Prop('OS-DCF:diskConfig', t.DISK_CONFIG),
            Prop('accessIPv4', t.IPV4),
            Prop('accessIPv6', t.IPV6),
            PERSONALITY,
            Prop('description', t.TEXT, since=19),
            Prop('key_name', {'oneOf': [t.NAME, t.NULL]}, since=54),
            Prop('user_data', {'oneOf': [USER_DATA, t.NULL]}, since=57),
            CERTIFICATES,
            *HOSTNAME,
        ),
        required=True,
    )
)

# Members of the request body, and their names in ``RebuildRequest.given``.
_GIVEN = {
    'name': 'name',
    'description': 'description',
    'accessIPv4': 'access_ip_v4',
    'accessIPv6': 'access_ip_v6',
    'hostname': 'hostname',
    'user_data': 'user_data',
    'key_name': 'key_name',
    'metadata': 'metadata',
    'OS-DCF:diskConfig': 'disk_config',
}


def rebuild(call: Call) -> Reply:
    """Accept the action rebuild: create the server's disks again from an image. Returns the server."""
    body = call.body['rebuild']
    if body.get('trusted_image_certificates'):
        call.authorise(TRUSTED_CERTS)
    password = rebuilding.rebuild(
        call.backend, call.ctxt, call.server, _request(body, reimage=call.version >= REIMAGE_SINCE)
    )
    server = show.body(call, show.REBUILT, find_server(call.backend, call.ctxt, call.server.uuid))
    if password is not None and has_password(call):
        server['adminPass'] = password
    return Reply({'server': server}, (('Location', call.links.to('servers', call.server.uuid)),))


def _request(body: dict[str, Any], *, reimage: bool) -> rebuilding.RebuildRequest:
    return rebuilding.RebuildRequest(
        image_ref=body['imageRef'],
        reimage=reimage,
        given={ours: body[name] for name, ours in _GIVEN.items() if name in body},
        admin_password=body.get('adminPass'),
        personality=body.get('personality') or [],
        certificates=body.get('trusted_image_certificates') or [],
        preserve_ephemeral=boolean(body.get('preserve_ephemeral')),
    )


ROUTES = (server_action('rebuild', rebuild, REBUILD, BODY, asks=(TRUSTED_CERTS, *show.SEEN)),)
