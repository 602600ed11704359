"""Rules of usage reports."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, READER, rule

LIST, SHOW = f'{PREFIX}os-simple-tenant-usage:list', f'{PREFIX}os-simple-tenant-usage:show'

_RULES = (
    rule(LIST, ADMIN, 'See what all projects used.', 'GET /os-simple-tenant-usage'),
    rule(SHOW, READER, 'See what a project used.', 'GET /os-simple-tenant-usage/{tenant_id}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
