"""Rules of key pairs: they belong to users, not to projects."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-keypairs:{verb}' for verb in ('index', 'show', 'create', 'delete'))
_OWN = f'({ADMIN}) or user_id:%(user_id)s'

RULES = (
    rule(INDEX, _OWN, 'List the key pairs of a user.'),
    rule(SHOW, _OWN, 'Show a key pair of a user.'),
    rule(CREATE, _OWN, 'Make or import a key pair for a user.'),
    rule(DELETE, _OWN, 'Delete a key pair of a user.'),
)
