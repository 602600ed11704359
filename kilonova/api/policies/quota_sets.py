"""Rules of quotas."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, ANY, PREFIX, READER, rule

SHOW, DETAIL, DEFAULTS, UPDATE, DELETE = (
    f'{PREFIX}os-quota-sets:{verb}' for verb in ('show', 'detail', 'defaults', 'update', 'delete'))

_RULES = (
    rule(SHOW, READER, 'Show the quotas of a project.', 'GET /os-quota-sets/{tenant_id}'),
    rule(DETAIL, READER, 'Show the quotas of a project and what it uses.', 'GET /os-quota-sets/{tenant_id}/detail'),
    rule(DEFAULTS, ANY, 'Show the quotas of a project that has none of its own.',
         'GET /os-quota-sets/{tenant_id}/defaults'),
    rule(UPDATE, ADMIN, 'Give quotas to a project or to one of its users.', 'PUT /os-quota-sets/{tenant_id}'),
    rule(DELETE, ADMIN, 'Take the quotas of a project or of one of its users back.',
         'DELETE /os-quota-sets/{tenant_id}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
