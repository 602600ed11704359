"""Hosts as they were known before hypervisors and services took over, until 2.42.

Power and maintenance of whole hosts are nothing that the libvirt driver does: who may ask for them gets the field's
answer of such drivers.
"""
from __future__ import annotations

from typing import Any

from kilonova.api.services import hosts
from kilonova.api.views import os_hosts as views
from kilonova.api.wsgi import Call


def index(call: Call) -> Any:
    """GET /os-hosts: a line for each service that is enabled."""
    rows = [service.row for service in hosts.list_services(call.backend, silent=[]) if not service.row['disabled']]
    zone = call.one('zone')
    return {'hosts': [views.brief(row) for row in rows if not zone or row['zone'] == zone]}


def show(call: Call) -> Any:
    """GET /os-hosts/{host_name}."""
    host = call.path['host_name']
    nodes, projects = hosts.resources(call.backend, host)
    return {'host': views.resources(host, nodes, projects)}


def update(call: Call) -> Any:
    """PUT /os-hosts/{host_name}."""
    host = call.path['host_name']
    service = _compute(call)
    if 'maintenance_mode' in call.body:
        raise hosts.NotSupported
    disabled = call.body['status'].lower() == 'disable'
    hosts.change(call.backend, call.ctxt, service, {'disabled': disabled, 'disabled_reason': None})
    return {'host': host, 'status': 'disabled' if disabled else 'enabled'}


def power(call: Call) -> None:
    """GET /os-hosts/{host_name}/startup, shutdown and reboot: 404 for a host that isn't there, 501 for one that is."""
    _compute(call)
    raise hosts.NotSupported


def _compute(call: Call) -> hosts.InCell:
    return hosts.find_binary(call.backend, call.path['host_name'], hosts.COMPUTE)
