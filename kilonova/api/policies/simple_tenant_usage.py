"""Rules of usage reports."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, READER, rule

LIST, SHOW = f'{PREFIX}os-simple-tenant-usage:list', f'{PREFIX}os-simple-tenant-usage:show'

RULES = (
    rule(LIST, ADMIN, 'See what all projects used.'),
    rule(SHOW, READER, 'See what a project used.'),
)
