"""Rules of limits."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, ANY, PREFIX, rule

SHOW = f'{PREFIX}limits'
OTHER_PROJECT = f'{PREFIX}limits:other_project'

RULES = (
    rule(SHOW, ANY, 'Show the limits of the own project.'),
    rule(OTHER_PROJECT, ADMIN, 'Show the limits of another project.'),
)
