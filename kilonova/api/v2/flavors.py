"""Flavors, their extra specs, and the access of projects to private flavors (``/flavors``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oslo_utils import strutils

from kilonova.api.fields import ABSENT, Field, Fields, column
from kilonova.api.rules import ADMIN, PREFIX, READER, rule
from kilonova.api.schemas import extra_specs
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import flavors as service
from kilonova.api.wsgi import ANYBODY, Call, Route
from kilonova.db import expressions
from kilonova.db.queries import flavors as queries
from kilonova.db.queries import owners
from kilonova.db.queries.flavors import SORT_KEYS
from kilonova.errors import Invalid, MarkerNotFound

# --- policy rules ----------------------------------------------------------------------------------------------------
CREATE, UPDATE, DELETE = (f'{PREFIX}os-flavor-manage:{verb}' for verb in ('create', 'update', 'delete'))
SPECS_INDEX, SPECS_SHOW, SPECS_CREATE, SPECS_UPDATE, SPECS_DELETE = (
    f'{PREFIX}os-flavor-extra-specs:{verb}' for verb in ('index', 'show', 'create', 'update', 'delete')
)
ACCESS = f'{PREFIX}os-flavor-access'
ADD_ACCESS, REMOVE_ACCESS = f'{ACCESS}:add_tenant_access', f'{ACCESS}:remove_tenant_access'
RULES = (
    rule(CREATE, ADMIN, 'Create a flavor.'),
    rule(UPDATE, ADMIN, 'Update a flavor.'),
    rule(DELETE, ADMIN, 'Delete a flavor.'),
    rule(SPECS_INDEX, READER, 'See the extra specs of flavors.'),
    rule(SPECS_SHOW, READER, 'See one extra spec.'),
    rule(SPECS_CREATE, ADMIN, 'Set extra specs.'),
    rule(SPECS_UPDATE, ADMIN, 'Change an extra spec.'),
    rule(SPECS_DELETE, ADMIN, 'Remove an extra spec.'),
    rule(ACCESS, ADMIN, 'See which projects may use a private flavor.'),
    rule(ADD_ACCESS, ADMIN, 'Allow a project to use a private flavor.'),
    rule(REMOVE_ACCESS, ADMIN, 'Remove the access of a project to a private flavor.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_ID = {
    'type': ['string', 'integer', 'null'],
    'pattern': r'^(?! )[a-zA-Z0-9. _-]+(?<! )$',
    'minLength': 1,
    'maxLength': 255,
    'minimum': 0,
    'maximum': t.MAX_INT,
}
_FACTOR = {
    'type': ['number', 'string'],
    'pattern': r'^[0-9]+(\.[0-9]+)?$',
    'minimum': 1e-10,
    'maximum': t.MAX_FLOAT,
    'maxLength': 40,
}

CREATE_BODY = Obj(
    Prop(
        'flavor',
        Obj(
            Prop('name', t.NAME, required=True),
            Prop('id', _ID),
            Prop('ram', t.integer(1), required=True),
            Prop('vcpus', t.integer(1), required=True),
            Prop('disk', t.integer(0), required=True),
            Prop('OS-FLV-EXT-DATA:ephemeral', t.integer(0)),
            Prop('swap', t.integer(0)),
            Prop('rxtx_factor', _FACTOR, until=101),
            Prop('os-flavor-access:is_public', t.BOOLEAN),
            Prop('description', t.LONG_TEXT, since=55),
        ),
        required=True,
    )
)

UPDATE_BODY = Obj(Prop('flavor', Obj(Prop('description', t.LONG_TEXT, required=True)), required=True))

_LIST = (
    Prop('limit', t.NUMBER_TEXT),
    Prop('marker', t.ANY_TEXT),
    Prop('is_public', t.ANY_TEXT),
    Prop('minRam', t.ANY_TEXT),
    Prop('minDisk', t.ANY_TEXT),
    Prop('sort_key', t.one_of(*SORT_KEYS)),
    Prop('sort_dir', t.one_of('asc', 'desc')),
)
INDEX_QUERY = QuerySchema.of(*_LIST, Prop('name', t.REGEX_TEXT, since=102))

_KEY = r'^[a-zA-Z0-9-_:. ]{1,255}$'
# The value of an extra spec may be a number. It is stored as text.
_VALUE = {'type': ['string', 'number'], 'maxLength': 255, 'largest': 2**63}
_PAIRS = {
    'type': 'object',
    'additionalProperties': False,
    'maxProperties': t.MAX_PAIRS,
    'patternProperties': {_KEY: _VALUE},
}

SPECS_CREATE_BODY = Obj(Prop('extra_specs', _PAIRS, required=True))
SPECS_UPDATE_BODY = Obj(additional=False, patternProperties={_KEY: _VALUE}, minProperties=1, maxProperties=1)

_TENANT = Obj(Prop('tenant', t.PROJECT_ID, required=True))
ADD_ACCESS_BODY = Obj(Prop('addTenantAccess', _TENANT, required=True))
REMOVE_ACCESS_BODY = Obj(Prop('removeTenantAccess', _TENANT, required=True))


# --- response fields -------------------------------------------------------------------------------------------------
Row = Mapping[str, Any]


@dataclass(frozen=True)
class FlavorView:
    """The values that the response fields need in addition to a flavor's row.

    ``specs``: whether the caller may see the flavor's extra specs.
    """

    links: Any
    version: int
    specs: bool


FIELDS = Fields(
    Field('id', column('flavorid')),
    Field('name', column('name')),
    Field('ram', column('memory_mb')),
    Field('disk', column('root_gb', 0)),
    Field('swap', lambda row, viewer: row['swap'] or '', until=74),
    Field('swap', column('swap', 0), since=75),
    Field('OS-FLV-EXT-DATA:ephemeral', column('ephemeral_gb', 0)),
    Field('OS-FLV-DISABLED:disabled', lambda row, viewer: bool(row['disabled']), until=101),
    Field('vcpus', column('vcpus')),
    Field('os-flavor-access:is_public', lambda row, viewer: bool(row['is_public'])),
    Field('rxtx_factor', lambda row, viewer: '' if row['rxtx_factor'] is None else row['rxtx_factor'], until=101),
    Field('links', lambda row, viewer: viewer.links.of('flavors', row['flavorid'])),
    Field('description', column('description'), since=55),
    Field('extra_specs', lambda row, viewer: row['extra_specs'] if viewer.specs else ABSENT, since=61),
)


def _body(row: Row, viewer: FlavorView) -> dict[str, Any]:
    """Return the response body of a flavor with all its fields."""
    return FIELDS.render(row, viewer, viewer.version)


def _brief(row: Row, viewer: FlavorView) -> dict[str, Any]:
    """Return the entry of a flavor in the list without details: id, name, links and the description.

    The description is left out before microversion 2.55.
    """
    body = {'id': row['flavorid'], 'name': row['name'], 'links': viewer.links.of('flavors', row['flavorid'])}
    return {**body, 'description': row['description']} if viewer.version >= 55 else body


# --- handlers of requests --------------------------------------------------------------------------------------------
VALIDATED_SPECS_SINCE, NAME_FILTER_SINCE, STRICT_ACCESS_SINCE = 86, 102, 7


def _look(call: Call, detailed: bool = True) -> FlavorView:
    return FlavorView(links=call.links, version=call.version, specs=detailed and call.may(SPECS_INDEX))


# --- lists of flavors ------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List flavors (``GET /flavors``)."""
    return _list(call, detailed=False)


def detail(call: Call) -> Any:
    """List flavors with details (``GET /flavors/detail``)."""
    return _list(call, detailed=True)


def _list(call: Call, detailed: bool) -> Any:
    is_admin, owner, limit = call.ctxt.is_admin, owners.seen_by(call.ctxt), call.limit()
    order = [(call.one('sort_key') or 'flavorid', call.one('sort_dir') or 'asc')]
    min_ram, min_disk, is_public = _number(call, 'minRam'), _number(call, 'minDisk'), _is_public(call)
    name = _pattern(call)
    with call.backend.api_db.read() as conn:
        marker = None
        if call.one('marker') is not None:
            marker = queries.get(conn, call.one('marker') or '', owner)
            if marker is None:
                raise MarkerNotFound(marker=call.one('marker'))
        rows = (
            queries.page(
                conn,
                owner=owner,
                is_public=is_public,
                min_ram=min_ram,
                min_disk=min_disk,
                name=name,
                order=order,
                limit=limit,
                marker=marker,
                disabled=None if is_admin else False,
                specs=detailed and call.version >= 61,
            )
            if limit
            else []
        )
    viewer = _look(call, detailed)
    body: dict[str, Any] = {'flavors': [_body(row, viewer) if detailed else _brief(row, viewer) for row in rows]}
    if rows and len(rows) == limit:
        path = 'flavors/detail' if detailed else 'flavors'
        body['flavors_links'] = call.links.next(path, call.query, rows[-1]['flavorid'])
    return body


def _number(call: Call, name: str) -> int:
    text = call.one(name) or '0'
    if re.fullmatch('[0-9]{1,9}', text) is None:
        raise Invalid(f'Invalid {name} filter [{text}]')
    return int(text)


def _is_public(call: Call) -> bool | None:
    """Return the filter ``is_public`` of a list of flavors: True, False, or None for no filter.

    For users who are not administrators the result is None: these users see public flavors, and the private flavors to
    which their project has access. For administrators the result is the request's parameter ``is_public``, or True
    without this parameter, as in Nova. With is_public=none an administrator sees all flavors.
    """
    if not call.ctxt.is_admin:
        return None
    text = call.one('is_public')
    if text is None:
        return True
    if text.lower() == 'none':
        return None
    try:
        return strutils.bool_from_string(text, strict=True)
    except ValueError:
        raise Invalid(f'Invalid is_public filter [{text}]') from None


def _pattern(call: Call) -> str | None:
    name = call.one('name') if call.version >= NAME_FILTER_SINCE else None
    try:
        expressions.compiled(name or '')
    except expressions.BadExpression as error:
        raise Invalid(f'Invalid name filter [{name}]: {error}') from None
    return name


# --- one flavor ------------------------------------------------------------------------------------------------------
def show(call: Call) -> Any:
    """Return a flavor (``GET /flavors/{flavor_id}``)."""
    row = service.get(call.backend, call.ctxt, call.path['flavor_id'])
    return {'flavor': _body(row, _look(call))}


def create(call: Call) -> Any:
    """Create a flavor (``POST /flavors``)."""
    body = call.body['flavor']
    row = service.create(
        call.backend,
        call.ctxt,
        {
            'name': body['name'],
            'memory_mb': int(body['ram']),
            'vcpus': int(body['vcpus']),
            'root_gb': int(body['disk']),
            'flavorid': None if body.get('id') is None else str(body['id']),
            'swap': int(body.get('swap', 0)),
            'ephemeral_gb': int(body.get('OS-FLV-EXT-DATA:ephemeral', 0)),
            'rxtx_factor': float(body.get('rxtx_factor', 1.0)),
            'description': body.get('description'),
            'is_public': strutils.bool_from_string(body.get('os-flavor-access:is_public', True)),
        },
    )
    return {'flavor': _body(row, _look(call))}


def update(call: Call) -> Any:
    """Change the description of a flavor (``PUT /flavors/{flavor_id}``)."""
    row = service.describe(call.backend, call.ctxt, call.path['flavor_id'], call.body['flavor']['description'])
    return {'flavor': _body(row, _look(call))}


def delete(call: Call) -> None:
    """Delete a flavor (``DELETE /flavors/{flavor_id}``)."""
    service.delete(call.backend, call.ctxt, call.path['flavor_id'])


# --- extra specs -----------------------------------------------------------------------------------------------------
def list_specs(call: Call) -> Any:
    """List the extra specs of a flavor (``GET /flavors/{flavor_id}/os-extra_specs``)."""
    return {'extra_specs': service.get(call.backend, call.ctxt, call.path['flavor_id'])['extra_specs']}


def create_specs(call: Call) -> Any:
    """Set extra specs of a flavor and keep the others (``POST /flavors/{flavor_id}/os-extra_specs``)."""
    specs = _specs(call, call.body['extra_specs'])
    service.set_specs(call.backend, call.ctxt, call.path['flavor_id'], specs)
    return {'extra_specs': specs}


def show_spec(call: Call) -> Any:
    """Return one extra spec of a flavor (``GET /flavors/{flavor_id}/os-extra_specs/{key}``)."""
    return service.get_spec(call.backend, call.ctxt, call.path['flavor_id'], call.path['key'])


def update_spec(call: Call) -> Any:
    """Set one extra spec of a flavor (``PUT /flavors/{flavor_id}/os-extra_specs/{key}``).

    Raises Invalid (400) if the body does not contain the key of the path.
    """
    specs = _specs(call, call.body)
    if call.path['key'] not in specs:
        raise Invalid('Request body and URI mismatch')
    service.set_specs(call.backend, call.ctxt, call.path['flavor_id'], specs)
    return specs


def delete_spec(call: Call) -> None:
    """Delete one extra spec of a flavor (``DELETE /flavors/{flavor_id}/os-extra_specs/{key}``)."""
    service.delete_spec(call.backend, call.ctxt, call.path['flavor_id'], call.path['key'])


def _specs(call: Call, values: dict[str, Any]) -> dict[str, str]:
    specs = {key: str(value) for key, value in values.items()}
    extra_specs.check(specs, validated=call.version >= VALIDATED_SPECS_SINCE)
    return specs


# --- access of projects to private flavors ---------------------------------------------------------------------------
def list_access(call: Call) -> Any:
    """List the projects that may use a private flavor (``GET /flavors/{flavor_id}/os-flavor-access``)."""
    return _access(call, service.access(call.backend, call.ctxt, call.path['flavor_id']))


def add_access(call: Call) -> Any:
    """Accept the action addTenantAccess: let a project use a private flavor."""
    return _access(
        call,
        service.grant(
            call.backend,
            call.ctxt,
            call.path['flavor_id'],
            _tenant(call, 'addTenantAccess'),
            refuse_public=call.version >= STRICT_ACCESS_SINCE,
        ),
    )


def remove_access(call: Call) -> Any:
    """Accept the action removeTenantAccess: no longer let a project use a private flavor."""
    return _access(
        call, service.revoke(call.backend, call.ctxt, call.path['flavor_id'], _tenant(call, 'removeTenantAccess'))
    )


def _tenant(call: Call, action: str) -> str:
    found: str = call.body[action]['tenant']
    return found


def _access(call: Call, projects: list[str]) -> Any:
    return {'flavor_access': [{'flavor_id': call.path['flavor_id'], 'tenant_id': project} for project in projects]}


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/flavors', '/flavors/{flavor_id}'
_ALL_SPECS, _ONE_SPEC = f'{_ONE}/os-extra_specs', f'{_ONE}/os-extra_specs/{{key}}'
_SEEN = (SPECS_INDEX,)
ROUTES = (
    Route('GET', _ALL, index, ANYBODY, query=INDEX_QUERY),
    Route('GET', f'{_ALL}/detail', detail, ANYBODY, query=INDEX_QUERY, asks=_SEEN),
    Route('GET', _ONE, show, ANYBODY, asks=_SEEN),
    Route('POST', _ALL, create, CREATE, body=CREATE_BODY, asks=_SEEN),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY, asks=_SEEN, since=55),
    Route('DELETE', _ONE, delete, DELETE, status=202),
    Route('GET', _ALL_SPECS, list_specs, SPECS_INDEX),
    Route('POST', _ALL_SPECS, create_specs, SPECS_CREATE, body=SPECS_CREATE_BODY),
    Route('GET', _ONE_SPEC, show_spec, SPECS_SHOW),
    Route('PUT', _ONE_SPEC, update_spec, SPECS_UPDATE, body=SPECS_UPDATE_BODY),
    Route('DELETE', _ONE_SPEC, delete_spec, SPECS_DELETE),
    Route('GET', f'{_ONE}/os-flavor-access', list_access, ACCESS),
    Route('POST', f'{_ONE}/action', add_access, ADD_ACCESS, body=ADD_ACCESS_BODY, action='addTenantAccess'),
    Route('POST', f'{_ONE}/action', remove_access, REMOVE_ACCESS, body=REMOVE_ACCESS_BODY, action='removeTenantAccess'),
)
