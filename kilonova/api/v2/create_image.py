"""The action createImage."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import snapshot
from kilonova.api.wsgi import Call, Reply

METADATA_COUNTED_UNTIL = 38
BODY_SINCE = 45


def create_image(call: Call) -> Reply:
    """createImage. Where the image is stands in a header, from 2.45 on its id in the body."""
    body = call.body['createImage']
    server: Any = call.server
    image_id = snapshot.create_image(
        call.backend, call.ctxt, server, body['name'], body.get('metadata') or {},
        counted=call.version <= METADATA_COUNTED_UNTIL)
    if call.version >= BODY_SINCE:
        return Reply({'image_id': image_id})
    return Reply(headers=(('Location', call.backend.images.url(image_id, call.ctxt)),))
