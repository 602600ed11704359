"""Floating IPs: a proxy for the network service (until microversion 2.35), and two server actions (until 2.43).

The actions are addFloatingIp and removeFloatingIp. Every request becomes requests to the network service with the
caller's token. The network service decides what the caller may see and change.
"""

from __future__ import annotations

import contextlib
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.rules import ANY, MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import server_operations
from kilonova.api.v2.interfaces import FIXED_IP, ports_of
from kilonova.api.v2.legacy.networks import UNTIL, service
from kilonova.api.wsgi import Call, Route, server_action
from kilonova.clients.neutron.floating_ips import FloatingIp
from kilonova.clients.neutron.networks import Network
from kilonova.clients.neutron.refusals import FloatingIpNotFound, NetworkConflict, NoMoreFixedIps
from kilonova.errors import Conflict, InstanceNotFound, Invalid, NotFound

POOLS = f'{PREFIX}os-floating-ip-pools'
LIST, SHOW, CREATE, DELETE, ADD, REMOVE = (
    f'{PREFIX}os-floating-ips:{verb}' for verb in ('list', 'show', 'create', 'delete', 'add', 'remove')
)
RULES = (
    rule(POOLS, ANY, 'List the external networks of the network service.'),
    rule(LIST, READER, 'List the floating IPs of the network service.'),
    rule(SHOW, READER, 'Show a floating IP of the network service.'),
    rule(CREATE, MEMBER, 'Allocate a floating IP in the network service.'),
    rule(DELETE, MEMBER, 'Release a floating IP in the network service.'),
    rule(ADD, MEMBER, 'Associate a floating IP with a server.'),
    rule(REMOVE, MEMBER, 'Disassociate a floating IP from a server.'),
)

# The last microversion with the actions addFloatingIp and removeFloatingIp.
ACTIONS_UNTIL = 43
# ``pool`` is the name or id of an external network. If the cloud has only one, ``pool`` may be missing.
CREATE_BODY = Obj(Prop('pool', t.TEXT))
ADD_BODY = Obj(
    Prop(
        'addFloatingIp',
        Obj(Prop('address', FIXED_IP, required=True), Prop('fixed_address', {'anyOf': [t.NULL, FIXED_IP]})),
        required=True,
    )
)
REMOVE_BODY = Obj(Prop('removeFloatingIp', Obj(Prop('address', FIXED_IP, required=True)), required=True))


class NoPool(NotFound):
    """Error 404: there is no external network of this name or id."""

    msg_fmt = 'Floating IP pool %(pool)s not found.'


class PoolMissing(Invalid):
    """Error 400: the request names no pool, and there are several external networks."""

    msg_fmt = 'There are %(count)d external networks: pool must name one of them.'


class PoolEmpty(NotFound):
    """Error 404: the external network has no free address."""

    msg_fmt = 'No more floating IPs in pool %(pool)s.'


class NoFixedIps(Invalid):
    """Error 400: the server has no fixed IPv4 address."""

    msg_fmt = 'No fixed IPs associated to instance %(server)s'


class AddressNotOfServer(Invalid):
    """Error 400: the fixed address is not an address of the server."""

    msg_fmt = 'Specified fixed address %(address)s not assigned to instance %(server)s'


class LeadsElsewhere(Conflict):
    """Error 409: the floating IP is not associated with this server."""

    msg_fmt = 'Floating IP %(address)s is not associated with instance %(server)s.'


# --- floating IPs of the network service -----------------------------------------------------------------------------
def pools(call: Call) -> dict[str, Any]:
    """List the external networks (``GET /os-floating-ip-pools``)."""
    return {'floating_ip_pools': [{'name': network.name} for network in _pools(call)]}


def index(call: Call) -> dict[str, Any]:
    """List the floating IPs of the caller's project (``GET /os-floating-ips``)."""
    return {'floating_ips': _bodies(call, *service(call).floating_ips_of_project(call.ctxt, call.limit()))}


def show(call: Call) -> dict[str, Any]:
    """Return a floating IP (``GET /os-floating-ips/{floating_ip_id}``)."""
    return {'floating_ip': _bodies(call, _of_path(call))[0]}


def create(call: Call) -> dict[str, Any]:
    """Allocate a floating IP to the caller's project (``POST /os-floating-ips``)."""
    pool = _pool(call, (call.body or {}).get('pool'))
    try:
        made = service(call).create_floating_ip(call.ctxt, pool.id)
    except NoMoreFixedIps:
        raise PoolEmpty(pool=pool.name) from None
    return {'floating_ip': _bodies(call, made)[0]}


def delete(call: Call) -> None:
    """Release a floating IP (``DELETE /os-floating-ips/{floating_ip_id}``)."""
    floating = _of_path(call)
    service(call).delete_floating_ip(call.ctxt, floating.id)
    _show(call, _server_of(call, floating), floating.address, None)


def _of_path(call: Call) -> FloatingIp:
    return service(call).floating_ip(call.ctxt, call.path['floating_ip_id'])


def _pools(call: Call) -> list[Network]:
    return service(call).visible_networks(call.ctxt, call.backend.options.max_limit, external=True)


def _pool(call: Call, wanted: str | None) -> Network:
    """Return the external network with this name or id, or the only external network if ``wanted`` is None.

    Raises NoPool if no network matches, and PoolMissing if ``wanted`` is None and there are several external networks.
    """
    found = [network for network in _pools(call) if wanted in (None, network.name, network.id)]
    if not found:
        raise NoPool(pool=wanted or '')
    if len(found) > 1 and wanted is None:
        raise PoolMissing(count=len(found))
    return found[0]


def _bodies(call: Call, *floating: FloatingIp) -> list[dict[str, Any]]:
    networks = service(call)
    pools = networks.networks(call.ctxt, sorted({one.network_id for one in floating}))
    ports = networks.ports(ids=sorted({one.port_id for one in floating if one.port_id}), ctxt=call.ctxt)
    servers = {port.id: port.device_id for port in ports if port.device_owner.startswith('compute:')}
    return [
        {
            'id': one.id,
            'ip': one.address,
            'fixed_ip': one.fixed_ip,
            'pool': pools[one.network_id].name if one.network_id in pools else None,
            'instance_id': servers.get(one.port_id or ''),
        }
        for one in floating
    ]


# --- actions on a server ---------------------------------------------------------------------------------------------
def add(call: Call) -> None:
    """Accept the action addFloatingIp: associate a floating IP with a fixed address of the server.

    The fixed address is ``fixed_address`` or, if the request names none, the server's first IPv4 address. If the
    floating IP is associated with another server, that association ends.
    """
    wanted = call.body['addFloatingIp']
    ports, address = ports_of(call), wanted.get('fixed_address')
    places = [
        (port.id, one.address)
        for port in ports
        for one in port.fixed_ips
        if (one.address == address if address else ':' not in one.address)
    ]
    if not places:
        raise (
            AddressNotOfServer(address=address, server=call.server.uuid)
            if address
            else NoFixedIps(server=call.server.uuid)
        )
    floating = _at(call, wanted['address'])
    before = _server_of(call, floating)
    try:
        service(call).lead_to(call.ctxt, floating, *places[0])
    except NetworkConflict as error:
        raise Invalid(error.message) from None
    if before != call.server.uuid:
        _show(call, before, floating.address, None)
    _show(call, call.server.uuid, floating.address, places[0])


def remove(call: Call) -> None:
    """Accept the action removeFloatingIp: end the association of a floating IP with the server.

    Raises LeadsElsewhere (409) if the floating IP is not associated with this server.
    """
    address = call.body['removeFloatingIp']['address']
    ports, floating = ports_of(call), _at(call, address)
    if floating.port_id not in [port.id for port in ports]:
        raise LeadsElsewhere(address=address, server=call.server.uuid)
    service(call).lead_to(call.ctxt, floating, None)
    _show(call, call.server.uuid, floating.address, None)


def _at(call: Call, address: str) -> FloatingIp:
    """Return the floating IP with this address.

    Raises FloatingIpNotFound (404) if the floating IP does not exist or the caller can't see it.
    """
    found = service(call).floating_ips_of_project(call.ctxt, 1, address)
    if not found:
        raise FloatingIpNotFound(name=f'address {address}')
    return found[0]


def _server_of(call: Call, floating: FloatingIp) -> str | None:
    """Return the uuid of the server with which the floating IP is associated.

    A floating IP is associated with a port. Return the server of this port, or None if the floating IP has no port, if
    the port belongs to no server, or if the caller can't see the port.
    """
    ports = service(call).ports(ids=[floating.port_id], ctxt=call.ctxt) if floating.port_id else []
    return next((port.device_id for port in ports if port.device_owner.startswith('compute:')), None)


def _show(call: Call, uuid: str | None, address: str, association: tuple[str, str] | None) -> None:
    """Update a floating IP in the info cache of a server, so that ``GET /servers/{id}`` shows the change at once.

    ``uuid`` is the server's uuid, and ``address`` is the floating IP. ``association`` is a pair (port id, fixed
    address) of this server, or None if the floating IP is no longer associated with the server. Do nothing if the
    server does not exist, or if the caller may not see it.
    """
    if uuid is None or not uuidutils.is_uuid_like(uuid):
        return
    port, fixed = association or (None, None)
    with contextlib.suppress(InstanceNotFound):
        server = server_operations.find_server(call.backend, call.ctxt, uuid)
        if server.cell is not None:
            server_operations.ports_changed(
                call.backend,
                call.ctxt,
                server,
                lambda vif: vif.with_floating(address, fixed if vif.id == port else None),
            )


_PATH = '/os-floating-ips'
_ONE = f'{_PATH}/{{floating_ip_id}}'
ROUTES = (
    Route('GET', '/os-floating-ip-pools', pools, POOLS, until=UNTIL),
    Route('GET', _PATH, index, LIST, until=UNTIL),
    Route('GET', _ONE, show, SHOW, until=UNTIL),
    Route('POST', _PATH, create, CREATE, body=CREATE_BODY, until=UNTIL),
    Route('DELETE', _ONE, delete, DELETE, status=202, until=UNTIL),
    server_action('addFloatingIp', add, ADD, ADD_BODY, until=ACTIONS_UNTIL),
    server_action('removeFloatingIp', remove, REMOVE, REMOVE_BODY, until=ACTIONS_UNTIL),
)
