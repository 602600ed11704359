"""Server groups (``/os-server-groups``): servers that share a host or must be on different hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import Field, Fields, column
from kilonova.api.rules import ADMIN, MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import server_groups as service
from kilonova.api.wsgi import Call, Route
from kilonova.db.queries import owners

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-server-groups:{verb}' for verb in ('index', 'show', 'create', 'delete'))
ALL_PROJECTS = f'{INDEX}:all_projects'
RULES = (
    rule(INDEX, READER, 'List the server groups of a project.'),
    rule(ALL_PROJECTS, ADMIN, 'List the server groups of all projects.'),
    rule(SHOW, READER, 'Show a server group.'),
    rule(CREATE, MEMBER, 'Create a server group.'),
    rule(DELETE, MEMBER, 'Delete a server group.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
HARD, SOFT = ('anti-affinity', 'affinity'), ('soft-anti-affinity', 'soft-affinity')


def _policies(*names: str) -> dict[str, Any]:
    return {'type': 'array', 'items': t.one_of(*names), 'minItems': 1, 'maxItems': 1, 'uniqueItems': True}


_LIMITS = Obj(Prop('max_server_per_host', t.integer(minimum=1)))

QUERY = QuerySchema.of(Prop('all_projects', t.ANY_TEXT), Prop('limit', t.NUMBER_TEXT), Prop('offset', t.NUMBER_TEXT))
BODY = Obj(
    Prop(
        'server_group',
        Obj(
            Prop('name', t.NAME, required=True),
            Prop('policies', _policies(*HARD), required=True, until=14),
            Prop('policies', _policies(*HARD, *SOFT), required=True, since=15, until=63),
            Prop('policy', t.one_of(*HARD, *SOFT), required=True, since=64),
            Prop('rules', _LIMITS, since=64),
        ),
        required=True,
    )
)


# --- response fields -------------------------------------------------------------------------------------------------
FIELDS = Fields(
    Field('id', column('uuid')),
    Field('name', column('name')),
    Field('policies', lambda row, viewer: [row['policy']], until=63),
    Field('policy', column('policy'), since=64),
    Field('rules', lambda row, viewer: {name: int(value) for name, value in row['rules'].items()}, since=64),
    Field('members', column('members')),
    Field('metadata', lambda row, viewer: {}, until=63),
    Field('project_id', column('project_id'), since=13),
    Field('user_id', column('user_id'), since=13),
)


def _body(row: Mapping[str, Any], version: int) -> dict[str, Any]:
    return FIELDS.render(row, None, version)


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> Any:
    """List server groups (``GET /os-server-groups``)."""
    # A caller who asks for all projects without the right to list them gets the groups of the caller's own project.
    everywhere = 'all_projects' in call.query and call.may(ALL_PROJECTS)
    limit = call.limit() or call.backend.options.max_limit
    rows = service.list_groups(call.backend, owners.ALL if everywhere else call.ctxt.project_id, limit, call.offset())
    return {'server_groups': [_body(row, call.version) for row in rows]}


def show(call: Call) -> Any:
    """Return a server group (``GET /os-server-groups/{server_group_id}``)."""
    row = service.get(call.backend, call.ctxt, call.path['server_group_id'])
    return {'server_group': _body(row, call.version)}


def create(call: Call) -> Any:
    """Create a server group (``POST /os-server-groups``)."""
    body = call.body['server_group']
    policy = body['policy'] if 'policy' in body else body['policies'][0]
    row = service.create(call.backend, call.ctxt, body['name'], policy, body.get('rules') or {})
    return {'server_group': _body(row, call.version)}


def delete(call: Call) -> None:
    """Delete a server group (``DELETE /os-server-groups/{server_group_id}``)."""
    service.delete(call.backend, call.ctxt, call.path['server_group_id'])


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-server-groups', '/os-server-groups/{server_group_id}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, query=QUERY, asks=(ALL_PROJECTS,)),
    Route('POST', _ALL, create, CREATE, body=BODY),
    Route('GET', _ONE, show, SHOW),
    Route('DELETE', _ONE, delete, DELETE, status=204),
)
