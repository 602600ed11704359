"""Rules of host aggregates."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

INDEX = f'{PREFIX}os-aggregates:index'
_RULES = (rule(INDEX, ADMIN, 'List aggregates.', 'GET /os-aggregates'),)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
