"""Rules of the list of extensions."""
from __future__ import annotations

from kilonova.api.rules import ANY, PREFIX, rule

READ = f'{PREFIX}extensions'
RULES = (
    rule(READ, ANY, 'List the extensions of the API, or show one.'),
)
