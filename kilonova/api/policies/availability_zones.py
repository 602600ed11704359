"""Rules of availability zones."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, ANY, PREFIX, rule

LIST, DETAIL = f'{PREFIX}os-availability-zone:list', f'{PREFIX}os-availability-zone:detail'

RULES = (
    rule(LIST, ANY, 'List availability zones.'),
    rule(DETAIL, ADMIN, 'List availability zones with their hosts.'),
)
