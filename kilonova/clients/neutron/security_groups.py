"""Security groups of Neutron and their rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.clients.neutron.refusals import SecurityGroupNotFound, SecurityGroupNotUnique, SecurityGroupRuleNotFound
from kilonova.clients.neutron.request import NeutronRequests
from kilonova.context import RequestContext


@dataclass(frozen=True)
class SecurityGroupRule:
    """A rule for incoming traffic.

    If ``protocol`` or a port is None, any protocol or port is allowed. The source of the traffic is the security group
    with the id ``remote_group``, or the address range ``cidr``. If these two are None, the source is an address group.
    """

    id: str
    group_id: str
    protocol: str | None
    first_port: int | None
    last_port: int | None
    cidr: str | None
    remote_group: str | None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SecurityGroupRule:
        """Create a SecurityGroupRule from ``body``, the JSON object of a rule in a response of Neutron."""
        cidr, group = body['remote_ip_prefix'], body['remote_group_id']
        if not (cidr or group or body.get('remote_address_group_id')):
            cidr = '::/0' if body['ethertype'] == 'IPv6' else '0.0.0.0/0'
        return cls(
            body['id'],
            body['security_group_id'],
            body['protocol'],
            body['port_range_min'],
            body['port_range_max'],
            cidr,
            group,
        )


@dataclass(frozen=True)
class SecurityGroupRules:
    """A security group. ``rules`` has only the group's rules for incoming traffic."""

    id: str
    name: str
    project_id: str
    description: str
    rules: tuple[SecurityGroupRule, ...] = ()

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SecurityGroupRules:
        """Create a SecurityGroupRules from ``body``, the JSON object of a group in a response of Neutron."""
        return cls(
            body['id'],
            body['name'],
            body['project_id'],
            body['description'],
            tuple(
                SecurityGroupRule.from_body(rule)
                for rule in body['security_group_rules']
                if rule['direction'] == 'ingress'
            ),
        )


class SecurityGroups(NeutronRequests):
    """The part of ``NetworkClient`` with the calls for security groups and their rules."""

    def listed_security_groups(
        self, ctxt: RequestContext, limit: int, offset: int, *, all_projects: bool
    ) -> list[SecurityGroupRules]:
        """Return a page of the security groups of the user's project.

        If ``all_projects`` is True, the page is one of all groups that the user can see.
        """
        query = [] if all_projects else [('tenant_id', ctxt.project_id or '')]
        return [
            SecurityGroupRules.from_body(body) for body in self._some('security-groups', query, ctxt, limit, offset)
        ]

    def security_group(self, ctxt: RequestContext, group_id: str) -> SecurityGroupRules:
        """Return a security group. Raises SecurityGroupNotFound if it does not exist or this user can't see it."""
        return SecurityGroupRules.from_body(
            self._one('GET', 'security-groups', group_id, ctxt, SecurityGroupNotFound(name=group_id))
        )

    def create_security_group(self, ctxt: RequestContext, name: str, description: str) -> SecurityGroupRules:
        """Create a security group in the user's project. Raises NetworkQuotaFull if the quota is used up."""
        return SecurityGroupRules.from_body(
            self._made(
                'security-groups', {'name': name, 'description': description, 'tenant_id': ctxt.project_id}, ctxt
            )
        )

    def update_security_group(
        self, ctxt: RequestContext, group_id: str, fields: Mapping[str, str]
    ) -> SecurityGroupRules:
        """Change the name or the description of a security group, and return the group.

        Raises SecurityGroupNotFound if the group does not exist or this user can't see it. Raises NetworkConflict if
        the group is a project's default group and would get another name.
        """
        return SecurityGroupRules.from_body(
            self._one('PUT', 'security-groups', group_id, ctxt, SecurityGroupNotFound(name=group_id), fields)
        )

    def delete_security_group(self, ctxt: RequestContext, group_id: str) -> None:
        """Delete a security group.

        Raises SecurityGroupNotFound if the group does not exist or this user can't see it. Raises NetworkConflict if
        ports have the group, or if it is a project's default group.
        """
        self._one('DELETE', 'security-groups', group_id, ctxt, SecurityGroupNotFound(name=group_id))

    def create_security_group_rule(
        self, ctxt: RequestContext, group_id: str, fields: Mapping[str, Any]
    ) -> SecurityGroupRule:
        """Create a rule for incoming traffic and return it. ``fields`` are named as in Neutron's API.

        Raises:
            SecurityGroupNotFound: No such security group exists.
            NetworkQuotaFull: The quota of rules is used up.
            NetworkInvalid: Neutron does not accept the fields.
            NetworkConflict: The group has an equal rule already.
        """
        body = {'security_group_id': group_id, 'direction': 'ingress', **fields}
        return SecurityGroupRule.from_body(self._made('security-group-rules', body, ctxt))

    def delete_security_group_rule(self, ctxt: RequestContext, rule_id: str) -> None:
        """Delete a rule. Raises SecurityGroupRuleNotFound if it does not exist or this user can't see it."""
        self._one('DELETE', 'security-group-rules', rule_id, ctxt, SecurityGroupRuleNotFound(name=rule_id))

    def security_groups(self, ctxt: RequestContext, wanted: Sequence[str]) -> list[SecurityGroupRules]:
        """Return security groups of the user's project by name or id, in the order of ``wanted``.

        If an item of ``wanted`` is the name of one group and the id of another group, the group with the name is
        returned. Raises SecurityGroupNotFound if no group has the name or id, and SecurityGroupNotUnique if several
        groups have the name.
        """
        own = [('tenant_id', ctxt.project_id)]
        by_name: dict[str, list[SecurityGroupRules]] = {}
        for body in self._list('security-groups', 'name', wanted, own, ctxt=ctxt):
            by_name.setdefault(body['name'], []).append(SecurityGroupRules.from_body(body))
        rest = [name for name in wanted if name not in by_name]
        by_id = self.security_groups_of(rest, ctxt)
        found = []
        for name in wanted:
            matches = by_name.get(name) or ([by_id[name]] if name in by_id else [])
            if not matches:
                raise SecurityGroupNotFound(name=name)
            if len(matches) > 1:
                raise SecurityGroupNotUnique(name=name)
            found += matches
        return found

    def security_groups_of(
        self, ids: Iterable[str], ctxt: RequestContext | None = None
    ) -> dict[str, SecurityGroupRules]:
        """Return the security groups with these ids as a dict from id to group.

        Groups that do not exist or that the user can't see are left out.
        """
        return {
            body['id']: SecurityGroupRules.from_body(body)
            for body in self._list('security-groups', 'id', ids, ctxt=ctxt)
        }
