"""Rules of host aggregates."""
from __future__ import annotations

from kilonova.api.rules import ADMIN, PREFIX, rule

INDEX, SHOW, CREATE, UPDATE, DELETE, ADD_HOST, REMOVE_HOST, SET_METADATA = (
    f'{PREFIX}os-aggregates:{verb}' for verb in ('index', 'show', 'create', 'update', 'delete', 'add_host',
                                                 'remove_host', 'set_metadata'))

RULES = (
    rule(INDEX, ADMIN, 'List aggregates.'),
    rule(SHOW, ADMIN, 'Show an aggregate.'),
    rule(CREATE, ADMIN, 'Create an aggregate.'),
    rule(UPDATE, ADMIN, 'Give an aggregate another name or availability zone.'),
    rule(DELETE, ADMIN, 'Delete an aggregate.'),
    rule(ADD_HOST, ADMIN, 'Put a host into an aggregate.'),
    rule(REMOVE_HOST, ADMIN, 'Take a host out of an aggregate.'),
    rule(SET_METADATA, ADMIN, "Set or remove an aggregate's metadata."),
)
