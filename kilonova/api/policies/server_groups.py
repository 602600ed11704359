"""Rules of server groups."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, READER, rule

INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-server-groups:{verb}' for verb in ('index', 'show', 'create', 'delete'))
ALL_PROJECTS = f'{INDEX}:all_projects'

RULES = (
    rule(INDEX, READER, 'List the server groups of a project.'),
    rule(ALL_PROJECTS, ADMIN, 'List the server groups of all projects.'),
    rule(SHOW, READER, 'Show a server group.'),
    rule(CREATE, MEMBER, 'Create a server group.'),
    rule(DELETE, MEMBER, 'Delete a server group.'),
)
