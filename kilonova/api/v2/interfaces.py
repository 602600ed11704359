"""Interfaces of a server: its ports, as the network service has them now."""
from __future__ import annotations

import json
from typing import Any

from oslo_utils import uuidutils

from kilonova.api.rules import PREFIX, READER, rule
from kilonova.api.services.accept import VIEW
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.clients.network import Port, PortNotFound

LIST, SHOW = f'{PREFIX}os-attach-interfaces:list', f'{PREFIX}os-attach-interfaces:show'
RULES = (
    rule(LIST, READER, 'List the interfaces of a server.'),
    rule(SHOW, READER, 'Show an interface of a server.'),
)

# Interfaces have no device tags: it is null.
_TAG_SINCE = 70


def index(call: Call) -> dict[str, Any]:
    """GET /servers/{server_id}/os-interface: in the order in which the guest has them, newer ones last."""
    networks, known = call.backend.networks, json.loads(call.server.row['network_info'] or '[]')
    ports = networks.ports(device_id=call.server.uuid, ctxt=call.ctxt) if networks is not None else []
    order = {vif['id']: number for number, vif in enumerate(known)}
    ports.sort(key=lambda port: order.get(port.id, len(order)))
    return {'interfaceAttachments': [_body(call, port) for port in ports]}


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{server_id}/os-interface/{port_id}. A port that isn't this server's is as unknown as any."""
    networks, port_id = call.backend.networks, call.path['port_id']
    if networks is None or not uuidutils.is_uuid_like(port_id):
        raise PortNotFound(port_id=port_id)
    port = networks.port(call.ctxt, port_id)
    if port.device_id != call.server.uuid:
        raise PortNotFound(port_id=port_id)
    return {'interfaceAttachment': _body(call, port)}


def _body(call: Call, port: Port) -> dict[str, Any]:
    return {'fixed_ips': [{'subnet_id': one.subnet_id, 'ip_address': one.address} for one in port.fixed_ips],
            'mac_addr': port.mac, 'net_id': port.network_id, 'port_id': port.id, 'port_state': port.status,
            **({'tag': None} if call.version >= _TAG_SINCE else {})}


_PATH = f'{SERVER}/os-interface'
ROUTES = (
    Route('GET', _PATH, index, LIST, server=VIEW),
    Route('GET', f'{_PATH}/{{port_id}}', show, SHOW, server=VIEW),
)
