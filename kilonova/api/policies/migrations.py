"""Rules of the list of migrations."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, MANAGER, PREFIX, rule

INDEX = f'{PREFIX}os-migrations:index'
ALL_PROJECTS, HOST = f'{INDEX}:all_projects', f'{INDEX}:host'

_RULES = (
    rule(INDEX, MANAGER, 'List the migrations of a project.', 'GET /os-migrations'),
    rule(ALL_PROJECTS, ADMIN, 'List the migrations of all or of other projects.', 'GET /os-migrations'),
    rule(HOST, ADMIN, 'See the hosts of migrations.', 'GET /os-migrations'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
