"""Rules of quota classes."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

SHOW, UPDATE = f'{PREFIX}os-quota-class-sets:show', f'{PREFIX}os-quota-class-sets:update'

_RULES = (
    rule(SHOW, ADMIN, 'Show the quotas of a class.', 'GET /os-quota-class-sets/{quota_class}'),
    rule(UPDATE, ADMIN, 'Change the quotas of a class: of "default", those of all projects without their own.',
         'PUT /os-quota-class-sets/{quota_class}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
