"""Security groups of a server: those of its ports, as the network service has them now; one more, one less."""
from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import security_groups
from kilonova.api.services.accept import VIEW
from kilonova.api.wsgi import SERVER, Call, Route, server_action
from kilonova.clients.network import SecurityGroup

LIST, ADD, REMOVE = (f'{PREFIX}os-security-groups:{verb}' for verb in ('list', 'add', 'remove'))
RULES = (
    rule(LIST, READER, 'List the security groups of a server.'),
    rule(ADD, MEMBER, 'Add a security group to a server.'),
    rule(REMOVE, MEMBER, 'Remove a security group from a server.'),
)

# A name, or an id.
_NAMED = Obj(Prop('name', {'type': 'string', 'minLength': 1, 'maxLength': 255}, required=True))
ADD_BODY = Obj(Prop('addSecurityGroup', _NAMED, required=True))
REMOVE_BODY = Obj(Prop('removeSecurityGroup', _NAMED, required=True))


def index(call: Call) -> dict[str, Any]:
    """GET /servers/{server_id}/os-security-groups: with the rules of what comes in."""
    groups, known = security_groups.listed(call.backend, call.ctxt, call.server.uuid)
    return {'security_groups': [_body(group, known) for group in groups]}


def add(call: Call) -> None:
    """addSecurityGroup."""
    security_groups.add(call.backend, call.ctxt, call.server, call.body['addSecurityGroup']['name'])


def remove(call: Call) -> None:
    """removeSecurityGroup."""
    security_groups.remove(call.backend, call.ctxt, call.server, call.body['removeSecurityGroup']['name'])


def _body(group: SecurityGroup, known: dict[str, SecurityGroup]) -> dict[str, Any]:
    return {'id': group.id, 'name': group.name, 'description': group.description, 'tenant_id': group.project_id,
            'rules': [{'id': rule.id, 'parent_group_id': group.id, 'ip_protocol': rule.protocol,
                       'from_port': rule.first_port, 'to_port': rule.last_port,
                       'ip_range': {'cidr': rule.cidr} if rule.cidr else {},
                       'group': _remote(known.get(rule.remote_group or ''))} for rule in group.rules]}


def _remote(group: SecurityGroup | None) -> dict[str, str]:
    """Empty where the rule names none, or one that the user doesn't see."""
    return {'name': group.name, 'tenant_id': group.project_id} if group is not None else {}


ROUTES = (
    Route('GET', f'{SERVER}/os-security-groups', index, LIST, server=VIEW),
    server_action('addSecurityGroup', add, ADD, ADD_BODY),
    server_action('removeSecurityGroup', remove, REMOVE, REMOVE_BODY),
)
