"""Server groups: servers that are to be together or apart."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import server_groups as policies
from kilonova.api.services import server_groups as service
from kilonova.api.views import server_groups as views
from kilonova.api.wsgi import Call
from kilonova.db.queries import owners
from kilonova.errors import Invalid

# Positions behind this one are as good as the end.
LAST = 0x7FFFFFFF


def index(call: Call) -> Any:
    """GET /os-server-groups."""
    # Who may not see all projects' is shown the own ones.
    everywhere = 'all_projects' in call.query and call.may(policies.ALL_PROJECTS)
    limit = call.limit() or call.backend.options.max_limit
    rows = service.list_groups(call.backend, owners.ALL if everywhere else call.ctxt.project_id, limit, _offset(call))
    return {'server_groups': [views.server_group(row, call.version) for row in rows]}


def _offset(call: Call) -> int:
    text = call.one('offset') or '0'
    # The pattern of the schema lets a line's end through.
    if not text.isascii() or not text.isdigit():
        raise Invalid('offset param must be an integer')
    return min(int(text), LAST)


def show(call: Call) -> Any:
    """GET /os-server-groups/{server_group_id}."""
    row = service.get(call.backend, call.ctxt, call.path['server_group_id'])
    return {'server_group': views.server_group(row, call.version)}


def create(call: Call) -> Any:
    """POST /os-server-groups."""
    body = call.body['server_group']
    policy = body['policy'] if 'policy' in body else body['policies'][0]
    row = service.create(call.backend, call.ctxt, body['name'], policy, body.get('rules') or {})
    return {'server_group': views.server_group(row, call.version)}


def delete(call: Call) -> None:
    """DELETE /os-server-groups/{server_group_id}."""
    service.delete(call.backend, call.ctxt, call.path['server_group_id'])
