"""The client of Neutron: networks, ports made, bound, unbound and deleted, and what stands beside them.

    client = NetworkClient(adapter)                             # adapter: session.adapter(conf, 'neutron', …)
    found = client.networks(ctxt, [network_id])                 # as the user: what this user may see
    port = client.create_port(network_id, project_id=project, device_id=uuid, device_owner='compute:nova', host='gpu1')
    port.binding_failed                                         # True: no agent of that host can bind it
    client.delete_port(port.id)                                 # may be repeated

Calls with a context that carries a token are the user's; with None, and where there is no context, they are the
service's own, which needs the roles admin and service (Neutron's default policy), and shows with a service token of the
same account that it is one. Routes: https://docs.openstack.org/api-ref/network/v2/.
"""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import requests
from keystoneauth1.adapter import Adapter
from keystoneauth1.service_token import ServiceTokenAuthWrapper
from oslo_utils import uuidutils

from kilonova import errors
from kilonova.clients import session
from kilonova.context import RequestContext

WHO = 'The network service'
# Characters of a query: servers and proxies take request lines of 4 KiB at least.
QUERY_LIMIT = 3000
_LABEL = re.compile('[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?', re.ASCII)
# Seconds for which the list of its extensions is good, and the one by which ports have names.
EXTENSIONS_KEPT, DNS = 600.0, 'dns-integration'
# Types of rules of QoS policies that ask something of Placement.
BANDWIDTH, PACKET_RATE = 'minimum_bandwidth', 'minimum_packet_rate'
GUARANTEES = (BANDWIDTH, PACKET_RATE)
# Keys of binding:profile that a compute service writes, and takes away when it unbinds. Others are the owner's.
OUR_PROFILE = frozenset((
    'pci_vendor_info', 'pci_slot', 'physical_network', 'pf_mac_address', 'vf_num', 'card_serial_number', 'allocation',
    'arq_uuid', 'device_mac_address', 'migrating_to'))


# -- errors ------------------------------------------------------------------------------------------------------------
class NetworkNotFound(errors.NotFound):
    msg_fmt = 'Network %(network_id)s could not be found.'


class PortNotFound(errors.NotFound):
    msg_fmt = 'Port id %(port_id)s could not be found.'


class SecurityGroupNotFound(errors.NotFound):
    msg_fmt = "Unable to find security_group with name or id '%(name)s'"


class SecurityGroupRuleNotFound(errors.NotFound):
    msg_fmt = 'Security group rule %(name)s could not be found.'


class FloatingIpNotFound(errors.NotFound):
    msg_fmt = 'Floating IP not found for %(name)s.'


class SecurityGroupNotUnique(errors.Conflict):
    msg_fmt = "Multiple security_group matches found for name '%(name)s', use an ID to be more specific."


class SecurityGroupNotApplicable(errors.Invalid):
    msg_fmt = ('Network requires port_security_enabled and subnet associated in order to apply security groups.')


class PortInUse(errors.Conflict):
    msg_fmt = 'Port %(port_id)s is still in use.'


class PortChanged(errors.Conflict):
    msg_fmt = 'Port %(port_id)s was changed since it was read.'


class PortBindingRefused(errors.Conflict):
    msg_fmt = 'Binding failed for port %(port_id)s: no network agent on the host can bind it.'


class FixedIpInUse(errors.Invalid):
    msg_fmt = 'Fixed IP address %(address)s is already in use.'


class FixedIpNotOfNetwork(errors.Invalid):
    msg_fmt = ('Invalid input received: Fixed IP %(address)s is not a valid ip address for network %(network_id)s.')


class NoMoreFixedIps(errors.Conflict):
    msg_fmt = 'No fixed IP addresses available for network: %(network_id)s'


class PortQuotaFull(errors.Forbidden):
    msg_fmt = 'Maximum number of ports exceeded'


class NetworkQuotaFull(errors.Forbidden):
    """Another quota than that of ports: in Neutron's words, which name it."""

    msg_fmt = '%(detail)s'


class NetworkInvalid(errors.Invalid):
    """Neutron doesn't understand the request, or what it names is not there."""

    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkConflict(errors.Conflict):
    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkForbidden(errors.Forbidden):
    """Neutron's policy is against it for this user."""

    msg_fmt = 'The network service refuses the request: %(detail)s'


class NetworkAccountRefused(errors.Unavailable):
    """The account of [neutron] lacks a role: admin and service are needed."""

    msg_fmt = 'The network service refuses the account of [neutron]: %(detail)s'


# -- what Neutron has --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FixedIp:
    subnet_id: str
    address: str


@dataclass(frozen=True)
class Port:
    """A port as the service sees it: a user is shown no host, profile or VIF (None and empty then)."""

    id: str
    network_id: str
    project_id: str
    mac: str
    # ACTIVE, DOWN, BUILD or ERROR.
    status: str
    admin_state_up: bool
    device_id: str
    device_owner: str
    fixed_ips: tuple[FixedIp, ...] = ()
    security_groups: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    vnic_type: str = 'normal'
    # Only the service sees it: what the port asks of Placement.
    resource_request: Mapping[str, Any] | None = None
    device_profile: str | None = None
    # How near its device must be to the guest's NUMA cells; None: the port doesn't say.
    numa_policy: str | None = None
    # unbound, binding_failed, ovs, hw_veb …
    vif_type: str | None = None
    vif_details: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    host: str | None = None
    port_security_enabled: bool = True
    # Counts its changes; None where this Neutron doesn't count.
    revision: int | None = None
    # Its name in DNS, '': it has none; None where ports of this Neutron have no names.
    dns_name: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Port:
        return cls(
            id=body['id'], network_id=body['network_id'], project_id=body['project_id'], mac=body['mac_address'],
            status=body['status'], admin_state_up=body['admin_state_up'], device_id=body['device_id'],
            device_owner=body['device_owner'],
            fixed_ips=tuple(FixedIp(one['subnet_id'], one['ip_address']) for one in body['fixed_ips']),
            security_groups=tuple(body.get('security_groups') or ()), tags=tuple(body.get('tags') or ()),
            vnic_type=body.get('binding:vnic_type') or 'normal', resource_request=body.get('resource_request') or None,
            device_profile=body.get('device_profile') or None, numa_policy=body.get('numa_affinity_policy') or None,
            vif_type=body.get('binding:vif_type'),
            vif_details=body.get('binding:vif_details') or {}, profile=body.get('binding:profile') or {},
            host=body.get('binding:host_id') or None, port_security_enabled=body.get('port_security_enabled', True),
            revision=body.get('revision_number'), dns_name=body.get('dns_name'))

    @property
    def binding_failed(self) -> bool:
        """Whether nothing on its host can bind it: Neutron says so in a port, not by an error."""
        return self.vif_type == 'binding_failed'

    @property
    def active(self) -> bool:
        """Whether there is nothing to wait for: it is plugged, or switched off by its owner."""
        return self.status == 'ACTIVE' or not self.admin_state_up

    @property
    def takes_groups(self) -> bool:
        """Whether it can have security groups."""
        return self.port_security_enabled and bool(self.fixed_ips)


@dataclass(frozen=True)
class Binding:
    """One of a port's bindings: the active one is where its guest is, another where it will be."""

    host: str
    vif_type: str
    vif_details: Mapping[str, Any]
    profile: Mapping[str, Any]

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Binding:
        return cls(body['host'], body['vif_type'], body.get('vif_details') or {}, body.get('profile') or {})


@dataclass(frozen=True)
class Network:
    """``physical_network`` and ``network_type`` are shown to the service only."""

    id: str
    name: str
    project_id: str
    mtu: int | None
    shared: bool
    external: bool
    admin_state_up: bool
    port_security_enabled: bool
    subnet_ids: tuple[str, ...] = ()
    network_type: str | None = None
    physical_network: str | None = None
    qos_policy_id: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Network:
        return cls(
            id=body['id'], name=body['name'], project_id=body['project_id'], mtu=body.get('mtu'),
            shared=body['shared'], external=body.get('router:external', False),
            admin_state_up=body['admin_state_up'], port_security_enabled=body.get('port_security_enabled', True),
            subnet_ids=tuple(body['subnets']), network_type=body.get('provider:network_type'),
            physical_network=body.get('provider:physical_network'), qos_policy_id=body.get('qos_policy_id'))


@dataclass(frozen=True)
class Route:
    destination: str
    nexthop: str


@dataclass(frozen=True)
class Subnet:
    id: str
    network_id: str
    ip_version: int
    cidr: str
    gateway_ip: str | None
    enable_dhcp: bool
    dns_nameservers: tuple[str, ...] = ()
    host_routes: tuple[Route, ...] = ()
    ipv6_address_mode: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Subnet:
        return cls(
            id=body['id'], network_id=body['network_id'], ip_version=body['ip_version'], cidr=body['cidr'],
            gateway_ip=body['gateway_ip'], enable_dhcp=body['enable_dhcp'],
            dns_nameservers=tuple(body['dns_nameservers']),
            host_routes=tuple(Route(one['destination'], one['nexthop']) for one in body['host_routes']),
            ipv6_address_mode=body.get('ipv6_address_mode'))


@dataclass(frozen=True)
class FloatingIp:
    id: str
    address: str
    port_id: str | None
    fixed_ip: str | None
    # The external one that it is of.
    network_id: str

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> FloatingIp:
        return cls(body['id'], body['floating_ip_address'], body['port_id'], body['fixed_ip_address'],
                   body['floating_network_id'])


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


@dataclass(frozen=True)
class PortQuota:
    """Ports that a project may have (None: any number) and those that it has."""

    limit: int | None
    used: int

    def has_room(self, more: int) -> bool:
        return self.limit is None or self.used + more <= self.limit


class _Extensions:
    """What this Neutron can do beside its core: asked for once in EXTENSIONS_KEPT seconds."""

    def __init__(self, ask: Callable[[], frozenset[str]]) -> None:
        self._ask, self._known, self._until = ask, frozenset[str](), 0.0

    def __contains__(self, alias: str) -> bool:
        if time.monotonic() >= self._until:
            self._known, self._until = self._ask(), time.monotonic() + EXTENSIONS_KEPT
        return alias in self._known


# -- the client --------------------------------------------------------------------------------------------------------
class _Requests:
    """How Neutron is asked, as a user or as the service."""

    def __init__(self, adapter: Adapter) -> None:
        auth = adapter.session.auth
        if auth is not None:
            adapter.session.auth = ServiceTokenAuthWrapper(user_auth=auth, service_auth=auth)
        self._adapter = adapter

    def _one(self, method: str, collection: str, identifier: str, ctxt: RequestContext, missing: errors.NotFound,
             fields: Mapping[str, Any] | None = None, **said: str) -> Any:
        """What becomes of one thing, as a user; ``missing``, without a request, where this isn't a UUID: such as '..'
        leads elsewhere."""
        if not uuidutils.is_uuid_like(identifier):
            raise missing
        name = _singular(collection)
        more: dict[str, Any] = {'json': {name: dict(fields)}} if fields is not None else {}
        response = self._send(method, f'/{collection}/{quote(identifier, safe="")}', ctxt=ctxt, **more)
        if response.status_code == 204:
            return None
        if response.status_code == 404 and _error(response)[0] in _MISSING[collection]:
            raise missing
        return _answer(response, ctxt, **said)[name]

    def _made(self, collection: str, fields: Mapping[str, Any], ctxt: RequestContext, **said: str) -> Any:
        name = _singular(collection)
        return _answer(self._send('POST', f'/{collection}', ctxt=ctxt, json={name: dict(fields)}), ctxt, **said)[name]

    def _some(self, collection: str, query: Sequence[tuple[str, str]], ctxt: RequestContext, limit: int,
              offset: int = 0) -> list[Mapping[str, Any]]:
        if not limit:
            return []
        return list(islice(self._pages(collection, [*query, ('limit', str(limit))], ctxt), offset, offset + limit))

    def _list(self, collection: str, key: str, values: Iterable[str], more: Iterable[tuple[str, str]] = (), *,
              ctxt: RequestContext | None = None) -> Iterator[Mapping[str, Any]]:
        """All whose ``key`` has one of these values, by as many requests as their URLs' length asks for."""
        for part in parts_of(key, values):
            yield from self._pages(collection, [*more, *part], ctxt)

    def _pages(self, collection: str, query: Sequence[tuple[str, str]],
               ctxt: RequestContext | None) -> Iterator[Mapping[str, Any]]:
        name, path = collection.replace('-', '_'), f'/{collection}'
        asked: str | None = urlencode(query)
        while asked is not None:
            answer = _answer(self._send('GET', f'{path}?{asked}' if asked else path, ctxt=ctxt), ctxt)
            yield from answer[name]
            # Only a Neutron with a bound for pages has these; the address is as the server sees itself.
            following = [link['href'] for link in answer.get(f'{name}_links', ()) if link['rel'] == 'next']
            asked = urlsplit(following[0]).query if following else None

    def _send(self, method: str, path: str, *, ctxt: RequestContext | None = None,
              headers: Mapping[str, str] = MappingProxyType({}), **kwargs: Any) -> requests.Response:
        headers, token = dict(headers), getattr(ctxt, 'auth_token', None)
        if token:
            # The endpoint may still come from the service's own catalog; only the token is the user's.
            headers['X-Auth-Token'] = token
            kwargs['authenticated'] = False
        attempts = session.READ_ATTEMPTS if method == 'GET' else 1
        return session.send(self._adapter, WHO, method, f'/v2.0{path}', attempts=attempts, headers=headers, **kwargs)


class _FloatingIps(_Requests):
    def floating_ips(self, port_ids: Iterable[str]) -> list[FloatingIp]:
        """Those of these ports."""
        return [FloatingIp.from_body(body) for body in self._list('floatingips', 'port_id', port_ids)]

    def floating_ip(self, ctxt: RequestContext, floating_id: str) -> FloatingIp:
        """FloatingIpNotFound: none that this user may see."""
        return FloatingIp.from_body(self._one('GET', 'floatingips', floating_id, ctxt,
                                              FloatingIpNotFound(name=f'ID {floating_id}')))

    def floating_ips_of_project(self, ctxt: RequestContext, limit: int,
                                address: str | None = None) -> list[FloatingIp]:
        """Those of a user's project, or those with an address that the user may see."""
        query = ('floating_ip_address', address) if address else ('tenant_id', ctxt.project_id or '')
        return [FloatingIp.from_body(body) for body in self._some('floatingips', [query], ctxt, limit)]

    def create_floating_ip(self, ctxt: RequestContext, network_id: str) -> FloatingIp:
        """One more for the user's project, of an external network. NetworkNotFound, NoMoreFixedIps,
        NetworkQuotaFull."""
        body = {'floating_network_id': network_id, 'tenant_id': ctxt.project_id}
        return FloatingIp.from_body(self._made('floatingips', body, ctxt, network_id=network_id))

    def lead_to(self, ctxt: RequestContext, floating: FloatingIp, port_id: str | None,
                fixed_ip: str | None = None) -> None:
        """A floating IP leads to an address of a port (None: to nothing). FloatingIpNotFound, PortNotFound;
        NetworkInvalid: no router is between them; NetworkConflict: another one leads there."""
        body = {'port_id': port_id, **({'fixed_ip_address': fixed_ip} if fixed_ip else {})}
        self._one('PUT', 'floatingips', floating.id, ctxt, FloatingIpNotFound(name=f'ID {floating.id}'), body,
                  port_id=port_id or '')

    def delete_floating_ip(self, ctxt: RequestContext, floating_id: str) -> None:
        """FloatingIpNotFound."""
        self._one('DELETE', 'floatingips', floating_id, ctxt, FloatingIpNotFound(name=f'ID {floating_id}'))


class _SecurityGroups(_Requests):
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


class _Networks(_Requests):
    def networks(self, ctxt: RequestContext | None, ids: Iterable[str]) -> dict[str, Network]:
        """{id: network} of those that there are, and that this user may see."""
        return {body['id']: Network.from_body(body) for body in self._list('networks', 'id', ids, ctxt=ctxt)}

    def available_networks(self, ctxt: RequestContext | None, project_id: str) -> list[Network]:
        """The networks that a server of a project may be attached to without being asked: its own and shared ones."""
        found = [*self._pages('networks', [('tenant_id', project_id), ('shared', 'False')], ctxt),
                 *self._pages('networks', [('shared', 'True')], ctxt)]
        return [Network.from_body(body) for body in found]

    def check_topology(self, ctxt: RequestContext) -> None:
        """Whether a network can be made for the user's project (``topology``). NetworkInvalid: this Neutron makes none;
        NetworkConflict: what they are made of is missing, a default external network or a default subnet pool."""
        self._topology(ctxt, ctxt.project_id or '', '?fields=dry-run')

    def topology(self, project_id: str) -> str:
        """The id of the network that Neutron makes for a project that has none, with a subnet and a router to the outer
        world; the one that it made before. Errors as above; NetworkQuotaFull."""
        return str(self._topology(None, project_id)['id'])

    def _topology(self, ctxt: RequestContext | None, project_id: str, query: str = '') -> Mapping[str, Any]:
        path = f'/auto-allocated-topology/{quote(project_id, safe="")}{query}'
        found: Mapping[str, Any] = _answer(self._send('GET', path, ctxt=ctxt), ctxt)['auto_allocated_topology']
        return found

    def network(self, ctxt: RequestContext, network_id: str) -> Network:
        """NetworkNotFound: none that this user may see."""
        return Network.from_body(self._one('GET', 'networks', network_id, ctxt, NetworkNotFound(network_id=network_id)))

    def visible_networks(self, ctxt: RequestContext, limit: int, *, external: bool = False) -> list[Network]:
        """All that a user may see, of other projects too, but no more than ``limit``; ``external``: those only."""
        query = [('router:external', 'True')] if external else []
        return [Network.from_body(body) for body in self._some('networks', query, ctxt, limit)]

    def rules_of(self, policy_id: str) -> set[str]:
        """The types of a QoS policy's rules; none of one that is gone."""
        response = self._send('GET', f'/qos/policies/{quote(policy_id, safe="")}')
        if response.status_code == 404:
            return set()
        return {rule['type'] for rule in _answer(response, None)['policy']['rules']}

    def subnets_of(self, ctxt: RequestContext, network_id: str) -> list[Subnet]:
        """Those of a network that a user may see."""
        return [Subnet.from_body(body) for body in self._pages('subnets', [('network_id', network_id)], ctxt)]

    def subnets(self, ids: Iterable[str]) -> dict[str, Subnet]:
        """{id: subnet} of those that there are."""
        return {body['id']: Subnet.from_body(body) for body in self._list('subnets', 'id', ids)}


class NetworkClient(_Networks, _FloatingIps, _SecurityGroups):
    """One per process; threads may share it. Each call may raise Unanswered, NetworkForbidden (of a user) or
    NetworkAccountRefused (of the service); results of several come in no order."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self._extensions = _Extensions(lambda: frozenset(
            body['alias'] for body in self._pages('extensions', (), None)))

    def port(self, ctxt: RequestContext | None, port_id: str) -> Port:
        """PortNotFound: none that this user may see."""
        path = f'/ports/{quote(port_id, safe="")}'
        return Port.from_body(_answer(self._send('GET', path, ctxt=ctxt), ctxt, port_id=port_id)['port'])

    def ports(self, *, ids: Collection[str] | None = None, device_id: str | None = None,
              ctxt: RequestContext | None = None) -> list[Port]:
        """Those of these ids that there are, or those of a server."""
        if ids is not None:
            return [Port.from_body(body) for body in self._list('ports', 'id', ids, ctxt=ctxt)]
        return [Port.from_body(body) for body in self._list('ports', 'device_id', [device_id or ''], ctxt=ctxt)]

    def ports_of_servers(self) -> list[Port]:
        """All that a compute service gave to a server."""
        return [port for port in map(Port.from_body, self._pages('ports', [], None))
                if port.device_id and port.device_owner.startswith('compute:')]

    def ports_at(self, network_id: str, address: str) -> list[Port]:
        """Who has a fixed IP address of a network."""
        return [Port.from_body(body) for body in self._pages(
            'ports', [('network_id', network_id), ('fixed_ips', f'ip_address={address}')], None)]

    def create_port(self, network_id: str, *, project_id: str, device_id: str, device_owner: str, host: str | None,
                    fixed_ip: str | None = None, security_groups: Sequence[str] = (), name: str = '') -> Port:
        """A port that is bound to a host (None: to none yet); look at ``binding_failed``. ``security_groups``: ids;
        none: the project's default group. ``name``: in DNS, where ports have such.

        After silence it may be there nevertheless: ``ports(device_id=…)`` says so. NetworkNotFound,
        SecurityGroupNotFound, SecurityGroupNotApplicable, FixedIpInUse, FixedIpNotOfNetwork, NoMoreFixedIps,
        PortQuotaFull, NetworkInvalid, NetworkConflict.
        """
        body: dict[str, Any] = {'network_id': network_id, 'tenant_id': project_id, 'admin_state_up': True,
                                'device_id': device_id, 'device_owner': device_owner}
        if host is not None:
            body['binding:host_id'] = host
        if fixed_ip is not None:
            body['fixed_ips'] = [{'ip_address': fixed_ip}]
        if security_groups:
            body['security_groups'] = list(security_groups)
        if name and DNS in self._extensions:
            body['dns_name'] = name
        response = self._send('POST', '/ports', json={'port': body})
        return Port.from_body(_answer(response, None, network_id=network_id, address=fixed_ip or '')['port'])

    def bind(self, port: Port, *, host: str | None, device_id: str, device_owner: str,
             profile: Mapping[str, Any] | None = None, name: str = '') -> Port:
        """Give a port, as the service reads it, to a server on a host (None: on none yet), with our part of its
        profile; look at ``binding_failed``. What its owner wrote into the profile stays. ``name``: in DNS, where ports
        have such; without, it stays. PortNotFound, NetworkInvalid, NetworkConflict; PortChanged: by somebody, since it
        was read, so that two servers never get one port.
        """
        return self._update(port, {'binding:host_id': host, 'device_id': device_id, 'device_owner': device_owner,
                                   **_named(port, name)}, profile or {}, unchanged=True)

    def set_name(self, port: Port, name: str) -> None:
        """Name a port, as the service reads it, in DNS; no request where it has that name, or ports have none.
        PortNotFound; NetworkInvalid: it can't be one; PortChanged: by somebody, since it was read."""
        if fields := _named(port, name):
            self._update(port, fields, None, unchanged=True)

    def unbind(self, port: Port) -> None:
        """Give a port, as the service reads it, back to its owner: no host, no server, no name, nothing of ours in its
        profile. One that is gone doesn't matter."""
        name = {'dns_name': ''} if port.dns_name else {}
        try:
            self._update(port, {'binding:host_id': None, 'device_id': '', 'device_owner': '', **name}, {})
        except PortNotFound:
            return

    def set_security_groups(self, ctxt: RequestContext, port: Port, groups: Sequence[str]) -> None:
        """Give a port, as this user reads it, these groups (ids) and no others. PortNotFound, SecurityGroupNotFound,
        SecurityGroupNotApplicable; PortChanged: by somebody, since it was read."""
        self._update(port, {'security_groups': list(groups)}, None, unchanged=True, ctxt=ctxt)

    def set_fixed_ips(self, ctxt: RequestContext, port: Port, wanted: Sequence[Mapping[str, str]]) -> None:
        """Give a port, as this user reads it, these addresses (subnet_id, ip_address; without the second one that is
        free) and no others. PortNotFound, NoMoreFixedIps; PortChanged: by somebody, since it was read."""
        self._update(port, {'fixed_ips': [dict(one) for one in wanted]}, None, unchanged=True, ctxt=ctxt)

    def release_host(self, port: Port) -> Port:
        """Bind a port, as the service reads it, to no host; it stays its server's. PortNotFound."""
        return self._update(port, {'binding:host_id': None}, {})

    def add_binding(self, port: Port, host: str, profile: Mapping[str, Any]) -> Binding:
        """Bind a port on one more host, where its guest will be, with our part of its ``profile``; it isn't active
        there yet. May be repeated. PortNotFound; PortBindingRefused: nothing on that host can bind it."""
        path = f'/ports/{quote(port.id, safe="")}/bindings'
        body = {'host': host, 'vnic_type': port.vnic_type, 'profile': {**_theirs(port.profile), **profile}}
        response = self._send('POST', path, json={'binding': body}, refusals=(500,))
        if _error(response)[0] == 'PortBindingAlreadyExists':
            response = self._send('GET', f'{path}/{quote(host, safe="")}')
        return Binding.from_body(_answer(response, None, port_id=port.id)['binding'])

    def activate_binding(self, port_id: str, host: str) -> None:
        """The port is on this host now; what it had elsewhere stays until ``delete_binding``. May be repeated."""
        path = f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}/activate'
        response = self._send('PUT', path)
        if _error(response)[0] != 'PortBindingAlreadyActive':
            _answer(response, None, port_id=port_id)

    def delete_binding(self, port_id: str, host: str) -> None:
        """One that is gone doesn't matter."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}')
        if response.status_code not in (204, 404):
            _answer(response, None, port_id=port_id)

    def delete_port(self, port_id: str) -> None:
        """One that is gone doesn't matter."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}')
        if response.status_code not in (204, 404):
            _answer(response, None, port_id=port_id)

    def port_quota(self, project_id: str) -> PortQuota:
        """What a project may have of ports and has."""
        path = f'/quotas/{quote(project_id, safe="")}/details.json'
        row = _answer(self._send('GET', path), None)['quota']['port']
        return PortQuota(None if row['limit'] < 0 else row['limit'], row['used'] + row['reserved'])

    def _update(self, port: Port, fields: dict[str, Any], profile: Mapping[str, Any] | None, unchanged: bool = False,
                ctxt: RequestContext | None = None) -> Port:
        """``profile``: our part of it, None: it stays. ``unchanged``: only if nobody changed the port since."""
        if profile is not None and (wanted := _theirs(port.profile) | dict(profile)) != port.profile:
            fields = {**fields, 'binding:profile': wanted}
        condition = ({'If-Match': f'revision_number={port.revision}'} if unchanged and port.revision is not None
                     else {})
        response = self._send('PUT', f'/ports/{quote(port.id, safe="")}', ctxt=ctxt, json={'port': fields},
                              headers=condition)
        return Port.from_body(_answer(response, ctxt, port_id=port.id)['port'])


# What Neutron calls things that aren't there (NeutronError.type), by the collection that one was looked for in.
_MISSING = {'networks': ('NetworkNotFound',), 'floatingips': ('FloatingIPNotFound',),
            'security-groups': ('SecurityGroupNotFound',), 'security-group-rules': ('SecurityGroupRuleNotFound',)}
# By NeutronError.type.
_LEAVES: dict[str, type[errors.KilonovaError]] = {
    'ExternalIpAddressExhausted': NoMoreFixedIps,
    'InvalidIpForNetwork': FixedIpNotOfNetwork,
    'InvalidIpForSubnet': FixedIpNotOfNetwork,
    'IpAddressAlreadyAllocated': FixedIpInUse,
    'IpAddressGenerationFailure': NoMoreFixedIps,
    'IpAddressInUse': FixedIpInUse,
    'NetworkNotFound': NetworkNotFound,
    'OverQuota': PortQuotaFull,
    'PortBindingError': PortBindingRefused,
    'PortInUse': PortInUse,
    'PortNotFound': PortNotFound,
    'PortSecurityAndIPRequiredForSecurityGroups': SecurityGroupNotApplicable,
    'SecurityGroupNotFound': SecurityGroupNotFound,
}


def _answer(response: requests.Response, ctxt: RequestContext | None, **fields: str) -> Any:
    """The body of an answer, or the error that it is; ``fields`` of the errors' texts."""
    if response.status_code < 400:
        return response.json()
    kind, detail = _error(response)
    if response.status_code == 412:
        raise PortChanged(port_id=fields.get('port_id', ''))
    if kind == 'OverQuota' and "'port'" not in detail:
        raise NetworkQuotaFull(detail=detail)
    if kind in _LEAVES:
        raise _LEAVES[kind](**{'port_id': '', 'network_id': '', 'address': '', 'name': detail, **fields})
    if response.status_code >= 500:
        raise errors.Unanswered(who=WHO, reason=detail)
    if response.status_code == 403:
        raise NetworkForbidden(detail=detail) if getattr(ctxt, 'auth_token', None) else NetworkAccountRefused(
            detail=detail)
    raise (NetworkConflict if response.status_code == 409 else NetworkInvalid)(detail=detail)


def _error(response: requests.Response) -> tuple[str, str]:
    """Type and text of a NeutronError, in one line; other answers, as of a proxy before it, have no type."""
    try:
        body = response.json()['NeutronError']
        kind, text = str(body['type']), str(body['message'])
    except (ValueError, LookupError, TypeError):
        kind, text = '', response.text
    return kind, ' '.join(text.split())[:300] or f'{response.status_code} {response.reason}'


def _singular(collection: str) -> str:
    """The key of one in a body."""
    return collection.removesuffix('s').replace('-', '_')


def _named(port: Port, name: str) -> dict[str, str]:
    """What gives a port a name in DNS that it hasn't got."""
    return {'dns_name': name} if name and port.dns_name not in (None, name) else {}


def name_in_dns(hostname: str) -> str:
    """A server's hostname as Neutron takes it for the name of a port; '' where it doesn't.

    >>> name_in_dns('Web.example.org'), name_in_dns('ubuntu-24.04'), name_in_dns('a..b')
    ('web.example.org', '', '')
    """
    labels = hostname.lower().split('.')
    # No top-level domain is a number.
    if not all(map(_LABEL.fullmatch, labels)) or (len(labels) > 1 and labels[-1].isdecimal()):
        return ''
    return '.'.join(labels)


def _theirs(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What of a binding profile is the owner's."""
    return {key: value for key, value in profile.items() if key not in OUR_PROFILE}


def parts_of(key: str, values: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """Query parameters in parts, each no longer than QUERY_LIMIT; a value comes once.

    >>> list(parts_of('id', ['a', 'b', 'a']))
    [[('id', 'a'), ('id', 'b')]]
    """
    part: list[tuple[str, str]] = []
    length = 0
    for value in dict.fromkeys(values):
        size = len(urlencode([(key, value)])) + 1
        if part and length + size > QUERY_LIMIT:
            yield part
            part, length = [], 0
        part.append((key, value))
        length += size
    if part:
        yield part
