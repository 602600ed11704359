"""Security groups of a server, and until microversion 2.35 a proxy for the security groups of the network service.

A server has the security groups that its ports have. Each request reads them from the network service. Requests for
``/os-security-groups`` (the proxy) are sent to the network service with the caller's token.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import Any

from oslo_utils import strutils

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import security_groups
from kilonova.api.services.server_operations import VIEW
from kilonova.api.v2.legacy.networks import UNTIL, service
from kilonova.api.wsgi import SERVER, Call, Route, server_action
from kilonova.clients.neutron.refusals import NetworkConflict
from kilonova.clients.neutron.security_groups import SecurityGroupRule, SecurityGroupRules
from kilonova.errors import Invalid

LIST, ADD, REMOVE = (f'{PREFIX}os-security-groups:{verb}' for verb in ('list', 'add', 'remove'))
GET, SHOW, CREATE, UPDATE, DELETE, CREATE_RULE, DELETE_RULE = (
    f'{PREFIX}os-security-groups:{verb}'
    for verb in ('get', 'show', 'create', 'update', 'delete', 'rule:create', 'rule:delete')
)
RULES = (
    rule(LIST, READER, 'List the security groups of a server.'),
    rule(ADD, MEMBER, 'Add a security group to a server.'),
    rule(REMOVE, MEMBER, 'Remove a security group from a server.'),
    rule(GET, READER, 'List the security groups of the network service.'),
    rule(SHOW, READER, 'Show a security group of the network service.'),
    rule(CREATE, MEMBER, 'Create a security group in the network service.'),
    rule(UPDATE, MEMBER, 'Change the name or description of a security group.'),
    rule(DELETE, MEMBER, 'Delete a security group in the network service.'),
    rule(CREATE_RULE, MEMBER, 'Add a rule to a security group.'),
    rule(DELETE_RULE, MEMBER, 'Delete a rule of a security group.'),
)

# ``name`` is the name or the id of a security group.
_NAMED = Obj(Prop('name', {'type': 'string', 'minLength': 1, 'maxLength': 255}, required=True))
ADD_BODY = Obj(Prop('addSecurityGroup', _NAMED, required=True))
REMOVE_BODY = Obj(Prop('removeSecurityGroup', _NAMED, required=True))


def index(call: Call) -> dict[str, Any]:
    """List the security groups of a server with the rules for incoming traffic (``GET …/os-security-groups``)."""
    groups, known = security_groups.listed(call.backend, call.ctxt, call.server.uuid)
    return {'security_groups': [_body(group, known) for group in groups]}


def add(call: Call) -> None:
    """Accept the action addSecurityGroup: add a security group to the server's ports."""
    security_groups.add(call.backend, call.ctxt, call.server, call.body['addSecurityGroup']['name'])


def remove(call: Call) -> None:
    """Accept the action removeSecurityGroup: remove a security group from the server's ports."""
    security_groups.remove(call.backend, call.ctxt, call.server, call.body['removeSecurityGroup']['name'])


# --- security groups of the network service --------------------------------------------------------------------------
QUERY = QuerySchema.of(Prop('limit', t.NUMBER_TEXT), Prop('offset', t.NUMBER_TEXT), Prop('all_tenants', t.ANY_TEXT))
_NAME = {'type': 'string', 'minLength': 1, 'maxLength': 255}
CREATE_BODY = Obj(
    Prop('security_group', Obj(Prop('name', _NAME, required=True), Prop('description', t.TEXT)), required=True)
)
UPDATE_BODY = Obj(
    Prop('security_group', Obj(Prop('name', _NAME), Prop('description', t.TEXT), minProperties=1), required=True)
)
# In a rule for ICMP, a port of -1 means any ICMP type or code.
_PORT = {
    'type': ['integer', 'string', 'null'],
    'pattern': '^(-1|[0-9]+)$',
    'minimum': -1,
    'maximum': 65535,
    'minLength': 1,
    'maxLength': 5,
}
RULE_BODY = Obj(
    Prop(
        'security_group_rule',
        Obj(
            Prop('parent_group_id', t.UUID, required=True),
            Prop('group_id', {'anyOf': [t.NULL, t.UUID]}),
            Prop('cidr', {'type': ['string', 'null'], 'maxLength': 64}),
            Prop('ip_protocol', {'type': ['string', 'null'], 'maxLength': 255}),
            Prop('from_port', _PORT),
            Prop('to_port', _PORT),
        ),
        required=True,
    )
)


class NoCidr(Invalid):
    """Error 400: the cidr of the new rule is neither an IPv4 nor an IPv6 address range."""

    msg_fmt = 'cidr %(cidr)s is not an IPv4 or IPv6 address range such as 192.0.2.0/24.'


class PortsOfIcmp(Invalid):
    """Error 400: the request contains port -1 for a protocol that is not ICMP."""

    msg_fmt = 'from_port or to_port -1 (any ICMP type or code) is valid only for ICMP, but ip_protocol is %(protocol)s.'


def index_all(call: Call) -> dict[str, Any]:
    """List the security groups of the caller's project (``GET /os-security-groups``).

    With the parameter ``all_tenants`` list all groups that the caller may see.
    """
    everything = strutils.bool_from_string(call.one('all_tenants'))
    groups = service(call).listed_security_groups(call.ctxt, call.limit(), call.offset(), all_projects=everything)
    return {'security_groups': _bodies(call, *groups)}


def show(call: Call) -> dict[str, Any]:
    """Return a security group (``GET /os-security-groups/{security_group_id}``)."""
    group = service(call).security_group(call.ctxt, call.path['security_group_id'])
    return {'security_group': _bodies(call, group)[0]}


def create(call: Call) -> dict[str, Any]:
    """Create a security group (``POST /os-security-groups``)."""
    wanted = call.body['security_group']
    group = service(call).create_security_group(call.ctxt, wanted['name'], wanted.get('description') or '')
    return {'security_group': _bodies(call, group)[0]}


def update(call: Call) -> dict[str, Any]:
    """Change the name or description of a security group (``PUT /os-security-groups/{security_group_id}``)."""
    fields = {name: value or '' for name, value in call.body['security_group'].items()}
    with _refusals():
        group = service(call).update_security_group(call.ctxt, call.path['security_group_id'], fields)
    return {'security_group': _bodies(call, group)[0]}


def delete(call: Call) -> None:
    """Delete a security group (``DELETE /os-security-groups/{security_group_id}``)."""
    with _refusals():
        service(call).delete_security_group(call.ctxt, call.path['security_group_id'])


def create_rule(call: Call) -> dict[str, Any]:
    """Add a rule to a security group (``POST /os-security-group-rules``).

    If neither cidr nor group_id limits the source, the rule accepts traffic from every IPv4 address.
    """
    wanted = call.body['security_group_rule']
    fields = _rule_fields(wanted)
    with _refusals():
        made = service(call).create_security_group_rule(call.ctxt, wanted['parent_group_id'], fields)
    known = service(call).security_groups_of([made.remote_group] if made.remote_group else [], call.ctxt)
    return {'security_group_rule': _rule(made, known)}


def delete_rule(call: Call) -> None:
    """Delete a rule of a security group (``DELETE /os-security-group-rules/{rule_id}``)."""
    service(call).delete_security_group_rule(call.ctxt, call.path['rule_id'])


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Return a context manager that raises Invalid (400) if its block raises NetworkConflict (409), as in Nova.

    The block sends a change of a security group to Neutron. Neutron answers with 409 if a group to delete is in use by
    ports, or if a rule to add exists already.
    """
    try:
        yield
    except NetworkConflict as error:
        raise Invalid(error.message) from None


def _rule_fields(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the requested rule ``wanted`` in the form of the network service's API.

    Raises NoCidr if the cidr is malformed, and PortsOfIcmp if a port is -1 and the protocol is not ICMP.
    """
    group, cidr = wanted.get('group_id'), wanted.get('cidr')
    protocol = wanted['ip_protocol'].lower() if wanted.get('ip_protocol') else None
    if cidr is None and group is None:
        cidr = '0.0.0.0/0'
    version = 4
    if cidr is not None:
        try:
            version = ipaddress.ip_interface(cidr).version
        except ValueError:
            raise NoCidr(cidr=cidr) from None
    first, last = (None if port is None else int(port) for port in (wanted.get('from_port'), wanted.get('to_port')))
    if -1 in (first, last) and protocol not in ('icmp', 'icmpv6', 'ipv6-icmp'):
        raise PortsOfIcmp(protocol=protocol)
    return {
        'protocol': protocol,
        'ethertype': f'IPv{version}',
        'remote_ip_prefix': cidr,
        'remote_group_id': group,
        'port_range_min': None if first == -1 else first,
        'port_range_max': None if last == -1 else last,
    }


# --- response fields -------------------------------------------------------------------------------------------------
def _bodies(call: Call, *groups: SecurityGroupRules) -> list[dict[str, Any]]:
    known = {group.id: group for group in groups}
    others = {rule.remote_group for group in groups for rule in group.rules if rule.remote_group} - set(known)
    known |= service(call).security_groups_of(sorted(others), call.ctxt)
    return [_body(group, known) for group in groups]


def _body(group: SecurityGroupRules, known: dict[str, SecurityGroupRules]) -> dict[str, Any]:
    return {
        'id': group.id,
        'name': group.name,
        'description': group.description,
        'tenant_id': group.project_id,
        'rules': [_rule(rule, known) for rule in group.rules],
    }


def _rule(rule: SecurityGroupRule, known: dict[str, SecurityGroupRules]) -> dict[str, Any]:
    return {
        'id': rule.id,
        'parent_group_id': rule.group_id,
        'ip_protocol': rule.protocol,
        'from_port': rule.first_port,
        'to_port': rule.last_port,
        'ip_range': {'cidr': rule.cidr} if rule.cidr else {},
        'group': _remote(known.get(rule.remote_group or '')),
    }


def _remote(group: SecurityGroupRules | None) -> dict[str, str]:
    """Return name and project of a rule's remote group.

    Return an empty dict if the rule has no remote group, or if the user may not see the group.
    """
    return {'name': group.name, 'tenant_id': group.project_id} if group is not None else {}


_GROUPS, _RULES = '/os-security-groups', '/os-security-group-rules'
_GROUP = f'{_GROUPS}/{{security_group_id}}'
ROUTES = (
    Route('GET', f'{SERVER}/os-security-groups', index, LIST, server=VIEW),
    server_action('addSecurityGroup', add, ADD, ADD_BODY),
    server_action('removeSecurityGroup', remove, REMOVE, REMOVE_BODY),
    Route('GET', _GROUPS, index_all, GET, query=QUERY, until=UNTIL),
    Route('GET', _GROUP, show, SHOW, until=UNTIL),
    Route('POST', _GROUPS, create, CREATE, body=CREATE_BODY, until=UNTIL),
    Route('PUT', _GROUP, update, UPDATE, body=UPDATE_BODY, until=UNTIL),
    Route('DELETE', _GROUP, delete, DELETE, status=202, until=UNTIL),
    Route('POST', _RULES, create_rule, CREATE_RULE, body=RULE_BODY, until=UNTIL),
    Route('DELETE', f'{_RULES}/{{rule_id}}', delete_rule, DELETE_RULE, status=202, until=UNTIL),
)
