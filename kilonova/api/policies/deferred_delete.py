"""Rules of soft-deleted servers."""
from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, rule

RESTORE, FORCE = f'{PREFIX}os-deferred-delete:restore', f'{PREFIX}os-deferred-delete:force'

RULES = (
    rule(RESTORE, MEMBER, 'Bring a soft-deleted server back.'),
    rule(FORCE, MEMBER, 'Delete a server at once, soft-deleted or not.'),
)
