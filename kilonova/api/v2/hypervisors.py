"""Hypervisors: the compute nodes of all cells."""
from __future__ import annotations

from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.api.services import hosts
from kilonova.api.views import hypervisors as views
from kilonova.api.wsgi import Call
from kilonova.errors import Invalid, NotFound

PAGED_SINCE, UUIDS_SINCE, UPTIME_SINCE = 33, 53, 88


def index(call: Call) -> Any:
    """GET /os-hypervisors."""
    return _list(call, views.BRIEF)


def detail(call: Call) -> Any:
    """GET /os-hypervisors/detail."""
    return _list(call, views.DETAIL)


def _list(call: Call, kind: str) -> Any:
    pattern = call.one('hypervisor_hostname_pattern') if call.version >= UUIDS_SINCE else None
    paged = call.version >= PAGED_SINCE
    marker = call.one('marker') if paged else None
    if pattern is not None and ('limit' in call.query or marker is not None):
        raise Invalid('Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported.')
    if marker is not None and call.version >= UUIDS_SINCE and not uuidutils.is_uuid_like(marker):
        raise Invalid(f'marker [{marker}] not found')
    limit = call.limit() if paged else None
    nodes = [] if limit == 0 else hosts.list_nodes(call.backend, pattern=pattern, limit=limit, marker=marker,
                                                   marker_is_number=call.version < UUIDS_SINCE)
    if pattern is not None and not nodes:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    body: dict[str, Any] = {'hypervisors': _bodies(call, nodes, kind, _with_servers(call))}
    if paged and nodes and len(nodes) == limit:
        last = nodes[-1].row
        path = 'os-hypervisors/detail' if kind == views.DETAIL else 'os-hypervisors'
        body['hypervisors_links'] = call.links.next(
            path, call.query, last['uuid'] if call.version >= UUIDS_SINCE else last['id'])
    return body


def _with_servers(call: Call) -> bool:
    return call.version >= UUIDS_SINCE and strutils.bool_from_string(call.one('with_servers') or False)


def _bodies(call: Call, nodes: list[hosts.InCell], kind: str, with_servers: bool) -> list[dict[str, Any]]:
    servers = hosts.servers_of(call.backend, nodes) if with_servers else None
    told = kind == views.DETAIL and call.version >= UPTIME_SINCE
    uptimes = hosts.uptimes(call.backend, call.ctxt, nodes) if told else {}
    look = views.Look(call.version, call.backend.options.instance_name_template, servers, uptimes)
    return [views.show(node.row, look, kind) for node in nodes]


def show(call: Call) -> Any:
    """GET /os-hypervisors/{hypervisor_id}."""
    return {'hypervisor': _bodies(call, [_find(call)], views.DETAIL, _with_servers(call))[0]}


def _find(call: Call) -> hosts.InCell:
    identifier = call.path['hypervisor_id']
    if call.version >= UUIDS_SINCE and not uuidutils.is_uuid_like(identifier):
        raise Invalid(f'Invalid uuid {identifier}')
    return hosts.find_node(call.backend, identifier, call.version < UUIDS_SINCE)


def uptime(call: Call) -> Any:
    """GET /os-hypervisors/{hypervisor_id}/uptime."""
    node = _find(call)
    told = hosts.uptime(call.backend, call.ctxt, node)
    (body,) = _bodies(call, [node], views.BRIEF, False)
    return {'hypervisor': {**body, 'uptime': told}}


def _matching(call: Call) -> list[hosts.InCell]:
    pattern = call.path['hypervisor_hostname_pattern']
    nodes = hosts.list_nodes(call.backend, pattern=pattern)
    if not nodes:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return nodes


def search(call: Call) -> Any:
    """GET /os-hypervisors/{hypervisor_hostname_pattern}/search."""
    return {'hypervisors': _bodies(call, _matching(call), views.BRIEF, False)}


def servers(call: Call) -> Any:
    """GET /os-hypervisors/{hypervisor_hostname_pattern}/servers."""
    return {'hypervisors': _bodies(call, _matching(call), views.BRIEF, True)}


def statistics(call: Call) -> Any:
    """GET /os-hypervisors/statistics."""
    return {'hypervisor_statistics': hosts.statistics(call.backend)}
