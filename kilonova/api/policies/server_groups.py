"""Rules of server groups."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, MEMBER, PREFIX, READER, rule

INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-server-groups:{verb}' for verb in ('index', 'show', 'create', 'delete'))
ALL_PROJECTS = f'{INDEX}:all_projects'

_ONE = '/os-server-groups/{server_group_id}'
_RULES = (
    rule(INDEX, READER, 'List the server groups of a project.', 'GET /os-server-groups'),
    rule(ALL_PROJECTS, ADMIN, 'List the server groups of all projects.', 'GET /os-server-groups'),
    rule(SHOW, READER, 'Show a server group.', f'GET {_ONE}'),
    rule(CREATE, MEMBER, 'Create a server group.', 'POST /os-server-groups'),
    rule(DELETE, MEMBER, 'Delete a server group.', f'DELETE {_ONE}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
