"""Metadata of a server: list, merge, replace and delete items (``/servers/{server_id}/metadata``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import quota
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import VIEW, ServerRef, check_editable, check_lock
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.context import RequestContext
from kilonova.db.queries import metadata
from kilonova.errors import Invalid, NotFound
from kilonova.rpc import updates

# --- policy rules ----------------------------------------------------------------------------------------------------
_ROOT = f'{PREFIX}server-metadata:'
INDEX, CREATE, UPDATE_ALL = f'{_ROOT}index', f'{_ROOT}create', f'{_ROOT}update_all'
SHOW, UPDATE, DELETE = f'{_ROOT}show', f'{_ROOT}update', f'{_ROOT}delete'
RULES = (
    rule(INDEX, READER, 'List the metadata of a server.'),
    rule(CREATE, MEMBER, 'Add metadata to a server.'),
    rule(UPDATE_ALL, MEMBER, 'Replace the metadata of a server.'),
    rule(SHOW, READER, 'Show one metadata item of a server.'),
    rule(UPDATE, MEMBER, 'Set one metadata item of a server.'),
    rule(DELETE, MEMBER, 'Delete one metadata item of a server.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
CREATE_BODY = Obj(Prop('metadata', t.METADATA, required=True))
UPDATE_ALL_BODY = CREATE_BODY
UPDATE_BODY = Obj(Prop('meta', {**t.METADATA, 'minProperties': 1, 'maxProperties': 1}, required=True))


# --- functions that the handlers call, and their errors --------------------------------------------------------------
UPDATING, DELETING = 'update metadata', 'delete metadata'


class MetadataNotFound(NotFound):
    """Error 404: the server has no metadata item with this key."""

    msg_fmt = 'Metadata item was not found'


def _read(server: ServerRef) -> dict[str, str]:
    """Return all metadata items of the server."""
    if server.cell is None:
        found: dict[str, str] = server.row['metadata']
        return found
    with server.cell.read() as conn:
        return metadata.get(conn, server.uuid)


def _item(server: ServerRef, key: str) -> str:
    """Return the value of one metadata item.

    Raises MetadataNotFound (404) if the server has no such item.
    """
    pairs = _read(server)
    if key not in pairs:
        raise MetadataNotFound
    return pairs[key]


def _merge(backend: Backend, ctxt: RequestContext, server: ServerRef, pairs: dict[str, str]) -> dict[str, str]:
    """Set the given items, keep the server's other items, and return all items.

    Raises MetadataLimitExceeded (403) if the server would have more items than the quota allows.
    """
    return _write(backend, ctxt, server, lambda before: {**before, **pairs})


def _replace(backend: Backend, ctxt: RequestContext, server: ServerRef, pairs: dict[str, str]) -> dict[str, str]:
    """Replace all metadata items of the server by the given items, and return these items.

    Raises MetadataLimitExceeded (403) if there are more items than the quota allows.
    """
    return _write(backend, ctxt, server, lambda before: dict(pairs))


def _write(
    backend: Backend, ctxt: RequestContext, server: ServerRef, make: Callable[[dict[str, str]], dict[str, str]]
) -> dict[str, str]:
    check_lock(ctxt, server)
    check_editable(server, UPDATING)
    allowed = quota.limits(backend, server.row['project_id'])

    def decide(before: dict[str, str]) -> dict[str, str]:
        after = make(before)
        quota.check_metadata(allowed, after)
        return after

    after = metadata.change(server.cell, server.uuid, decide, method=UPDATING)
    _notify(backend, ctxt, server)
    return after


def _notify(backend: Backend, ctxt: RequestContext, server: ServerRef) -> None:
    if backend.notify.on_states is not None:
        updates.server_changed(backend.notify, ctxt, server.cell, server.uuid)


def _forget(backend: Backend, ctxt: RequestContext, server: ServerRef, key: str) -> None:
    """Delete one metadata item.

    Raises MetadataNotFound (404) if the server has no such item.
    """
    check_lock(ctxt, server)
    check_editable(server, DELETING)

    def decide(before: dict[str, str]) -> dict[str, str]:
        if key not in before:
            raise MetadataNotFound
        return {name: value for name, value in before.items() if name != key}

    metadata.change(server.cell, server.uuid, decide, method=DELETING)
    _notify(backend, ctxt, server)


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List the metadata of a server (``GET /servers/{server_id}/metadata``)."""
    return {'metadata': _read(call.server)}


def create(call: Call) -> Any:
    """Set metadata items and keep the others (``POST /servers/{server_id}/metadata``)."""
    return {'metadata': _merge(call.backend, call.ctxt, call.server, call.body['metadata'])}


def update_all(call: Call) -> Any:
    """Set metadata items and delete all others (``PUT /servers/{server_id}/metadata``)."""
    return {'metadata': _replace(call.backend, call.ctxt, call.server, call.body['metadata'])}


def show(call: Call) -> Any:
    """Return one metadata item (``GET /servers/{server_id}/metadata/{key}``)."""
    key = call.path['key']
    return {'meta': {key: _item(call.server, key)}}


def update(call: Call) -> Any:
    """Set one metadata item (``PUT /servers/{server_id}/metadata/{key}``).

    Raises Invalid (400) if the body does not contain the key of the path.
    """
    if call.path['key'] not in call.body['meta']:
        raise Invalid('Request body and URI mismatch')
    _merge(call.backend, call.ctxt, call.server, call.body['meta'])
    return {'meta': call.body['meta']}


def delete(call: Call) -> None:
    """Delete one metadata item (``DELETE /servers/{server_id}/metadata/{key}``)."""
    _forget(call.backend, call.ctxt, call.server, call.path['key'])


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = f'{SERVER}/metadata', f'{SERVER}/metadata/{{key}}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, server=VIEW),
    Route('POST', _ALL, create, CREATE, body=CREATE_BODY, server=VIEW),
    Route('PUT', _ALL, update_all, UPDATE_ALL, body=UPDATE_ALL_BODY, server=VIEW),
    Route('GET', _ONE, show, SHOW, server=VIEW),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY, server=VIEW),
    Route('DELETE', _ONE, delete, DELETE, status=204, server=VIEW),
)
