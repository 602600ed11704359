"""Flavors, their extra specs and access to them."""
from __future__ import annotations

import re
from typing import Any

from oslo_utils import strutils

from kilonova.api.policies import flavors as policies
from kilonova.api.schemas import extra_specs
from kilonova.api.services import flavors as service
from kilonova.api.views import flavors as views
from kilonova.api.wsgi import Call
from kilonova.db import expressions
from kilonova.db.queries import flavors as queries
from kilonova.db.queries import owners
from kilonova.errors import Invalid, MarkerNotFound

VALIDATED_SPECS_SINCE, NAME_FILTER_SINCE, STRICT_ACCESS_SINCE = 86, 102, 7


def _look(call: Call, detailed: bool = True) -> views.Look:
    return views.Look(links=call.links, version=call.version, specs=detailed and call.may(policies.SPECS_INDEX))


# --- lists -----------------------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """GET /flavors."""
    return _list(call, detailed=False)


def detail(call: Call) -> Any:
    """GET /flavors/detail."""
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
        rows = queries.page(
            conn, owner=owner, is_public=is_public, min_ram=min_ram,
            min_disk=min_disk, name=name, order=order, limit=limit, marker=marker, disabled=None if is_admin else False,
            specs=detailed and call.version >= 61) if limit else []
    look = _look(call, detailed)
    body: dict[str, Any] = {'flavors': [views.show(row, look) if detailed else views.brief(row, look)
                                        for row in rows]}
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
    """Administrators see public flavors unless they ask for others; users see what they may use."""
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
    """GET /flavors/{flavor_id}."""
    row = service.get(call.backend, call.ctxt, call.path['flavor_id'])
    return {'flavor': views.show(row, _look(call))}


def create(call: Call) -> Any:
    """POST /flavors."""
    body = call.body['flavor']
    row = service.create(call.backend, call.ctxt, {
        'name': body['name'], 'memory_mb': int(body['ram']), 'vcpus': int(body['vcpus']), 'root_gb': int(body['disk']),
        'flavorid': None if body.get('id') is None else str(body['id']), 'swap': int(body.get('swap', 0)),
        'ephemeral_gb': int(body.get('OS-FLV-EXT-DATA:ephemeral', 0)),
        'rxtx_factor': float(body.get('rxtx_factor', 1.0)), 'description': body.get('description'),
        'is_public': strutils.bool_from_string(body.get('os-flavor-access:is_public', True))})
    return {'flavor': views.show(row, _look(call))}


def update(call: Call) -> Any:
    """PUT /flavors/{flavor_id}."""
    row = service.describe(call.backend, call.ctxt, call.path['flavor_id'], call.body['flavor']['description'])
    return {'flavor': views.show(row, _look(call))}


def delete(call: Call) -> None:
    """DELETE /flavors/{flavor_id}."""
    service.delete(call.backend, call.ctxt, call.path['flavor_id'])


# --- extra specs -----------------------------------------------------------------------------------------------------
def list_specs(call: Call) -> Any:
    """GET /flavors/{flavor_id}/os-extra_specs."""
    return {'extra_specs': service.get(call.backend, call.ctxt, call.path['flavor_id'])['extra_specs']}


def create_specs(call: Call) -> Any:
    """POST /flavors/{flavor_id}/os-extra_specs."""
    specs = _specs(call, call.body['extra_specs'])
    service.set_specs(call.backend, call.ctxt, call.path['flavor_id'], specs)
    return {'extra_specs': specs}


def show_spec(call: Call) -> Any:
    """GET /flavors/{flavor_id}/os-extra_specs/{key}."""
    return service.get_spec(call.backend, call.ctxt, call.path['flavor_id'], call.path['key'])


def update_spec(call: Call) -> Any:
    """PUT /flavors/{flavor_id}/os-extra_specs/{key}."""
    specs = _specs(call, call.body)
    if call.path['key'] not in specs:
        raise Invalid('Request body and URI mismatch')
    service.set_specs(call.backend, call.ctxt, call.path['flavor_id'], specs)
    return specs


def delete_spec(call: Call) -> None:
    """DELETE /flavors/{flavor_id}/os-extra_specs/{key}."""
    service.delete_spec(call.backend, call.ctxt, call.path['flavor_id'], call.path['key'])


def _specs(call: Call, values: dict[str, Any]) -> dict[str, str]:
    specs = {key: str(value) for key, value in values.items()}
    if call.version >= VALIDATED_SPECS_SINCE:
        extra_specs.check(specs)
    return specs


# --- access ----------------------------------------------------------------------------------------------------------
def list_access(call: Call) -> Any:
    """GET /flavors/{flavor_id}/os-flavor-access."""
    return _access(call, service.access(call.backend, call.ctxt, call.path['flavor_id']))


def add_access(call: Call) -> Any:
    """POST /flavors/{flavor_id}/action addTenantAccess."""
    return _access(call, service.grant(
        call.backend, call.ctxt, call.path['flavor_id'], _tenant(call, 'addTenantAccess'),
        refuse_public=call.version >= STRICT_ACCESS_SINCE))


def remove_access(call: Call) -> Any:
    """POST /flavors/{flavor_id}/action removeTenantAccess."""
    return _access(call, service.revoke(call.backend, call.ctxt, call.path['flavor_id'],
                                        _tenant(call, 'removeTenantAccess')))


def _tenant(call: Call, action: str) -> str:
    return call.body[action]['tenant']


def _access(call: Call, projects: list[str]) -> Any:
    return {'flavor_access': [{'flavor_id': call.path['flavor_id'], 'tenant_id': project} for project in projects]}
