"""Rules of availability zones."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, ANY, PREFIX, rule

LIST, DETAIL = f'{PREFIX}os-availability-zone:list', f'{PREFIX}os-availability-zone:detail'

_RULES = (
    rule(LIST, ANY, 'List availability zones.', 'GET /os-availability-zone'),
    rule(DETAIL, ADMIN, 'List availability zones with their hosts.', 'GET /os-availability-zone/detail'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
