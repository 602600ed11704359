"""The server action createImage: create an image of a server.

The request creates an image without data in the image service. Afterwards the server's host uploads the data.
"""

from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import quota, server_operations, snapshot
from kilonova.api.wsgi import Call, Reply, server_action
from kilonova.db.arguments.servers import SnapshotArguments

METADATA_COUNTED_UNTIL = 38
BODY_SINCE = 45

CREATE_IMAGE = f'{PREFIX}servers:create_image'
RULES = (rule(CREATE_IMAGE, MEMBER, 'Create an image of a server.'),)

BODY = Obj(Prop('createImage', Obj(Prop('name', t.NAME, required=True), Prop('metadata', t.METADATA)), required=True))


def create_image(call: Call) -> Reply:
    """Accept the action createImage: create an image of the server."""
    body = call.body['createImage']
    return made(
        call,
        snapshot.Making(
            'snapshot.start',
            'snapshot',
            'createImage',
            body['name'],
            SnapshotArguments,
            metadata=body.get('metadata') or {},
        ),
    )


def made(call: Call, making: snapshot.Making) -> Reply:
    """Create the image of a server and return the response, for the actions createImage and createBackup.

    Before microversion 2.45 the response has the image's URL in the header Location. From 2.45 on it has the image's id
    in the body. Until 2.38, raises MetadataLimitExceeded (403) if the image would have more metadata items than the
    quota allows.
    """
    server_operations.check(call.ctxt, call.server, making.event)
    if call.version <= METADATA_COUNTED_UNTIL:
        quota.check_metadata(quota.limits(call.backend, call.ctxt.project_id), making.metadata)
    image_id = snapshot.make(call.backend, call.ctxt, call.server, making)
    if call.version >= BODY_SINCE:
        return Reply({'image_id': image_id})
    return Reply(headers=(('Location', call.backend.images.url(image_id, call.ctxt)),))


ROUTES = (server_action('createImage', create_image, CREATE_IMAGE, BODY),)
