"""Rules of quota classes."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

SHOW, UPDATE = f'{PREFIX}os-quota-class-sets:show', f'{PREFIX}os-quota-class-sets:update'

RULES = (
    rule(SHOW, ADMIN, 'Show the quotas of a class.'),
    rule(UPDATE, ADMIN, 'Change the quotas of a class: of "default", those of all projects without their own.'),
)
