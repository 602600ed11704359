"""Networks (``/os-networks`` and ``/os-tenant-networks``), a proxy for the network service until microversion 2.35.

Every request becomes one request to the network service with the caller's token. The network service decides what the
caller may see.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import PREFIX, READER, rule
from kilonova.api.wsgi import Call, NoRoute, Route
from kilonova.clients.network import NetworkClient
from kilonova.clients.neutron.networks import Network

LIST, SHOW = (f'{PREFIX}os-networks:{verb}' for verb in ('list', 'show'))
LIST_OF_TENANTS, SHOW_OF_TENANTS = (f'{PREFIX}os-tenant-networks:{verb}' for verb in ('list', 'show'))
RULES = (
    rule(LIST, READER, 'List the networks of the network service.'),
    rule(SHOW, READER, 'Show a network of the network service.'),
    rule(LIST_OF_TENANTS, READER, 'List the networks of the network service in the short form.'),
    rule(SHOW_OF_TENANTS, READER, 'Show a network of the network service in the short form.'),
)

UNTIL = 35
# Fields from the time when hosts managed the networks themselves (nova-network). They are null for every network.
_ONCE = (
    'bridge',
    'bridge_interface',
    'broadcast',
    'cidr',
    'cidr_v6',
    'created_at',
    'deleted',
    'deleted_at',
    'dhcp_server',
    'dhcp_start',
    'dns1',
    'dns2',
    'enable_dhcp',
    'gateway',
    'gateway_v6',
    'host',
    'injected',
    'mtu',
    'multi_host',
    'netmask',
    'netmask_v6',
    'priority',
    'project_id',
    'rxtx_base',
    'share_address',
    'updated_at',
    'vlan',
    'vpn_private_address',
    'vpn_public_address',
    'vpn_public_port',
)


def service(call: Call) -> NetworkClient:
    """Return the client of the network service.

    Raises NoRoute (404) if this cloud has no network service.
    """
    if call.backend.networks is None:
        raise NoRoute
    return call.backend.networks


def index(call: Call) -> dict[str, Any]:
    """List networks (``GET /os-networks``)."""
    return {'networks': [_body(network) for network in _seen(call)]}


def show(call: Call) -> dict[str, Any]:
    """Return a network (``GET /os-networks/{network_id}``)."""
    return {'network': _body(service(call).network(call.ctxt, call.path['network_id']))}


def index_of_tenants(call: Call) -> dict[str, Any]:
    """List networks in the short form (``GET /os-tenant-networks``)."""
    return {'networks': [_brief(network) for network in _seen(call)]}


def show_of_tenants(call: Call) -> dict[str, Any]:
    """Return a network in the short form (``GET /os-tenant-networks/{network_id}``)."""
    return {'network': _brief(service(call).network(call.ctxt, call.path['network_id']))}


def _seen(call: Call) -> list[Network]:
    return service(call).visible_networks(call.ctxt, call.limit())


def _body(network: Network) -> dict[str, Any]:
    return {'id': network.id, 'label': network.name, **dict.fromkeys(_ONCE)}


def _brief(network: Network) -> dict[str, Any]:
    return {'id': network.id, 'label': network.name, 'cidr': 'None'}


ROUTES = (
    Route('GET', '/os-networks', index, LIST, until=UNTIL),
    Route('GET', '/os-networks/{network_id}', show, SHOW, until=UNTIL),
    Route('GET', '/os-tenant-networks', index_of_tenants, LIST_OF_TENANTS, until=UNTIL),
    Route('GET', '/os-tenant-networks/{network_id}', show_of_tenants, SHOW_OF_TENANTS, until=UNTIL),
)
