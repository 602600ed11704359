"""Rules of createImage."""
from __future__ import annotations

from kilonova.api.policies.base import MEMBER, PREFIX, rule

CREATE_IMAGE = f'{PREFIX}servers:create_image'

_RULES = (
    rule(CREATE_IMAGE, MEMBER, 'Make an image of a server.', 'POST /servers/{server_id}/action (createImage)'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
