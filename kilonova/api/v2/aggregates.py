"""Host aggregates (``/os-aggregates``): named sets of hosts with metadata.

If the metadata of an aggregate names an availability zone, the hosts of the aggregate are in this zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import Field, Fields, column, micro
from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import aggregates as service
from kilonova.api.wsgi import Call, Route

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, SHOW, CREATE, UPDATE, DELETE, ADD_HOST, REMOVE_HOST, SET_METADATA = (
    f'{PREFIX}os-aggregates:{verb}'
    for verb in ('index', 'show', 'create', 'update', 'delete', 'add_host', 'remove_host', 'set_metadata')
)
RULES = (
    rule(INDEX, ADMIN, 'List aggregates.'),
    rule(SHOW, ADMIN, 'Show an aggregate.'),
    rule(CREATE, ADMIN, 'Create an aggregate.'),
    rule(UPDATE, ADMIN, 'Change the name or availability zone of an aggregate.'),
    rule(DELETE, ADMIN, 'Delete an aggregate.'),
    rule(ADD_HOST, ADMIN, 'Add a host to an aggregate.'),
    rule(REMOVE_HOST, ADMIN, 'Remove a host from an aggregate.'),
    rule(SET_METADATA, ADMIN, "Set or remove an aggregate's metadata."),
)


# --- request schemas -------------------------------------------------------------------------------------------------
@t.FORMATS.checks('zone_name', raises=ValueError)
def _zone_name(value: object) -> bool:
    # A colon is reserved: in the request that creates a server, ZONE:HOST:NODE forces a host.
    if isinstance(value, str) and ':' in value:
        raise ValueError('Availability zone names must not contain a colon.')
    return True


_ZONE = {'anyOf': [t.NULL, {'allOf': [t.ZONE, {'type': 'string', 'format': 'zone_name', 'maxLength': 255}]}]}
_METADATA = {
    'type': 'object',
    'additionalProperties': False,
    'maxProperties': t.MAX_PAIRS,
    'properties': {'availability_zone': _ZONE},
    'patternProperties': {r'^[a-zA-Z0-9-_:. ]{1,255}$': {'type': ['string', 'null'], 'maxLength': 255}},
}
_NAME_AND_ZONE = (Prop('name', t.NAME), Prop('availability_zone', _ZONE))

CREATE_BODY = Obj(
    Prop('aggregate', Obj(Prop('name', t.NAME, required=True), Prop('availability_zone', _ZONE)), required=True)
)
UPDATE_BODY = Obj(Prop('aggregate', Obj(*_NAME_AND_ZONE, minProperties=1), required=True))
ADD_HOST_BODY = Obj(Prop('add_host', Obj(Prop('host', t.HOST, required=True)), required=True))
REMOVE_HOST_BODY = Obj(Prop('remove_host', Obj(Prop('host', t.HOST, required=True)), required=True))
SET_METADATA_BODY = Obj(Prop('set_metadata', Obj(Prop('metadata', _METADATA, required=True)), required=True))


# --- response fields -------------------------------------------------------------------------------------------------

# The two kinds of response bodies. The response to a creation (CREATED) has no fields for hosts and metadata.
WHOLE, CREATED = 'whole', 'created'
_WHOLE = frozenset((WHOLE,))

FIELDS = Fields(
    Field('id', column('id')),
    Field('name', column('name')),
    Field('availability_zone', lambda row, viewer: row['metadata'].get('availability_zone')),
    Field('hosts', column('hosts'), kinds=_WHOLE),
    Field('metadata', column('metadata'), kinds=_WHOLE),
    Field('created_at', lambda row, viewer: micro(row['created_at'])),
    Field('updated_at', lambda row, viewer: micro(row['updated_at'])),
    Field('deleted_at', lambda row, viewer: None),
    Field('deleted', lambda row, viewer: False),
    Field('uuid', column('uuid'), since=41),
)


def _aggregate(row: Mapping[str, Any], version: int, kind: str = WHOLE) -> dict[str, Any]:
    """Return the response body of an aggregate.

    ``kind`` is WHOLE, or CREATED for the shorter response to the creation of an aggregate.
    """
    return FIELDS.render(row, None, version, kind)


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List aggregates (``GET /os-aggregates``)."""
    rows = service.list_aggregates(call.backend)
    return {'aggregates': [_aggregate(row, call.version) for row in rows]}


def show(call: Call) -> Any:
    """Return an aggregate (``GET /os-aggregates/{aggregate_id}``)."""
    return _body(call, service.get(call.backend, call.path['aggregate_id']))


def create(call: Call) -> Any:
    """Create an aggregate (``POST /os-aggregates``)."""
    body = call.body['aggregate']
    row = service.create(call.backend, call.ctxt, body['name'], body.get('availability_zone'))
    return {'aggregate': _aggregate(row, call.version, CREATED)}


def update(call: Call) -> Any:
    """Change an aggregate's name or availability zone (``PUT /os-aggregates/{aggregate_id}``)."""
    body = call.body['aggregate']
    zone = {'availability_zone': body['availability_zone']} if 'availability_zone' in body else {}
    return _body(call, service.update(call.backend, call.ctxt, call.path['aggregate_id'], body.get('name'), zone))


def delete(call: Call) -> None:
    """Delete an aggregate (``DELETE /os-aggregates/{aggregate_id}``)."""
    service.delete(call.backend, call.ctxt, call.path['aggregate_id'])


def add_host(call: Call) -> Any:
    """Add a host to an aggregate (``POST /os-aggregates/{aggregate_id}/action``, ``add_host``)."""
    host = call.body['add_host']['host']
    return _body(call, service.add_host(call.backend, call.ctxt, call.path['aggregate_id'], host))


def remove_host(call: Call) -> Any:
    """Remove a host from an aggregate (``POST /os-aggregates/{aggregate_id}/action``, ``remove_host``)."""
    host = call.body['remove_host']['host']
    return _body(call, service.remove_host(call.backend, call.ctxt, call.path['aggregate_id'], host))


def set_metadata(call: Call) -> Any:
    """Set or remove metadata of an aggregate (``POST /os-aggregates/{aggregate_id}/action``, ``set_metadata``)."""
    metadata = call.body['set_metadata']['metadata']
    return _body(call, service.set_metadata(call.backend, call.ctxt, call.path['aggregate_id'], metadata))


def _body(call: Call, row: dict[str, Any]) -> dict[str, Any]:
    return {'aggregate': _aggregate(row, call.version)}


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-aggregates', '/os-aggregates/{aggregate_id}'
ROUTES = (
    Route('GET', _ALL, index, INDEX),
    Route('POST', _ALL, create, CREATE, body=CREATE_BODY),
    Route('GET', _ONE, show, SHOW),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY),
    Route('DELETE', _ONE, delete, DELETE),
    Route('POST', f'{_ONE}/action', add_host, ADD_HOST, body=ADD_HOST_BODY, action='add_host'),
    Route('POST', f'{_ONE}/action', remove_host, REMOVE_HOST, body=REMOVE_HOST_BODY, action='remove_host'),
    Route('POST', f'{_ONE}/action', set_metadata, SET_METADATA, body=SET_METADATA_BODY, action='set_metadata'),
)
