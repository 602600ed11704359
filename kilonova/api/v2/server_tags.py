"""Tags of a server (``/servers/{server_id}/tags``). As in Nova, tags of a locked server can be changed."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, ValidationError, Window, Windows
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import VIEW, ServerRef, check_editable
from kilonova.api.wsgi import SERVER, Call, Reply, Route
from kilonova.context import RequestContext
from kilonova.db.queries import tags
from kilonova.errors import Invalid, NotFound
from kilonova.rpc import updates
from kilonova.rpc.notify import API

# --- policy rules ----------------------------------------------------------------------------------------------------
_ROOT = f'{PREFIX}os-server-tags:'
INDEX, UPDATE_ALL, DELETE_ALL = f'{_ROOT}index', f'{_ROOT}update_all', f'{_ROOT}delete_all'
SHOW, UPDATE, DELETE = f'{_ROOT}show', f'{_ROOT}update', f'{_ROOT}delete'
RULES = (
    rule(INDEX, READER, 'List the tags of a server.'),
    rule(UPDATE_ALL, MEMBER, 'Replace the tags of a server.'),
    rule(DELETE_ALL, MEMBER, 'Delete all tags of a server.'),
    rule(SHOW, READER, 'Check whether a server has a tag.'),
    rule(UPDATE, MEMBER, 'Add a tag to a server.'),
    rule(DELETE, MEMBER, 'Delete a tag of a server.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# The maximum number of tags of a server.
LIMIT = 50

UPDATE_ALL_BODY = Obj(Prop('tags', {'type': 'array', 'items': t.TAG, 'maxItems': LIMIT}, required=True))
# The request has no body: the tag is in the path.
UPDATE_BODY = Windows(Window(t.NULL))
_WORD = Obj(Prop('tag', t.TAG))


# --- functions that the handlers call, and their errors --------------------------------------------------------------
class TagNotFound(NotFound):
    """Error 404: the server does not have the tag."""

    msg_fmt = "Server %(uuid)s has no tag '%(tag)s'"


def _read(server: ServerRef) -> list[str]:
    """Return all tags of the server, sorted."""
    if server.cell is None:
        found: list[str] = server.row['tags']
        return found
    with server.cell.read() as conn:
        return tags.words(conn, server.uuid)


def _check(server: ServerRef, tag: str) -> None:
    """Raise TagNotFound (404) unless the server has the tag."""
    if tag not in _read(server):
        raise TagNotFound(uuid=server.uuid, tag=tag)


def _replace(backend: Backend, ctxt: RequestContext, server: ServerRef, wanted: list[str]) -> list[str]:
    """Replace all tags of the server by the given ones, and return them sorted and without duplicates."""
    check_editable(server, 'update tags')
    tags.replace(server.cell, server.uuid, wanted)
    _notify(backend, ctxt, server)
    return sorted(set(wanted))


def _add(backend: Backend, ctxt: RequestContext, server: ServerRef, tag: str) -> bool:
    """Add a tag, and return whether it is new.

    Raises TooManyTags (400) if the server has LIMIT tags already.
    """
    check_editable(server, 'update tag')
    if not tags.add(server.cell, server.uuid, tag, LIMIT):
        return False
    _notify(backend, ctxt, server)
    return True


def _remove(backend: Backend, ctxt: RequestContext, server: ServerRef, tag: str) -> None:
    """Delete a tag.

    Raises TagNotFound (404) if the server does not have the tag.
    """
    check_editable(server, 'delete tag')
    if not tags.remove(server.cell, server.uuid, tag):
        raise TagNotFound(uuid=server.uuid, tag=tag)
    _notify(backend, ctxt, server)


def _clear(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Delete all tags of the server."""
    check_editable(server, 'delete tags')
    tags.clear(server.cell, server.uuid)
    _notify(backend, ctxt, server)


def _notify(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    """Send the notification instance.update, even if notifications of state changes are switched off."""
    updates.server_changed(backend.notify, ctxt, server.cell, server.uuid, binary=API)


# --- handlers of requests --------------------------------------------------------------------------------------------
class InvalidTag(Invalid):
    """Error 400: the tag in the path is empty, too long, or has a forbidden character."""

    msg_fmt = (
        "Tag '%(tag)s' is invalid. It must be a non empty string without characters '/' and ','. "
        'Validation error message: %(reason)s'
    )


def index(call: Call) -> Any:
    """List the tags of a server (``GET /servers/{server_id}/tags``)."""
    return {'tags': _read(call.server)}


def update_all(call: Call) -> Any:
    """Replace the tags of a server (``PUT /servers/{server_id}/tags``)."""
    return {'tags': _replace(call.backend, call.ctxt, call.server, call.body['tags'])}


def delete_all(call: Call) -> None:
    """Delete all tags of a server (``DELETE /servers/{server_id}/tags``)."""
    _clear(call.backend, call.ctxt, call.server)


def show(call: Call) -> None:
    """Return status 204 if the server has the tag, and 404 if not (``GET /servers/{server_id}/tags/{tag}``)."""
    _check(call.server, call.path['tag'])


def update(call: Call) -> Reply:
    """Add a tag to a server (``PUT /servers/{server_id}/tags/{tag}``).

    The response has status 201 if the tag is new, and 204 if the server already has the tag.
    """
    server = call.server
    tag = call.path['tag']
    try:
        _WORD.check({'tag': tag}, call.version)
    except ValidationError as error:
        raise InvalidTag(tag=tag, reason=error) from error
    if not _add(call.backend, call.ctxt, server, tag):
        return Reply(status=204)
    return Reply(None, (('Location', call.links.to(f'servers/{server.uuid}/tags', tag)),), 201)


def delete(call: Call) -> None:
    """Delete a tag of a server (``DELETE /servers/{server_id}/tags/{tag}``)."""
    _remove(call.backend, call.ctxt, call.server, call.path['tag'])


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = f'{SERVER}/tags', f'{SERVER}/tags/{{tag}}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, server=VIEW, since=26),
    Route('PUT', _ALL, update_all, UPDATE_ALL, body=UPDATE_ALL_BODY, server=VIEW, since=26),
    Route('DELETE', _ALL, delete_all, DELETE_ALL, status=204, server=VIEW, since=26),
    Route('GET', _ONE, show, SHOW, status=204, server=VIEW, since=26),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY, status=204, server=VIEW, since=26),
    Route('DELETE', _ONE, delete, DELETE, status=204, server=VIEW, since=26),
)
