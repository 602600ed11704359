"""The interfaces of a server (``/servers/{server_id}/os-interface``): list, show, attach and detach them.

The ports are read from the network service with each request.
"""

from __future__ import annotations

import json
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import interfaces, unsupported
from kilonova.api.services.server_operations import VIEW, WORK
from kilonova.api.v2.servers.create import ATTACH_EXTERNAL
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.clients.neutron.ports import Port
from kilonova.clients.neutron.refusals import PortNotFound
from kilonova.errors import InstanceNotReady

LIST, SHOW, CREATE, DELETE = (f'{PREFIX}os-attach-interfaces:{verb}' for verb in ('list', 'show', 'create', 'delete'))
RULES = (
    rule(LIST, READER, 'List the interfaces of a server.'),
    rule(SHOW, READER, 'Show an interface of a server.'),
    rule(CREATE, MEMBER, 'Attach an interface to a server.'),
    rule(DELETE, MEMBER, 'Detach an interface of a server.'),
)

FIXED_IP = {'type': 'string', 'maxLength': 64, 'oneOf': [{'format': 'ipv4'}, {'format': 'ipv6'}]}
CREATE_BODY = Obj(
    Prop(
        'interfaceAttachment',
        Obj(
            Prop('net_id', t.UUID),
            Prop('port_id', t.UUID),
            Prop(
                'fixed_ips',
                {
                    'type': 'array',
                    'minItems': 1,
                    'maxItems': 1,
                    'items': Obj(Prop('ip_address', FIXED_IP, required=True)),
                },
            ),
            Prop('tag', t.TAG, since=49),
        ),
    )
)

_TAG_SINCE = 70


def index(call: Call) -> dict[str, Any]:
    """List the interfaces of a server (``GET /servers/{server_id}/os-interface``).

    The interfaces are in the order in which the guest has them. Ports that are not in the server's info cache yet come
    last.
    """
    known = _cached(call, 'network_info')
    return {'interfaceAttachments': [_body(call, port, known) for port in _listed(call, known)]}


def ports_of(call: Call) -> list[Port]:
    """Return the ports of a server for an action on them, in the order in which the guest has them.

    Raises NoNetworkService (400) if this cloud has no network service, and InstanceNotReady (409) if the server is not
    in a cell yet.
    """
    if call.backend.networks is None:
        raise unsupported.NoNetworkService(wanted=f'the IP address of the action {call.route.action}')
    if call.server.cell is None:
        raise InstanceNotReady(instance_id=call.server.uuid)
    return _listed(call, _cached(call, 'extra_network_info'))


def _listed(call: Call, known: list[dict[str, Any]]) -> list[Port]:
    networks = call.backend.networks
    ports = networks.ports(device_id=call.server.uuid, ctxt=call.ctxt) if networks is not None else []
    order = {vif['id']: number for number, vif in enumerate(known)}
    return sorted(ports, key=lambda port: order.get(port.id, len(order)))


def show(call: Call) -> dict[str, Any]:
    """Return one interface (``GET /servers/{server_id}/os-interface/{port_id}``).

    Raises PortNotFound (404) if the port does not exist, or if it is not a port of this server.
    """
    networks, port_id = call.backend.networks, call.path['port_id']
    if networks is None or not uuidutils.is_uuid_like(port_id):
        raise PortNotFound(port_id=port_id)
    port = networks.port(call.ctxt, port_id)
    if port.device_id != call.server.uuid:
        raise PortNotFound(port_id=port_id)
    return {'interfaceAttachment': _body(call, port, _cached(call, 'network_info'))}


def create(call: Call) -> dict[str, Any]:
    """Attach an interface (``POST /servers/{server_id}/os-interface``).

    Returns when the interface is attached to the guest.
    """
    asked = call.body.get('interfaceAttachment') or {}
    addresses = asked.get('fixed_ips') or [{}]
    port = interfaces.attach(
        call.backend,
        call.ctxt,
        call.server,
        interfaces.WantedInterface(
            asked.get('net_id'), asked.get('port_id'), addresses[0].get('ip_address'), asked.get('tag')
        ),
        external=call.may(ATTACH_EXTERNAL),
    )
    return {'interfaceAttachment': _body(call, port, [{'id': port.id, 'tag': asked.get('tag')}])}


def delete(call: Call) -> None:
    """Begin to detach an interface (``DELETE /servers/{server_id}/os-interface/{port_id}``).

    Returns before the guest has released the device.
    """
    interfaces.detach(call.backend, call.ctxt, call.server, call.path['port_id'])


def _cached(call: Call, column: str) -> list[dict[str, Any]]:
    """Return the server's interfaces from its info cache, in the order in which the guest has them.

    ``column`` is the key under which the server's row contains the info cache.
    """
    found: list[dict[str, Any]] = json.loads(call.server.row[column] or '[]')
    return found


def _body(call: Call, port: Port, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response body of the interface with the port ``port``.

    ``known`` is the list of interfaces in the server's info cache. The body's member 'tag', the device tag that the
    user gave at the attach, is read from it, because Neutron does not store device tags.
    """
    tag = next((vif.get('tag') for vif in known if vif['id'] == port.id), None)
    return {
        'fixed_ips': [{'subnet_id': one.subnet_id, 'ip_address': one.address} for one in port.fixed_ips],
        'mac_addr': port.mac,
        'net_id': port.network_id,
        'port_id': port.id,
        'port_state': port.status,
        **({'tag': tag} if call.version >= _TAG_SINCE else {}),
    }


_PATH = f'{SERVER}/os-interface'
ROUTES = (
    Route('GET', _PATH, index, LIST, server=VIEW),
    Route('GET', f'{_PATH}/{{port_id}}', show, SHOW, server=VIEW),
    Route('POST', _PATH, create, CREATE, body=CREATE_BODY, server=WORK, asks=(ATTACH_EXTERNAL,)),
    Route('DELETE', f'{_PATH}/{{port_id}}', delete, DELETE, status=202, server=WORK),
)
