"""Rules of quotas."""
from __future__ import annotations

from kilonova.api.policies.base import ANY, PREFIX, READER, rule

SHOW, DETAIL, DEFAULTS = (f'{PREFIX}os-quota-sets:{verb}' for verb in ('show', 'detail', 'defaults'))

_RULES = (
    rule(SHOW, READER, 'Show the quotas of a project.', 'GET /os-quota-sets/{tenant_id}'),
    rule(DETAIL, READER, 'Show the quotas of a project and what it uses.', 'GET /os-quota-sets/{tenant_id}/detail'),
    rule(DEFAULTS, ANY, 'Show the quotas of a project that has none of its own.',
         'GET /os-quota-sets/{tenant_id}/defaults'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
