"""The server actions addFixedIp and removeFixedIp, until microversion 2.43.

The requests to the network service are sent with the caller's token.
"""

from __future__ import annotations

from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import server_operations
from kilonova.api.v2.interfaces import FIXED_IP, ports_of
from kilonova.api.v2.legacy.floating_ips import ACTIONS_UNTIL
from kilonova.api.v2.legacy.networks import service
from kilonova.api.wsgi import Call, server_action
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import NoMoreFixedIps
from kilonova.errors import Invalid, NotFound

ADD, REMOVE = (f'{PREFIX}os-multinic:{verb}' for verb in ('add', 'remove'))
RULES = (
    rule(ADD, MEMBER, 'Add a fixed IP address to a port of a server.'),
    rule(REMOVE, MEMBER, 'Remove a fixed IP address from a port of a server.'),
)

ADD_BODY = Obj(Prop('addFixedIp', Obj(Prop('networkId', t.UUID, required=True)), required=True))
REMOVE_BODY = Obj(Prop('removeFixedIp', Obj(Prop('address', FIXED_IP, required=True)), required=True))


class NoPortThere(NotFound):
    """Error 404: the server has no port in the network."""

    msg_fmt = 'Instance %(server)s has no port of network %(network)s.'


class NoAddressLeft(Invalid):
    """Error 400: no subnet of the network has a free address."""

    msg_fmt = 'No fixed IP addresses available for network: %(network)s'


class NoSuchAddress(Invalid):
    """Error 400: none of the server's ports has the fixed address."""

    msg_fmt = "Instance %(server)s doesn't have fixed IP '%(address)s'."


def add(call: Call) -> None:
    """Accept the action addFixedIp: add an address to the server's first port in the network.

    The address is from the first subnet of the network that has a free address. Raises NoPortThere if the server has no
    port in the network, and NoAddressLeft if no subnet has a free address.
    """
    server_operations.check_lock(call.ctxt, call.server)
    network = call.body['addFixedIp']['networkId']
    port = next((port for port in ports_of(call) if port.network_id == network.lower()), None)
    if port is None:
        raise NoPortThere(server=call.server.uuid, network=network)
    for subnet in service(call).subnets_of(call.ctxt, port.network_id):
        try:
            service(call).set_fixed_ips(call.ctxt, port, [*_of(port), {'subnet_id': subnet.id}])
            break
        except NoMoreFixedIps:
            continue
    else:
        raise NoAddressLeft(network=network)
    server_operations.run_beside(call.backend, call.ctxt, call.server, 'network_changed')


def remove(call: Call) -> None:
    """Accept the action removeFixedIp: remove an address from the server's port.

    Raises NoSuchAddress if none of the server's ports has the address.
    """
    server_operations.check_lock(call.ctxt, call.server)
    address = call.body['removeFixedIp']['address']
    for port in ports_of(call):
        rest = [one for one in _of(port) if one['ip_address'] != address]
        if len(rest) < len(port.fixed_ips):
            service(call).set_fixed_ips(call.ctxt, port, rest)
            server_operations.run_beside(call.backend, call.ctxt, call.server, 'network_changed')
            return
    raise NoSuchAddress(server=call.server.uuid, address=address)


def _of(port: Port) -> list[dict[str, str]]:
    return [{'subnet_id': one.subnet_id, 'ip_address': one.address} for one in port.fixed_ips]


ROUTES = (
    server_action('addFixedIp', add, ADD, ADD_BODY, until=ACTIONS_UNTIL),
    server_action('removeFixedIp', remove, REMOVE, REMOVE_BODY, until=ACTIONS_UNTIL),
)
