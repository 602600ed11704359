"""Floating IPs of Neutron, for users who manage them through the compute API, and for the servers' info caches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.clients.neutron.refusals import FloatingIpNotFound
from kilonova.clients.neutron.request import NeutronRequests
from kilonova.context import RequestContext


@dataclass(frozen=True)
class FloatingIp:
    """A floating IP address, with the port and the fixed IP with which it is associated.

    Port and fixed IP are None if the floating IP is not associated.
    """

    id: str
    address: str
    port_id: str | None
    fixed_ip: str | None
    # The external network that the address belongs to.
    network_id: str

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> FloatingIp:
        """Create a FloatingIp from ``body``, the JSON object of a floating IP in a response of Neutron."""
        return cls(
            body['id'],
            body['floating_ip_address'],
            body['port_id'],
            body['fixed_ip_address'],
            body['floating_network_id'],
        )


class FloatingIps(NeutronRequests):
    """The part of ``NetworkClient`` with the calls for floating IPs."""

    def floating_ips(self, port_ids: Iterable[str]) -> list[FloatingIp]:
        """Return the floating IPs that are associated with these ports."""
        return [FloatingIp.from_body(body) for body in self._list('floatingips', 'port_id', port_ids)]

    def floating_ip(self, ctxt: RequestContext, floating_id: str) -> FloatingIp:
        """Return a floating IP. Raises FloatingIpNotFound if it does not exist or this user can't see it."""
        return FloatingIp.from_body(
            self._one('GET', 'floatingips', floating_id, ctxt, FloatingIpNotFound(name=f'ID {floating_id}'))
        )

    def floating_ips_of_project(self, ctxt: RequestContext, limit: int, address: str | None = None) -> list[FloatingIp]:
        """Return at most ``limit`` floating IPs of the user's project.

        If ``address`` is given, return the floating IPs with this address that the user can see, of any project.
        """
        query = ('floating_ip_address', address) if address else ('tenant_id', ctxt.project_id or '')
        return [FloatingIp.from_body(body) for body in self._some('floatingips', [query], ctxt, limit)]

    def create_floating_ip(self, ctxt: RequestContext, network_id: str) -> FloatingIp:
        """Create a floating IP of an external network for the user's project.

        Raises:
            NetworkNotFound: No such network exists.
            NoMoreFixedIps: The network has no free address.
            NetworkQuotaFull: The project's quota of floating IPs is used up.
        """
        body = {'floating_network_id': network_id, 'tenant_id': ctxt.project_id}
        return FloatingIp.from_body(self._made('floatingips', body, ctxt, network_id=network_id))

    def lead_to(
        self, ctxt: RequestContext, floating: FloatingIp, port_id: str | None, fixed_ip: str | None = None
    ) -> None:
        """Associate a floating IP with a fixed IP of a port, or disassociate it if ``port_id`` is None.

        ``fixed_ip`` is one of the port's fixed IPs. If it is None, Neutron chooses one.

        Raises:
            FloatingIpNotFound: No such floating IP exists.
            PortNotFound: No such port exists.
            NetworkInvalid: No router connects the networks of the floating IP and of the port.
            NetworkConflict: Another floating IP is associated with the fixed IP.
        """
        body = {'port_id': port_id, **({'fixed_ip_address': fixed_ip} if fixed_ip else {})}
        self._one(
            'PUT',
            'floatingips',
            floating.id,
            ctxt,
            FloatingIpNotFound(name=f'ID {floating.id}'),
            body,
            port_id=port_id or '',
        )

    def delete_floating_ip(self, ctxt: RequestContext, floating_id: str) -> None:
        """Delete a floating IP. Raises FloatingIpNotFound if it does not exist or this user can't see it."""
        self._one('DELETE', 'floatingips', floating_id, ctxt, FloatingIpNotFound(name=f'ID {floating_id}'))
