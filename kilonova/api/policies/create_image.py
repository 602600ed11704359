"""Rules of createImage."""
from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, rule

CREATE_IMAGE = f'{PREFIX}servers:create_image'

RULES = (
    rule(CREATE_IMAGE, MEMBER, 'Make an image of a server.'),
)
