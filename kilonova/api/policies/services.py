"""Rules of the daemons' records."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

LIST, UPDATE, DELETE = (f'{PREFIX}os-services:{verb}' for verb in ('list', 'update', 'delete'))

_RULES = (
    rule(LIST, ADMIN, 'List services.', 'GET /os-services'),
    rule(UPDATE, ADMIN, 'Enable, disable or force down a service.', 'PUT /os-services/{service_id}'),
    rule(DELETE, ADMIN, 'Delete a service.', 'DELETE /os-services/{service_id}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
