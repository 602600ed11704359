"""Security groups of Neutron and their rules."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova.clients.neutron.refusals import SecurityGroupNotFound, SecurityGroupNotUnique, SecurityGroupRuleNotFound
from kilonova.clients.neutron.request import Requests
from kilonova.context import RequestContext


@dataclass(frozen=True)
class SecurityGroupRule:
    """What may come in; None: any. It comes from ``remote_group`` (an id) or from ``cidr``; from neither: from a group
    of addresses."""

    id: str
    group_id: str
    protocol: str | None
    first_port: int | None
    last_port: int | None
    cidr: str | None
    remote_group: str | None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SecurityGroupRule:
        cidr, group = body['remote_ip_prefix'], body['remote_group_id']
        if not (cidr or group or body.get('remote_address_group_id')):
            cidr = '::/0' if body['ethertype'] == 'IPv6' else '0.0.0.0/0'
        return cls(body['id'], body['security_group_id'], body['protocol'], body['port_range_min'],
                   body['port_range_max'], cidr, group)


@dataclass(frozen=True)
class SecurityGroup:
    """``rules``: those of what comes in."""

    id: str
    name: str
    project_id: str
    description: str
    rules: tuple[SecurityGroupRule, ...] = ()

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> SecurityGroup:
        return cls(body['id'], body['name'], body['project_id'], body['description'], tuple(
            SecurityGroupRule.from_body(rule) for rule in body['security_group_rules']
            if rule['direction'] == 'ingress'))


class SecurityGroups(Requests):
    def listed_security_groups(self, ctxt: RequestContext, limit: int, offset: int, *,
                               all_projects: bool) -> list[SecurityGroup]:
        """A page of those of a user's project, or of all that the user may see."""
        query = [] if all_projects else [('tenant_id', ctxt.project_id or '')]
        return [SecurityGroup.from_body(body) for body in self._some('security-groups', query, ctxt, limit, offset)]

    def security_group(self, ctxt: RequestContext, group_id: str) -> SecurityGroup:
        """SecurityGroupNotFound: none that this user may see."""
        return SecurityGroup.from_body(self._one('GET', 'security-groups', group_id, ctxt,
                                                 SecurityGroupNotFound(name=group_id)))

    def create_security_group(self, ctxt: RequestContext, name: str, description: str) -> SecurityGroup:
        """NetworkQuotaFull."""
        return SecurityGroup.from_body(self._made(
            'security-groups', {'name': name, 'description': description, 'tenant_id': ctxt.project_id}, ctxt))

    def update_security_group(self, ctxt: RequestContext, group_id: str, fields: Mapping[str, str]) -> SecurityGroup:
        """``fields``: name, description. SecurityGroupNotFound; NetworkConflict: each project's default keeps its
        name."""
        return SecurityGroup.from_body(self._one('PUT', 'security-groups', group_id, ctxt,
                                                 SecurityGroupNotFound(name=group_id), fields))

    def delete_security_group(self, ctxt: RequestContext, group_id: str) -> None:
        """SecurityGroupNotFound; NetworkConflict: ports have it, or it is a project's default."""
        self._one('DELETE', 'security-groups', group_id, ctxt, SecurityGroupNotFound(name=group_id))

    def create_security_group_rule(self, ctxt: RequestContext, group_id: str,
                                   fields: Mapping[str, Any]) -> SecurityGroupRule:
        """What may come in: ``fields`` as Neutron calls them. SecurityGroupNotFound, NetworkQuotaFull, NetworkInvalid;
        NetworkConflict: there is such a rule."""
        body = {'security_group_id': group_id, 'direction': 'ingress', **fields}
        return SecurityGroupRule.from_body(self._made('security-group-rules', body, ctxt))

    def delete_security_group_rule(self, ctxt: RequestContext, rule_id: str) -> None:
        """SecurityGroupRuleNotFound."""
        self._one('DELETE', 'security-group-rules', rule_id, ctxt, SecurityGroupRuleNotFound(name=rule_id))

    def security_groups(self, ctxt: RequestContext, wanted: Sequence[str]) -> list[SecurityGroup]:
        """A project's groups by name or id, in this order; a name goes before an id. SecurityGroupNotFound,
        SecurityGroupNotUnique."""
        own = [('tenant_id', ctxt.project_id)]
        by_name: dict[str, list[SecurityGroup]] = {}
        for body in self._list('security-groups', 'name', wanted, own, ctxt=ctxt):
            by_name.setdefault(body['name'], []).append(SecurityGroup.from_body(body))
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

    def security_groups_of(self, ids: Iterable[str], ctxt: RequestContext | None = None) -> dict[str, SecurityGroup]:
        """{id: group} of those that there are, and that this user may see."""
        return {body['id']: SecurityGroup.from_body(body)
                for body in self._list('security-groups', 'id', ids, ctxt=ctxt)}
