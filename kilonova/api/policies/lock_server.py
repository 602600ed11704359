"""Rules of locks on servers."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, MEMBER, PREFIX, rule

LOCK, UNLOCK = f'{PREFIX}os-lock-server:lock', f'{PREFIX}os-lock-server:unlock'
UNLOCK_OVERRIDE = f'{UNLOCK}:unlock_override'

RULES = (
    rule(LOCK, MEMBER, 'Lock a server.'),
    rule(UNLOCK, MEMBER, 'Unlock a server.'),
    rule(UNLOCK_OVERRIDE, ADMIN, 'Unlock a server that somebody of another kind has locked.'),
)
