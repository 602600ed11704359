"""Rules of the metadata of servers."""
from __future__ import annotations

from kilonova.api.policies.base import MEMBER, PREFIX, READER, rule

ROOT = f'{PREFIX}server-metadata:'
INDEX, CREATE, UPDATE_ALL = f'{ROOT}index', f'{ROOT}create', f'{ROOT}update_all'
SHOW, UPDATE, DELETE = f'{ROOT}show', f'{ROOT}update', f'{ROOT}delete'
_ALL, _ONE = '/servers/{server_id}/metadata', '/servers/{server_id}/metadata/{key}'

_RULES = (
    rule(INDEX, READER, 'List the metadata of a server.', f'GET {_ALL}'),
    rule(CREATE, MEMBER, 'Add metadata to a server.', f'POST {_ALL}'),
    rule(UPDATE_ALL, MEMBER, 'Replace the metadata of a server.', f'PUT {_ALL}'),
    rule(SHOW, READER, 'Show one metadata item of a server.', f'GET {_ONE}'),
    rule(UPDATE, MEMBER, 'Set one metadata item of a server.', f'PUT {_ONE}'),
    rule(DELETE, MEMBER, 'Delete one metadata item of a server.', f'DELETE {_ONE}'),
)


def list_rules() -> tuple:
    """Every rule of this resource."""
    return _RULES
