"""Hypervisors (``/os-hypervisors``): the compute nodes of all cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import strutils, uuidutils

from kilonova.api.fields import ABSENT, Field, Fields, column
from kilonova.api.rules import ADMIN, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services import hosts
from kilonova.api.v2.servers.show import instance_name
from kilonova.api.wsgi import Call, Route
from kilonova.errors import Invalid, NotFound

# --- policy rules ----------------------------------------------------------------------------------------------------
LIST, DETAIL, SHOW, STATISTICS, UPTIME, SEARCH, SERVERS = (
    f'{PREFIX}os-hypervisors:{verb}'
    for verb in ('list', 'list-detail', 'show', 'statistics', 'uptime', 'search', 'servers')
)
RULES = (
    rule(LIST, ADMIN, 'List hypervisors.'),
    rule(DETAIL, ADMIN, 'List hypervisors with details.'),
    rule(SHOW, ADMIN, 'Show a hypervisor.'),
    rule(STATISTICS, ADMIN, 'Show the resources and servers of all hypervisors in total.'),
    rule(UPTIME, ADMIN, 'Show the uptime of a hypervisor.'),
    rule(SEARCH, ADMIN, 'Find hypervisors by name.'),
    rule(SERVERS, ADMIN, 'List the servers of hypervisors.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_HOSTNAME = {'type': 'string', 'minLength': 1, 'maxLength': 255}
INDEX_QUERY = QuerySchema.of(
    Prop('limit', t.NUMBER_TEXT, since=33),
    Prop('marker', t.ANY_TEXT, since=33),
    Prop('hypervisor_hostname_pattern', _HOSTNAME, since=53),
    Prop('with_servers', t.BOOLEAN, since=53),
)
SHOW_QUERY = QuerySchema.of(Prop('with_servers', t.BOOLEAN, since=53))
NO_QUERY = QuerySchema.of()


# --- response fields -------------------------------------------------------------------------------------------------
BRIEF, WHOLE = 'brief', 'detail'
_WHOLE = frozenset((WHOLE,))
Row = Mapping[str, Any]


@dataclass(frozen=True)
class HypervisorView:
    """The values that the response fields need in addition to a node's row.

    ``servers``: the servers of each host, None if the request does not list servers. ``uptimes``: the output of
    uptime(1) by host.
    """

    version: int
    instance_name_template: str
    servers: Mapping[str, Sequence[Row]] | None = None
    uptimes: Mapping[str, str] = field(default_factory=dict)


def _cpu_info(row: Row, viewer: HypervisorView) -> Any:
    try:
        return json.loads(row['cpu_info'] or '{}')
    except ValueError:
        return {}


def _service(row: Row, viewer: HypervisorView) -> dict[str, Any]:
    service = row['service']
    return {
        'host': row['host'],
        'id': service['uuid'] if viewer.version >= 53 else service['id'],
        'disabled_reason': service['disabled_reason'],
    }


def _servers(row: Row, viewer: HypervisorView) -> Any:
    if viewer.servers is None:
        return ABSENT
    found = [
        {'name': instance_name(viewer.instance_name_template, server), 'uuid': server['uuid']}
        for server in viewer.servers.get(row['host'], ())
    ]
    # Before 2.75 a hypervisor without servers has no field 'servers' in the response.
    return found if found or viewer.version >= 75 else ABSENT


def _number(name: str) -> Field:
    return Field(name, column(name), until=87, kinds=_WHOLE)


FIELDS = Fields(
    Field('id', column('id'), until=52),
    Field('id', column('uuid'), since=53),
    Field('hypervisor_hostname', column('hypervisor_hostname')),
    Field('state', lambda row, viewer: 'up' if row['service']['up'] else 'down'),
    Field('status', lambda row, viewer: 'disabled' if row['service']['disabled'] else 'enabled'),
    Field('hypervisor_type', column('hypervisor_type'), kinds=_WHOLE),
    Field('hypervisor_version', column('hypervisor_version'), kinds=_WHOLE),
    Field('host_ip', lambda row, viewer: None if row['host_ip'] is None else str(row['host_ip']), kinds=_WHOLE),
    Field('service', _service, kinds=_WHOLE),
    *(
        _number(name)
        for name in (
            'vcpus',
            'memory_mb',
            'local_gb',
            'vcpus_used',
            'memory_mb_used',
            'local_gb_used',
            'free_ram_mb',
            'free_disk_gb',
            'current_workload',
            'running_vms',
            'disk_available_least',
        )
    ),
    Field('cpu_info', column('cpu_info', ''), until=27, kinds=_WHOLE),
    Field('cpu_info', _cpu_info, since=28, until=87, kinds=_WHOLE),
    Field('uptime', lambda row, viewer: viewer.uptimes.get(row['host']), since=88, kinds=_WHOLE),
    Field('servers', _servers),
)


def _body(row: Row, viewer: HypervisorView, kind: str) -> dict[str, Any]:
    """Return the response body of a compute node. ``kind`` is WHOLE or BRIEF.

    ``row`` is the row of the node, and its additional member ``service`` is the row of the service.
    """
    return FIELDS.render(row, viewer, viewer.version, kind)


# --- handlers of requests --------------------------------------------------------------------------------------------
PAGED_SINCE, UUIDS_SINCE, UPTIME_SINCE = 33, 53, 88


def index(call: Call) -> Any:
    """List hypervisors (``GET /os-hypervisors``)."""
    return _list(call, BRIEF)


def detail(call: Call) -> Any:
    """List hypervisors with details (``GET /os-hypervisors/detail``)."""
    return _list(call, WHOLE)


def _list(call: Call, kind: str) -> Any:
    pattern = call.one('hypervisor_hostname_pattern') if call.version >= UUIDS_SINCE else None
    paged = call.version >= PAGED_SINCE
    marker = call.one('marker') if paged else None
    if pattern is not None and ('limit' in call.query or marker is not None):
        raise Invalid('Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not supported.')
    if marker is not None and call.version >= UUIDS_SINCE and not uuidutils.is_uuid_like(marker):
        raise Invalid(f'marker [{marker}] not found')
    limit = call.limit() if paged else None
    nodes = (
        []
        if limit == 0
        else hosts.list_nodes(
            call.backend, pattern=pattern, limit=limit, marker=marker, marker_is_number=call.version < UUIDS_SINCE
        )
    )
    if pattern is not None and not nodes:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    body: dict[str, Any] = {'hypervisors': _bodies(call, nodes, kind, _with_servers(call))}
    if paged and nodes and len(nodes) == limit:
        last = nodes[-1].row
        path = 'os-hypervisors/detail' if kind == WHOLE else 'os-hypervisors'
        body['hypervisors_links'] = call.links.next(
            path, call.query, last['uuid'] if call.version >= UUIDS_SINCE else last['id']
        )
    return body


def _with_servers(call: Call) -> bool:
    return call.version >= UUIDS_SINCE and strutils.bool_from_string(call.one('with_servers') or False)


def _bodies(call: Call, nodes: list[hosts.InCell], kind: str, with_servers: bool) -> list[dict[str, Any]]:
    servers = hosts.servers_of(call.backend, nodes) if with_servers else None
    told = kind == WHOLE and call.version >= UPTIME_SINCE
    uptimes = hosts.uptimes(call.backend, call.ctxt, nodes) if told else {}
    viewer = HypervisorView(call.version, call.backend.options.instance_name_template, servers, uptimes)
    return [_body(node.row, viewer, kind) for node in nodes]


def show(call: Call) -> Any:
    """Return a hypervisor (``GET /os-hypervisors/{hypervisor_id}``)."""
    return {'hypervisor': _bodies(call, [_find(call)], WHOLE, _with_servers(call))[0]}


def _find(call: Call) -> hosts.InCell:
    identifier = call.path['hypervisor_id']
    if call.version >= UUIDS_SINCE and not uuidutils.is_uuid_like(identifier):
        raise Invalid(f'Invalid uuid {identifier}')
    return hosts.find_node(call.backend, identifier, call.version < UUIDS_SINCE)


def uptime(call: Call) -> Any:
    """Return a hypervisor with the uptime of its host (``GET /os-hypervisors/{hypervisor_id}/uptime``)."""
    node = _find(call)
    told = hosts.uptime(call.backend, call.ctxt, node)
    (body,) = _bodies(call, [node], BRIEF, False)
    return {'hypervisor': {**body, 'uptime': told}}


def _matching(call: Call) -> list[hosts.InCell]:
    pattern = call.path['hypervisor_hostname_pattern']
    nodes = hosts.list_nodes(call.backend, pattern=pattern)
    if not nodes:
        raise NotFound(f"No hypervisor matching '{pattern}' could be found.")
    return nodes


def search(call: Call) -> Any:
    """List the hypervisors whose name matches (``GET /os-hypervisors/{hypervisor_hostname_pattern}/search``)."""
    return {'hypervisors': _bodies(call, _matching(call), BRIEF, False)}


def servers(call: Call) -> Any:
    """List matching hypervisors with their servers (``GET /os-hypervisors/{hypervisor_hostname_pattern}/servers``)."""
    return {'hypervisors': _bodies(call, _matching(call), BRIEF, True)}


def statistics(call: Call) -> Any:
    """Return sums over all hypervisors (``GET /os-hypervisors/statistics``)."""
    return {'hypervisor_statistics': hosts.statistics(call.backend)}


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = '/os-hypervisors', '/os-hypervisors/{hypervisor_id}'
_PATTERN = '/os-hypervisors/{hypervisor_hostname_pattern}'
ROUTES = (
    Route('GET', _ALL, index, LIST, query=INDEX_QUERY),
    Route('GET', f'{_ALL}/detail', detail, DETAIL, query=INDEX_QUERY),
    Route('GET', f'{_ALL}/statistics', statistics, STATISTICS, query=NO_QUERY, until=87),
    Route('GET', _ONE, show, SHOW, query=SHOW_QUERY),
    Route('GET', f'{_ONE}/uptime', uptime, UPTIME, query=NO_QUERY, until=87),
    Route('GET', f'{_PATTERN}/search', search, SEARCH, query=NO_QUERY, until=52),
    Route('GET', f'{_PATTERN}/servers', servers, SERVERS, query=NO_QUERY, until=52),
)
