"""Rules of the list of extensions."""
from __future__ import annotations

from kilonova.api.policies.base import ANY, PREFIX, rule

READ = f'{PREFIX}extensions'
_RULES = (
    rule(READ, ANY, 'List the extensions of the API, or show one.', 'GET /extensions', 'GET /extensions/{alias}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
