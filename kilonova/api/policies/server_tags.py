"""Rules of the tags of servers."""
from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, READER, rule

ROOT = f'{PREFIX}os-server-tags:'
INDEX, UPDATE_ALL, DELETE_ALL = f'{ROOT}index', f'{ROOT}update_all', f'{ROOT}delete_all'
SHOW, UPDATE, DELETE = f'{ROOT}show', f'{ROOT}update', f'{ROOT}delete'

RULES = (
    rule(INDEX, READER, 'List the tags of a server.'),
    rule(UPDATE_ALL, MEMBER, 'Replace the tags of a server.'),
    rule(DELETE_ALL, MEMBER, 'Delete all tags of a server.'),
    rule(SHOW, READER, 'Ask whether a server has a tag.'),
    rule(UPDATE, MEMBER, 'Add a tag to a server.'),
    rule(DELETE, MEMBER, 'Delete a tag of a server.'),
)
