"""Floating IPs of Neutron, for those who manage them through this API, and for the info cache."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.clients.neutron.refusals import FloatingIpNotFound
from kilonova.clients.neutron.request import Requests
from kilonova.context import RequestContext


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


class FloatingIps(Requests):
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
