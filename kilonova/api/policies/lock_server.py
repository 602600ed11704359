"""Rules of locks on servers."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, MEMBER, PREFIX, rule

LOCK, UNLOCK = f'{PREFIX}os-lock-server:lock', f'{PREFIX}os-lock-server:unlock'
UNLOCK_OVERRIDE = f'{UNLOCK}:unlock_override'
_ACTION = 'POST /servers/{server_id}/action'

_RULES = (
    rule(LOCK, MEMBER, 'Lock a server.', f'{_ACTION} (lock)'),
    rule(UNLOCK, MEMBER, 'Unlock a server.', f'{_ACTION} (unlock)'),
    rule(UNLOCK_OVERRIDE, ADMIN, 'Unlock a server that somebody of another kind has locked.', f'{_ACTION} (unlock)'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
