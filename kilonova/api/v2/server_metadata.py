"""Metadata of a server."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import server_metadata as service
from kilonova.api.wsgi import Call
from kilonova.errors import Invalid


def index(call: Call) -> Any:
    """GET /servers/{server_id}/metadata."""
    server = call.server
    return {'metadata': service.read(server)}


def create(call: Call) -> Any:
    """POST /servers/{server_id}/metadata: the other items stay."""
    server = call.server
    return {'metadata': service.merge(call.backend, call.ctxt, server, call.body['metadata'])}


def update_all(call: Call) -> Any:
    """PUT /servers/{server_id}/metadata: the other items go."""
    server = call.server
    return {'metadata': service.replace(call.backend, call.ctxt, server, call.body['metadata'])}


def show(call: Call) -> Any:
    """GET /servers/{server_id}/metadata/{key}."""
    server = call.server
    key = call.path['key']
    return {'meta': {key: service.item(server, key)}}


def update(call: Call) -> Any:
    """PUT /servers/{server_id}/metadata/{key}."""
    server = call.server
    if call.path['key'] not in call.body['meta']:
        raise Invalid('Request body and URI mismatch')
    service.merge(call.backend, call.ctxt, server, call.body['meta'])
    return {'meta': call.body['meta']}


def delete(call: Call) -> None:
    """DELETE /servers/{server_id}/metadata/{key}."""
    server = call.server
    service.delete(call.backend, call.ctxt, server, call.path['key'])
