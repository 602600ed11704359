"""Hosts as they were known before hypervisors and services took over, until 2.42.

Power and maintenance of whole hosts are nothing that the libvirt driver does: there is no route for the one, and the
other answers as the field does for such drivers.
"""
from __future__ import annotations

from typing import Any

from kilonova.api.services import hosts
from kilonova.api.views import os_hosts as views
from kilonova.api.wsgi import Call
from kilonova.errors import ComputeHostNotFound


def index(call: Call) -> Any:
    """GET /os-hosts: a line for each service that is enabled."""
    rows = [service.row for service in hosts.list_services(call.backend, silent=[]) if not service.row['disabled']]
    zone = call.one('zone')
    return {'hosts': [views.brief(row) for row in rows if zone is None or row['zone'] == zone]}


def show(call: Call) -> Any:
    """GET /os-hosts/{host_name}."""
    host = call.path['host_name']
    nodes, projects = hosts.resources(call.backend, host)
    return {'host': views.resources(host, nodes, projects)}


def update(call: Call) -> Any:
    """PUT /os-hosts/{host_name}."""
    host = call.path['host_name']
    if 'maintenance_mode' in call.body:
        raise hosts.NotSupported
    service = hosts.find_service(call.backend, host=host, binary=hosts.COMPUTE, missing=ComputeHostNotFound(host=host))
    disabled = call.body['status'].lower() == 'disable'
    hosts.change(call.backend, call.ctxt, service, {'disabled': disabled, 'disabled_reason': None})
    return {'host': host, 'status': 'disabled' if disabled else 'enabled'}
