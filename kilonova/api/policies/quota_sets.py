"""Rules of quotas."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, ANY, PREFIX, READER, rule

SHOW, DETAIL, DEFAULTS, UPDATE, DELETE = (
    f'{PREFIX}os-quota-sets:{verb}' for verb in ('show', 'detail', 'defaults', 'update', 'delete'))

RULES = (
    rule(SHOW, READER, 'Show the quotas of a project.'),
    rule(DETAIL, READER, 'Show the quotas of a project and what it uses.'),
    rule(DEFAULTS, ANY, 'Show the quotas of a project that has none of its own.'),
    rule(UPDATE, ADMIN, 'Give quotas to a project or to one of its users.'),
    rule(DELETE, ADMIN, 'Take the quotas of a project or of one of its users back.'),
)
