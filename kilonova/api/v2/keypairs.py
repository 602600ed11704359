"""Key pairs: list, make or import, show, delete."""
from __future__ import annotations

from typing import Any

from kilonova.api.policies import keypairs as policies
from kilonova.api.services import keypairs as service
from kilonova.api.services.key_material import SSH
from kilonova.api.views import keypairs as views
from kilonova.api.wsgi import Call

OTHER_USERS_SINCE, PAGES_SINCE = 10, 35


def index(call: Call) -> Any:
    """GET /os-keypairs."""
    user_id = _user(call, policies.INDEX)
    if call.version < PAGES_SINCE:
        rows = service.list_keypairs(call.backend, user_id)
        return {'keypairs': [views.keypair(row, call.version, views.LISTED) for row in rows]}
    limit = call.limit()
    rows = service.list_keypairs(call.backend, user_id, limit, call.one('marker'))
    body: dict[str, Any] = {'keypairs': [views.keypair(row, call.version, views.LISTED) for row in rows]}
    if rows and len(rows) == limit:
        body['keypairs_links'] = call.links.next('os-keypairs', call.query, rows[-1]['name'])
    return body


def create(call: Call) -> Any:
    """POST /os-keypairs."""
    body = call.body['keypair']
    user_id = body.get('user_id', call.ctxt.user_id)
    _authorise(call, policies.CREATE, user_id)
    made = service.create(call.backend, call.ctxt, user_id, body['name'], body.get('type', SSH),
                          body.get('public_key'))
    return views.keypair(made.row, call.version, views.CREATED, made.private_key)


def show(call: Call) -> Any:
    """GET /os-keypairs/{keypair_name}."""
    row = service.get(call.backend, _user(call, policies.SHOW), call.path['keypair_name'])
    return views.keypair(row, call.version, views.SHOWN)


def delete(call: Call) -> None:
    """DELETE /os-keypairs/{keypair_name}."""
    service.delete(call.backend, call.ctxt, _user(call, policies.DELETE), call.path['keypair_name'])


def _user(call: Call, policy: str) -> str:
    """Whose key pairs this is about; 403 for those of others without the right to them."""
    named = call.one('user_id') if call.version >= OTHER_USERS_SINCE else None
    user_id = named or call.ctxt.user_id
    _authorise(call, policy, user_id)
    return user_id


def _authorise(call: Call, policy: str, user_id: str) -> None:
    call.authorise(policy, {'user_id': user_id, 'project_id': call.ctxt.project_id})
