"""Tags of a server."""
from __future__ import annotations

from typing import Any

from kilonova.api.schemas import server_tags as schemas
from kilonova.api.schemas.base import ValidationError
from kilonova.api.services import server_tags as service
from kilonova.api.wsgi import Call, Reply
from kilonova.errors import Invalid


class InvalidTag(Invalid):
    msg_fmt = ("Tag '%(tag)s' is invalid. It must be a non empty string without characters '/' and ','. "
               'Validation error message: %(reason)s')


def index(call: Call) -> Any:
    """GET /servers/{server_id}/tags."""
    server = call.server
    return {'tags': service.read(server)}


def update_all(call: Call) -> Any:
    """PUT /servers/{server_id}/tags."""
    server = call.server
    return {'tags': service.replace(call.backend, call.ctxt, server, call.body['tags'])}


def delete_all(call: Call) -> None:
    """DELETE /servers/{server_id}/tags."""
    server = call.server
    service.clear(call.backend, call.ctxt, server)


def show(call: Call) -> None:
    """GET /servers/{server_id}/tags/{tag}: there is nothing to say but that it has it."""
    server = call.server
    service.check(server, call.path['tag'])


def update(call: Call) -> Reply:
    """PUT /servers/{server_id}/tags/{tag}."""
    server = call.server
    tag = call.path['tag']
    try:
        schemas.WORD.check({'tag': tag}, call.version)
    except ValidationError as error:
        raise InvalidTag(tag=tag, reason=error) from error
    if not service.add(call.backend, call.ctxt, server, tag):
        return Reply(status=204)
    return Reply(None, (('Location', call.links.to(f'servers/{server.uuid}/tags', tag)),), 201)


def delete(call: Call) -> None:
    """DELETE /servers/{server_id}/tags/{tag}."""
    server = call.server
    service.remove(call.backend, call.ctxt, server, call.path['tag'])
