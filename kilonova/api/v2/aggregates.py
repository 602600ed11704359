"""Host aggregates: named sets of hosts with metadata; those with an availability zone are zones."""
from __future__ import annotations

from typing import Any

from kilonova.api.services import aggregates as service
from kilonova.api.views import aggregates as views
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /os-aggregates."""
    rows = service.list_aggregates(call.backend)
    return {'aggregates': [views.aggregate(row, call.version) for row in rows]}


def show(call: Call) -> Any:
    """GET /os-aggregates/{aggregate_id}."""
    return _body(call, service.get(call.backend, call.path['aggregate_id']))


def create(call: Call) -> Any:
    """POST /os-aggregates."""
    body = call.body['aggregate']
    row = service.create(call.backend, call.ctxt, body['name'], body.get('availability_zone'))
    return {'aggregate': views.aggregate(row, call.version, views.CREATED)}


def update(call: Call) -> Any:
    """PUT /os-aggregates/{aggregate_id}."""
    body = call.body['aggregate']
    zone = {'availability_zone': body['availability_zone']} if 'availability_zone' in body else {}
    return _body(call, service.update(call.backend, call.ctxt, call.path['aggregate_id'], body.get('name'), zone))


def delete(call: Call) -> None:
    """DELETE /os-aggregates/{aggregate_id}."""
    service.delete(call.backend, call.ctxt, call.path['aggregate_id'])


def add_host(call: Call) -> Any:
    """POST /os-aggregates/{aggregate_id}/action add_host."""
    host = call.body['add_host']['host']
    return _body(call, service.add_host(call.backend, call.ctxt, call.path['aggregate_id'], host))


def remove_host(call: Call) -> Any:
    """POST /os-aggregates/{aggregate_id}/action remove_host."""
    host = call.body['remove_host']['host']
    return _body(call, service.remove_host(call.backend, call.ctxt, call.path['aggregate_id'], host))


def set_metadata(call: Call) -> Any:
    """POST /os-aggregates/{aggregate_id}/action set_metadata."""
    metadata = call.body['set_metadata']['metadata']
    return _body(call, service.set_metadata(call.backend, call.ctxt, call.path['aggregate_id'], metadata))


def _body(call: Call, row: dict[str, Any]) -> dict[str, Any]:
    return {'aggregate': views.aggregate(row, call.version)}
