"""Networks and subnets of Neutron, and the minimum bandwidth and packet rate rules of QoS policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kilonova.clients.neutron.refusals import NetworkNotFound, body_of
from kilonova.clients.neutron.request import NeutronRequests
from kilonova.context import RequestContext

# Types of QoS policy rules that give ports a minimum bandwidth or packet rate, which Placement must allocate.
BANDWIDTH, PACKET_RATE = 'minimum_bandwidth', 'minimum_packet_rate'
GUARANTEES = (BANDWIDTH, PACKET_RATE)


@dataclass(frozen=True)
class Network:
    """A network. ``physical_network`` and ``network_type`` are None if the network was read as a user."""

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
        """Create a Network from ``body``, the JSON object of a network in a response of Neutron."""
        return cls(
            id=body['id'],
            name=body['name'],
            project_id=body['project_id'],
            mtu=body.get('mtu'),
            shared=body['shared'],
            external=body.get('router:external', False),
            admin_state_up=body['admin_state_up'],
            port_security_enabled=body.get('port_security_enabled', True),
            subnet_ids=tuple(body['subnets']),
            network_type=body.get('provider:network_type'),
            physical_network=body.get('provider:physical_network'),
            qos_policy_id=body.get('qos_policy_id'),
        )


@dataclass(frozen=True)
class SubnetRoute:
    """A static route that a subnet's hosts receive by DHCP."""

    destination: str
    nexthop: str


@dataclass(frozen=True)
class Subnet:
    """A subnet of a network."""

    id: str
    network_id: str
    ip_version: int
    cidr: str
    gateway_ip: str | None
    enable_dhcp: bool
    dns_nameservers: tuple[str, ...] = ()
    host_routes: tuple[SubnetRoute, ...] = ()
    ipv6_address_mode: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Subnet:
        """Create a Subnet from ``body``, the JSON object of a subnet in a response of Neutron."""
        return cls(
            id=body['id'],
            network_id=body['network_id'],
            ip_version=body['ip_version'],
            cidr=body['cidr'],
            gateway_ip=body['gateway_ip'],
            enable_dhcp=body['enable_dhcp'],
            dns_nameservers=tuple(body['dns_nameservers']),
            host_routes=tuple(SubnetRoute(one['destination'], one['nexthop']) for one in body['host_routes']),
            ipv6_address_mode=body.get('ipv6_address_mode'),
        )


class Networks(NeutronRequests):
    """The part of ``NetworkClient`` with the calls for networks and subnets."""

    def networks(self, ctxt: RequestContext | None, ids: Iterable[str]) -> dict[str, Network]:
        """Return the networks with these ids as a dict from id to network.

        Networks that do not exist or that the user can't see are left out.
        """
        return {body['id']: Network.from_body(body) for body in self._list('networks', 'id', ids, ctxt=ctxt)}

    def available_networks(self, ctxt: RequestContext | None, project_id: str) -> list[Network]:
        """Return the networks that a server of the project can use without naming a network.

        These are the project's own networks and the shared networks.
        """
        found = [
            *self._pages('networks', [('tenant_id', project_id), ('shared', 'False')], ctxt),
            *self._pages('networks', [('shared', 'True')], ctxt),
        ]
        return [Network.from_body(body) for body in found]

    def check_topology(self, ctxt: RequestContext) -> None:
        """Check that Neutron could create a network for the user's project automatically. Nothing is created.

        Call ``topology`` to create the network.

        Raises:
            NetworkInvalid: This Neutron does not create networks automatically.
            NetworkConflict: A default external network or a default subnet pool is missing.
        """
        self._topology(ctxt, ctxt.project_id or '', '?fields=dry-run')

    def topology(self, project_id: str) -> str:
        """Return the id of the network that Neutron automatically creates for a project without a network.

        Neutron also creates a subnet, and a router to an external network. Further calls return the same network.
        Raises NetworkQuotaFull if a quota is used up, and the errors of ``check_topology``.
        """
        return str(self._topology(None, project_id)['id'])

    def _topology(self, ctxt: RequestContext | None, project_id: str, query: str = '') -> Mapping[str, Any]:
        path = f'/auto-allocated-topology/{quote(project_id, safe="")}{query}'
        found: Mapping[str, Any] = body_of(self._send('GET', path, ctxt=ctxt), ctxt)['auto_allocated_topology']
        return found

    def network(self, ctxt: RequestContext, network_id: str) -> Network:
        """Return a network. Raises NetworkNotFound if it does not exist or this user can't see it."""
        return Network.from_body(self._one('GET', 'networks', network_id, ctxt, NetworkNotFound(network_id=network_id)))

    def visible_networks(self, ctxt: RequestContext, limit: int, *, external: bool = False) -> list[Network]:
        """Return at most ``limit`` networks that a user can see, including networks of other projects.

        With ``external``, return only external networks.
        """
        query = [('router:external', 'True')] if external else []
        return [Network.from_body(body) for body in self._some('networks', query, ctxt, limit)]

    def rules_of(self, policy_id: str) -> set[str]:
        """Return the types of a QoS policy's rules, or an empty set if the policy does not exist."""
        response = self._send('GET', f'/qos/policies/{quote(policy_id, safe="")}')
        if response.status_code == 404:
            return set()
        return {rule['type'] for rule in body_of(response, None)['policy']['rules']}

    def subnets_of(self, ctxt: RequestContext, network_id: str) -> list[Subnet]:
        """Return the subnets of a network that a user can see."""
        return [Subnet.from_body(body) for body in self._pages('subnets', [('network_id', network_id)], ctxt)]

    def subnets(self, ids: Iterable[str]) -> dict[str, Subnet]:
        """Return the subnets with these ids as a dict from id to subnet. Subnets that do not exist are left out."""
        return {body['id']: Subnet.from_body(body) for body in self._list('subnets', 'id', ids)}
