"""Rules of the metadata of servers."""
from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, READER, rule

ROOT = f'{PREFIX}server-metadata:'
INDEX, CREATE, UPDATE_ALL = f'{ROOT}index', f'{ROOT}create', f'{ROOT}update_all'
SHOW, UPDATE, DELETE = f'{ROOT}show', f'{ROOT}update', f'{ROOT}delete'

RULES = (
    rule(INDEX, READER, 'List the metadata of a server.'),
    rule(CREATE, MEMBER, 'Add metadata to a server.'),
    rule(UPDATE_ALL, MEMBER, 'Replace the metadata of a server.'),
    rule(SHOW, READER, 'Show one metadata item of a server.'),
    rule(UPDATE, MEMBER, 'Set one metadata item of a server.'),
    rule(DELETE, MEMBER, 'Delete one metadata item of a server.'),
)
