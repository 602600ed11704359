"""Interfaces of a server: its ports, as the network service has them now; one more, one less."""
from __future__ import annotations

import json
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import interfaces, refusals
from kilonova.api.services.accept import VIEW, WORK
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
CREATE_BODY = Obj(Prop('interfaceAttachment', Obj(
    Prop('net_id', t.UUID), Prop('port_id', t.UUID),
    Prop('fixed_ips', {'type': 'array', 'minItems': 1, 'maxItems': 1,
                       'items': Obj(Prop('ip_address', FIXED_IP, required=True))}),
    Prop('tag', t.TAG, since=49))))

_TAG_SINCE = 70


def index(call: Call) -> dict[str, Any]:
    """GET /servers/{server_id}/os-interface: in the order in which the guest has them, newer ones last."""
    known = _cached(call, 'network_info')
    return {'interfaceAttachments': [_body(call, port, known) for port in _listed(call, known)]}


def ports_of(call: Call) -> list[Port]:
    """The ports of a server that something is done with, in that order. NoNetworkService, InstanceNotReady."""
    if call.backend.networks is None:
        raise refusals.NoNetworkService(wanted=f'the address of {call.route.action}')
    if call.server.cell is None:
        raise InstanceNotReady(instance_id=call.server.uuid)
    return _listed(call, _cached(call, 'extra_network_info'))


def _listed(call: Call, known: list[dict[str, Any]]) -> list[Port]:
    networks = call.backend.networks
    ports = networks.ports(device_id=call.server.uuid, ctxt=call.ctxt) if networks is not None else []
    order = {vif['id']: number for number, vif in enumerate(known)}
    return sorted(ports, key=lambda port: order.get(port.id, len(order)))


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{server_id}/os-interface/{port_id}. A port that isn't this server's is as unknown as any."""
    networks, port_id = call.backend.networks, call.path['port_id']
    if networks is None or not uuidutils.is_uuid_like(port_id):
        raise PortNotFound(port_id=port_id)
    port = networks.port(call.ctxt, port_id)
    if port.device_id != call.server.uuid:
        raise PortNotFound(port_id=port_id)
    return {'interfaceAttachment': _body(call, port, _cached(call, 'network_info'))}


def create(call: Call) -> dict[str, Any]:
    """POST /servers/{server_id}/os-interface: answers when the guest is plugged in."""
    asked = call.body.get('interfaceAttachment') or {}
    addresses = asked.get('fixed_ips') or [{}]
    port = interfaces.attach(call.backend, call.ctxt, call.server, interfaces.Wanted(
        asked.get('net_id'), asked.get('port_id'), addresses[0].get('ip_address'), asked.get('tag')),
        external=call.may(ATTACH_EXTERNAL))
    return {'interfaceAttachment': _body(call, port, [{'id': port.id, 'tag': asked.get('tag')}])}


def delete(call: Call) -> None:
    """DELETE /servers/{server_id}/os-interface/{port_id}: the guest is asked to let it go."""
    interfaces.detach(call.backend, call.ctxt, call.server, call.path['port_id'])


def _cached(call: Call, column: str) -> list[dict[str, Any]]:
    """The server's interfaces, in its guest's order."""
    found: list[dict[str, Any]] = json.loads(call.server.row[column] or '[]')
    return found


def _body(call: Call, port: Port, known: list[dict[str, Any]]) -> dict[str, Any]:
    """``known``: interfaces of the server, which alone say of its ports what their tags are."""
    tag = next((vif.get('tag') for vif in known if vif['id'] == port.id), None)
    return {'fixed_ips': [{'subnet_id': one.subnet_id, 'ip_address': one.address} for one in port.fixed_ips],
            'mac_addr': port.mac, 'net_id': port.network_id, 'port_id': port.id, 'port_state': port.status,
            **({'tag': tag} if call.version >= _TAG_SINCE else {})}


_PATH = f'{SERVER}/os-interface'
ROUTES = (
    Route('GET', _PATH, index, LIST, server=VIEW),
    Route('GET', f'{_PATH}/{{port_id}}', show, SHOW, server=VIEW),
    Route('POST', _PATH, create, CREATE, body=CREATE_BODY, server=WORK, asks=(ATTACH_EXTERNAL,)),
    Route('DELETE', f'{_PATH}/{{port_id}}', delete, DELETE, status=202, server=WORK),
)
