"""Rules of the list of migrations."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MANAGER, PREFIX, rule

INDEX = f'{PREFIX}os-migrations:index'
ALL_PROJECTS, HOST = f'{INDEX}:all_projects', f'{INDEX}:host'

RULES = (
    rule(INDEX, MANAGER, 'List the migrations of a project.'),
    rule(ALL_PROJECTS, ADMIN, 'List the migrations of all or of other projects.'),
    rule(HOST, ADMIN, 'See the hosts of migrations.'),
)
