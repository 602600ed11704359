"""Additional bindings of ports, which a live migration needs for its destination host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kilonova.clients.neutron.ports import Port, theirs
from kilonova.clients.neutron.refusals import body_of, kind_and_text
from kilonova.clients.neutron.request import NeutronRequests


@dataclass(frozen=True)
class Binding:
    """One of a port's bindings. Each binding is for one host.

    The active binding is for the host on which the guest is. During a live migration the port also has an inactive
    binding for the destination.
    """

    host: str
    vif_type: str
    vif_details: Mapping[str, Any]
    profile: Mapping[str, Any]

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Binding:
        """Create a Binding from ``body``, the JSON object of a binding in a response of Neutron."""
        return cls(body['host'], body['vif_type'], body.get('vif_details') or {}, body.get('profile') or {})


class Bindings(NeutronRequests):
    """The part of ``NetworkClient`` with the calls for bindings of ports."""

    def add_binding(self, port: Port, host: str, profile: Mapping[str, Any]) -> Binding:
        """Bind a port to an additional host, to which its guest will move.

        The new binding is not active yet. Its profile has the keys in ``profile`` and the keys that the port's owner
        has set in the port's existing binding profile. The call may be repeated. Raises PortNotFound if no such port
        exists, and PortBindingRefused if no agent of the host can bind the port.
        """
        path = f'/ports/{quote(port.id, safe="")}/bindings'
        body = {'host': host, 'vnic_type': port.vnic_type, 'profile': {**theirs(port.profile), **profile}}
        response = self._send('POST', path, json={'binding': body}, refusals=(500,))
        if kind_and_text(response)[0] == 'PortBindingAlreadyExists':
            response = self._send('GET', f'{path}/{quote(host, safe="")}')
        return Binding.from_body(body_of(response, None, port_id=port.id)['binding'])

    def activate_binding(self, port_id: str, host: str) -> None:
        """Make the port's binding to this host the active binding. The call may be repeated.

        The binding to the previous host exists until ``delete_binding`` is called. Raises PortNotFound if no such port
        exists.
        """
        path = f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}/activate'
        response = self._send('PUT', path)
        if kind_and_text(response)[0] != 'PortBindingAlreadyActive':
            body_of(response, None, port_id=port_id)

    def delete_binding(self, port_id: str, host: str) -> None:
        """Delete a port's binding to a host. Nothing happens if the binding is deleted already."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}')
        if response.status_code not in (204, 404):
            body_of(response, None, port_id=port_id)
