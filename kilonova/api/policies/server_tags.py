"""Rules of the tags of servers."""
from __future__ import annotations

from kilonova.api.policies.base import MEMBER, PREFIX, READER, rule

ROOT = f'{PREFIX}os-server-tags:'
INDEX, UPDATE_ALL, DELETE_ALL = f'{ROOT}index', f'{ROOT}update_all', f'{ROOT}delete_all'
SHOW, UPDATE, DELETE = f'{ROOT}show', f'{ROOT}update', f'{ROOT}delete'
_ALL, _ONE = '/servers/{server_id}/tags', '/servers/{server_id}/tags/{tag}'

_RULES = (
    rule(INDEX, READER, 'List the tags of a server.', f'GET {_ALL}'),
    rule(UPDATE_ALL, MEMBER, 'Replace the tags of a server.', f'PUT {_ALL}'),
    rule(DELETE_ALL, MEMBER, 'Delete all tags of a server.', f'DELETE {_ALL}'),
    rule(SHOW, READER, 'Ask whether a server has a tag.', f'GET {_ONE}'),
    rule(UPDATE, MEMBER, 'Add a tag to a server.', f'PUT {_ONE}'),
    rule(DELETE, MEMBER, 'Delete a tag of a server.', f'DELETE {_ONE}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
