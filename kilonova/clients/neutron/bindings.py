"""Bindings of ports beside the active one: where a guest will be that goes there while it runs."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kilonova.clients.neutron.ports import Port, theirs
from kilonova.clients.neutron.refusals import body_of, kind_and_text
from kilonova.clients.neutron.request import Requests


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


class Bindings(Requests):
    def add_binding(self, port: Port, host: str, profile: Mapping[str, Any]) -> Binding:
        """Bind a port on one more host, where its guest will be, with our part of its ``profile``; it isn't active
        there yet. May be repeated. PortNotFound; PortBindingRefused: nothing on that host can bind it."""
        path = f'/ports/{quote(port.id, safe="")}/bindings'
        body = {'host': host, 'vnic_type': port.vnic_type, 'profile': {**theirs(port.profile), **profile}}
        response = self._send('POST', path, json={'binding': body}, refusals=(500,))
        if kind_and_text(response)[0] == 'PortBindingAlreadyExists':
            response = self._send('GET', f'{path}/{quote(host, safe="")}')
        return Binding.from_body(body_of(response, None, port_id=port.id)['binding'])

    def activate_binding(self, port_id: str, host: str) -> None:
        """The port is on this host now; what it had elsewhere stays until ``delete_binding``. May be repeated."""
        path = f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}/activate'
        response = self._send('PUT', path)
        if kind_and_text(response)[0] != 'PortBindingAlreadyActive':
            body_of(response, None, port_id=port_id)

    def delete_binding(self, port_id: str, host: str) -> None:
        """One that is gone doesn't matter."""
        response = self._send('DELETE', f'/ports/{quote(port_id, safe="")}/bindings/{quote(host, safe="")}')
        if response.status_code not in (204, 404):
            body_of(response, None, port_id=port_id)
