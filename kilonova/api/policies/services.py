"""Rules of the daemons' records."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

LIST, UPDATE, DELETE = (f'{PREFIX}os-services:{verb}' for verb in ('list', 'update', 'delete'))

RULES = (
    rule(LIST, ADMIN, 'List services.'),
    rule(UPDATE, ADMIN, 'Enable, disable or force down a service.'),
    rule(DELETE, ADMIN, 'Delete a service.'),
)
