"""Rules of limits."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, ANY, PREFIX, rule

SHOW = f'{PREFIX}limits'
OTHER_PROJECT = f'{PREFIX}limits:other_project'

_RULES = (
    rule(SHOW, ANY, 'Show the limits of the own project.', 'GET /limits'),
    rule(OTHER_PROJECT, ADMIN, 'Show the limits of another project.', 'GET /limits'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
