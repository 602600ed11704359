"""Networks of Neutron, their subnets, and what policies of QoS ask for their ports."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kilonova.clients.neutron.refusals import NetworkNotFound, body_of
from kilonova.clients.neutron.request import Requests
from kilonova.context import RequestContext

# Types of rules of QoS policies that ask something of Placement.
BANDWIDTH, PACKET_RATE = 'minimum_bandwidth', 'minimum_packet_rate'
GUARANTEES = (BANDWIDTH, PACKET_RATE)


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


class Networks(Requests):
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
        found: Mapping[str, Any] = body_of(self._send('GET', path, ctxt=ctxt), ctxt)['auto_allocated_topology']
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
        return {rule['type'] for rule in body_of(response, None)['policy']['rules']}

    def subnets_of(self, ctxt: RequestContext, network_id: str) -> list[Subnet]:
        """Those of a network that a user may see."""
        return [Subnet.from_body(body) for body in self._pages('subnets', [('network_id', network_id)], ctxt)]

    def subnets(self, ids: Iterable[str]) -> dict[str, Subnet]:
        """{id: subnet} of those that there are."""
        return {body['id']: Subnet.from_body(body) for body in self._list('subnets', 'id', ids)}
