"""Rules of key pairs: they belong to users, not to projects."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-keypairs:{verb}' for verb in ('index', 'show', 'create', 'delete'))
_OWN = f'({ADMIN}) or user_id:%(user_id)s'

_RULES = (
    rule(INDEX, _OWN, 'List the key pairs of a user.', 'GET /os-keypairs'),
    rule(SHOW, _OWN, 'Show a key pair of a user.', 'GET /os-keypairs/{keypair_name}'),
    rule(CREATE, _OWN, 'Make or import a key pair for a user.', 'POST /os-keypairs'),
    rule(DELETE, _OWN, 'Delete a key pair of a user.', 'DELETE /os-keypairs/{keypair_name}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
