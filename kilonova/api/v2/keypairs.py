"""Key pairs (``/os-keypairs``): list, create or import, show and delete. Key pairs belong to users, not to projects."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import ABSENT, Field, Fields, column, micro
from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.schemas.types import Json
from kilonova.api.services import keypairs as service
from kilonova.api.services.key_material import SSH
from kilonova.api.wsgi import Call, Route

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, SHOW, CREATE, DELETE = (f'{PREFIX}os-keypairs:{verb}' for verb in ('index', 'show', 'create', 'delete'))
_OWN = f'({ADMIN}) or user_id:%(user_id)s'
RULES = (
    rule(INDEX, _OWN, 'List the key pairs of a user.'),
    rule(SHOW, _OWN, 'Show a key pair of a user.'),
    rule(CREATE, _OWN, 'Create or import a key pair for a user.'),
    rule(DELETE, _OWN, 'Delete a key pair of a user.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_PLAIN = frozenset(string.ascii_letters + string.digits + ' _-')
_WITH_ADDRESS = _PLAIN | frozenset('@.')


def _safe(characters: frozenset[str]) -> Any:
    def check(value: Json) -> bool:
        if isinstance(value, str) and not characters.issuperset(value):
            raise ValueError('Keypair data is invalid: Keypair name contains unsafe characters')
        return True

    return check


t.FORMATS.checks('keypair_name', raises=ValueError)(_safe(_PLAIN))
t.FORMATS.checks('keypair_name_292', raises=ValueError)(_safe(_WITH_ADDRESS))

_NAME = {'allOf': [t.NAME, {'type': 'string', 'format': 'keypair_name', 'maxLength': 255}]}
_NAME_292 = {'allOf': [t.NAME, {'type': 'string', 'format': 'keypair_name_292', 'maxLength': 255}]}
# The public key must fit into its database column. MySQL counts the size of the column in bytes.
_KEY = {'type': 'string', 'maxLength': 65535, 'maxBytes': 65535}
_USER = {'type': 'string', 'minLength': 1, 'maxLength': 255}

BODY = Obj(
    Prop(
        'keypair',
        Obj(
            Prop('name', _NAME, required=True, until=91),
            Prop('name', _NAME_292, required=True, since=92),
            Prop('public_key', _KEY, until=91),
            Prop('public_key', _KEY, required=True, since=92),
            Prop('type', t.one_of('ssh', 'x509'), since=2),
            Prop('user_id', _USER, since=10),
        ),
        required=True,
    )
)

_OF_USER = Prop('user_id', t.ANY_TEXT, since=10)
INDEX_QUERY = QuerySchema.of(_OF_USER, Prop('limit', t.NUMBER_TEXT, since=35), Prop('marker', t.ANY_TEXT, since=35))
QUERY = QuerySchema.of(_OF_USER)


# --- response fields -------------------------------------------------------------------------------------------------

# The kinds of response bodies of a key pair: an entry of the list, the response to GET, and the response to POST.
# ``_SHOWN`` and ``_ONE`` are the kinds of bodies that have a certain field.
LISTED, SHOWN, CREATED = 'listed', 'shown', 'created'
_SHOWN, _ONE = frozenset((SHOWN,)), frozenset((SHOWN, CREATED))

_FIELDS = Fields(
    Field('name', column('name')),
    Field('public_key', column('public_key')),
    Field('fingerprint', column('fingerprint')),
    Field('type', column('type'), since=2),
    Field('user_id', column('user_id'), kinds=_ONE),
    Field('private_key', lambda row, private_key: private_key or ABSENT, kinds=frozenset((CREATED,))),
    Field('id', column('id'), kinds=_SHOWN),
    Field('created_at', lambda row, viewer: micro(row['created_at']), kinds=_SHOWN),
    Field('updated_at', lambda row, viewer: micro(row['updated_at']), kinds=_SHOWN),
    Field('deleted', lambda row, viewer: False, kinds=_SHOWN),
    Field('deleted_at', lambda row, viewer: None, kinds=_SHOWN),
)


def _body(row: Mapping[str, Any], version: int, kind: str, private_key: str | None = None) -> dict[str, Any]:
    """Return the response body of a key pair. ``kind`` says whether the key pair is listed, shown or just created."""
    return {'keypair': _FIELDS.render(row, private_key, version, kind)}


# --- handlers of requests --------------------------------------------------------------------------------------------
OTHER_USERS_SINCE, PAGES_SINCE = 10, 35


def index(call: Call) -> Any:
    """List the key pairs of a user (``GET /os-keypairs``)."""
    user_id = _user(call, INDEX)
    if call.version < PAGES_SINCE:
        rows = service.list_keypairs(call.backend, user_id)
        return {'keypairs': [_body(row, call.version, LISTED) for row in rows]}
    limit = call.limit()
    rows = service.list_keypairs(call.backend, user_id, limit, call.one('marker'))
    body: dict[str, Any] = {'keypairs': [_body(row, call.version, LISTED) for row in rows]}
    if rows and len(rows) == limit:
        body['keypairs_links'] = call.links.next('os-keypairs', call.query, rows[-1]['name'])
    return body


def create(call: Call) -> Any:
    """Create or import a key pair (``POST /os-keypairs``)."""
    body = call.body['keypair']
    user_id = body.get('user_id', call.ctxt.user_id)
    _authorise(call, CREATE, user_id)
    made = service.create(call.backend, call.ctxt, user_id, body['name'], body.get('type', SSH), body.get('public_key'))
    return _body(made.row, call.version, CREATED, made.private_key)


def show(call: Call) -> Any:
    """Return a key pair (``GET /os-keypairs/{keypair_name}``)."""
    row = service.get(call.backend, _user(call, SHOW), call.path['keypair_name'])
    return _body(row, call.version, SHOWN)


def delete(call: Call) -> None:
    """Delete a key pair (``DELETE /os-keypairs/{keypair_name}``)."""
    service.delete(call.backend, call.ctxt, _user(call, DELETE), call.path['keypair_name'])


def _user(call: Call, policy: str) -> str:
    """Return the id of the user whose key pairs the request names. ``policy`` is the policy rule of the request.

    Raises PolicyNotAuthorized (403) if the caller may not use the key pairs of that user.
    """
    named = call.one('user_id') if call.version >= OTHER_USERS_SINCE else None
    user_id = named or call.ctxt.user_id
    _authorise(call, policy, user_id)
    return user_id


def _authorise(call: Call, policy: str, user_id: str) -> None:
    call.authorise(policy, {'user_id': user_id, 'project_id': call.ctxt.project_id})


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _NAMED = '/os-keypairs', '/os-keypairs/{keypair_name}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, query=INDEX_QUERY),
    Route('POST', _ALL, create, CREATE, body=BODY, until=1),
    Route('POST', _ALL, create, CREATE, body=BODY, status=201, since=2),
    Route('GET', _NAMED, show, SHOW, query=QUERY),
    Route('DELETE', _NAMED, delete, DELETE, query=QUERY, status=202, until=1),
    Route('DELETE', _NAMED, delete, DELETE, query=QUERY, status=204, since=2),
)
