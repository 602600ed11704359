"""Rules of soft-deleted servers."""
from __future__ import annotations

from kilonova.api.policies.base import MEMBER, PREFIX, rule

RESTORE, FORCE = f'{PREFIX}os-deferred-delete:restore', f'{PREFIX}os-deferred-delete:force'

_RULES = (
    rule(RESTORE, MEMBER, 'Bring a soft-deleted server back.', 'POST /servers/{server_id}/action (restore)'),
    rule(FORCE, MEMBER, 'Delete a server at once, soft-deleted or not.',
         'POST /servers/{server_id}/action (forceDelete)'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
