"""Addresses of a server, by the labels of its networks."""
from __future__ import annotations

from typing import Any

from kilonova.api.views import ips as views
from kilonova.api.wsgi import Call
from kilonova.errors import NotFound


class NoSuchNetwork(NotFound):
    msg_fmt = 'Instance is not a member of specified network'


def index(call: Call) -> Any:
    """GET /servers/{server_id}/ips."""
    server: Any = call.server
    return {'addresses': views.networks(server.row)}


def show(call: Call) -> Any:
    """GET /servers/{server_id}/ips/{network_label}."""
    server: Any = call.server
    label = call.path['network_label']
    networks = views.networks(server.row)
    if label not in networks:
        raise NoSuchNetwork
    return {label: networks[label]}
