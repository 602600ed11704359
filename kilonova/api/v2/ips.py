"""The IP addresses of a server, grouped by network label (``/servers/{server_id}/ips``)."""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import PREFIX, READER, rule
from kilonova.api.services.server_operations import VIEW
from kilonova.api.v2.servers.show import plain_addresses
from kilonova.api.wsgi import SERVER, Call, Route
from kilonova.errors import NotFound

INDEX, SHOW = f'{PREFIX}ips:index', f'{PREFIX}ips:show'
RULES = (
    rule(INDEX, READER, 'List the addresses of a server.'),
    rule(SHOW, READER, 'List the addresses of a server on one network.'),
)


class NoSuchNetwork(NotFound):
    """Error 404: the server has no addresses in a network with this label."""

    msg_fmt = 'Instance is not a member of specified network'


def index(call: Call) -> dict[str, Any]:
    """List the addresses of a server by network label (``GET /servers/{server_id}/ips``)."""
    return {'addresses': _networks(call)}


def show(call: Call) -> dict[str, Any]:
    """List the addresses of a server in one network (``GET /servers/{server_id}/ips/{network_label}``)."""
    label, networks = call.path['network_label'], _networks(call)
    if label not in networks:
        raise NoSuchNetwork
    return {label: networks[label]}


def _networks(call: Call) -> dict[str, list[dict[str, Any]]]:
    """Return a dict from network label to addresses. Each address has only the fields 'addr' and 'version'."""
    return plain_addresses(call.server.row)


ROUTES = (
    Route('GET', f'{SERVER}/ips', index, INDEX, server=VIEW),
    Route('GET', f'{SERVER}/ips/{{network_label}}', show, SHOW, server=VIEW),
)
