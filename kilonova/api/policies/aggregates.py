"""Rules of host aggregates."""
from __future__ import annotations

from kilonova.api.policies.base import ADMIN, PREFIX, rule

INDEX, SHOW, CREATE, UPDATE, DELETE, ADD_HOST, REMOVE_HOST, SET_METADATA = (
    f'{PREFIX}os-aggregates:{verb}' for verb in ('index', 'show', 'create', 'update', 'delete', 'add_host',
                                                 'remove_host', 'set_metadata'))

_ONE, _ACTION = '/os-aggregates/{aggregate_id}', 'POST /os-aggregates/{aggregate_id}/action'
_RULES = (
    rule(INDEX, ADMIN, 'List aggregates.', 'GET /os-aggregates'),
    rule(SHOW, ADMIN, 'Show an aggregate.', f'GET {_ONE}'),
    rule(CREATE, ADMIN, 'Create an aggregate.', 'POST /os-aggregates'),
    rule(UPDATE, ADMIN, 'Give an aggregate another name or availability zone.', f'PUT {_ONE}'),
    rule(DELETE, ADMIN, 'Delete an aggregate.', f'DELETE {_ONE}'),
    rule(ADD_HOST, ADMIN, 'Put a host into an aggregate.', f'{_ACTION} (add_host)'),
    rule(REMOVE_HOST, ADMIN, 'Take a host out of an aggregate.', f'{_ACTION} (remove_host)'),
    rule(SET_METADATA, ADMIN, "Set or remove an aggregate's metadata.", f'{_ACTION} (set_metadata)'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
