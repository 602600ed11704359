"""Every route of the API, in ONE table: ``make routes`` prints it. What isn't built has no row.

A row: method, path, handler, policy; then what may be asked (``query``, ``body``), the status of success, and in which
versions it exists. Rows of actions share a path and differ by the key of their body.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kilonova.api import versions
from kilonova.api.policies import servers as p_servers
from kilonova.api.schemas import servers as s_servers
from kilonova.api.services.lookup import PARTIAL, VIEW, WORK
from kilonova.api.v2 import (
    aggregates,
    availability_zones,
    console_output,
    create_image,
    deferred_delete,
    extensions,
    flavors,
    gone,
    hypervisors,
    images,
    instance_actions,
    instance_usage_audit_log,
    ips,
    keypairs,
    limits,
    lock_server,
    migrations,
    os_hosts,
    quota_class_sets,
    quota_sets,
    server_actions,
    server_diagnostics,
    server_external_events,
    server_groups,
    server_metadata,
    server_migrations,
    server_password,
    server_tags,
    server_topology,
    servers,
    services,
    simple_tenant_usage,
)
from kilonova.api.wsgi import Route

_SERVER = '/servers/{server_id}'
# What of a server not everybody sees.
_SEEN = (p_servers.HOST_STATUS, p_servers.HOST_STATUS_UNKNOWN, p_servers.FLAVOR_EXTRA_SPECS,
         p_servers.EXTENDED_ATTRIBUTES)

# In the order of the sample of policies.
NOUNS = (server_actions, instance_actions, flavors, services, hypervisors, migrations, aggregates, availability_zones,
         limits, quota_sets, os_hosts, extensions, create_image, deferred_delete, server_metadata, server_tags, ips,
         server_topology, server_diagnostics, server_password, console_output, server_migrations, lock_server,
         server_external_events, server_groups, keypairs, quota_class_sets, simple_tenant_usage,
         instance_usage_audit_log, images, gone)
_ROWS: tuple[Route, ...] = (
    *(row for noun in NOUNS for row in noun.ROUTES),
    # servers
    Route('GET', _SERVER, servers.show, p_servers.SHOW, server=PARTIAL, asks=_SEEN),
    Route('GET', '/servers', servers.index, p_servers.INDEX, query=s_servers.INDEX,
          asks=(p_servers.INDEX_ALL, p_servers.ALL_FILTERS)),
    Route('GET', '/servers/detail', servers.detail, p_servers.DETAIL, query=s_servers.INDEX,
          asks=(p_servers.DETAIL_ALL, p_servers.ALL_FILTERS, *_SEEN)),
    Route('POST', '/servers', servers.create, p_servers.CREATE, body=s_servers.CREATE, status=202,
          asks=(p_servers.FORCED_HOST, p_servers.REQUESTED_DESTINATION, p_servers.ATTACH_VOLUME,
                p_servers.ATTACH_NETWORK, p_servers.TRUSTED_CERTS, p_servers.ZERO_DISK)),
    Route('PUT', _SERVER, servers.update, p_servers.UPDATE, body=s_servers.UPDATE, server=VIEW, asks=_SEEN),
    Route('DELETE', _SERVER, servers.delete, p_servers.DELETE, status=204, server=WORK),
)
# Until 2.102 servers had a second name, from when booting from volumes was an extension.
_SECOND = tuple(replace(route, path=route.path.replace('/servers', '/os-volumes_boot', 1), until=min(route.until, 102))
                for route in _ROWS if route.since <= 102
                and route.path in ('/servers', '/servers/detail', _SERVER, f'{_SERVER}/action'))
ROUTES = _ROWS + _SECOND


def operations(rule: str) -> list[tuple[str, str]]:
    """Which requests a rule is asked for, each as ('POST', '/servers/{server_id}/action (os-start)'): first those that
    it is the policy of. Second names of paths aren't told."""
    own = [route for route in _ROWS if route.policy == rule]
    found = [*own, *(route for route in _ROWS if rule in route.asks)]
    return list(dict.fromkeys((route.method, f'{route.path} ({route.action})' if route.action else route.path)
                              for route in found))


HEADER = ('method', 'path below /v2.1', 'action', 'success', 'versions', 'rule', 'handler')


def rows() -> list[tuple[str, ...]]:
    """The table as it is printed and as the documentation has it, sorted by path: ``HEADER`` names the columns."""
    return [(route.method, route.path, route.action or '', str(route.status), _window(route),
             route.policy or 'any token', _name(route.handler))
            for route in sorted(ROUTES, key=lambda route: (route.path, route.action or '', route.method, route.since))]


def _window(route: Route) -> str:
    """'2.26 to 2.104'."""
    return f'{versions.text(route.since)} to {versions.text(route.until)}'


def _name(handler: Callable[..., Any]) -> str:
    """'lock_server.lock'."""
    return f'{handler.__module__.removeprefix("kilonova.api.v2.")}.{handler.__name__}'


def text() -> str:
    """The table in columns."""
    table = [HEADER, *rows()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                     for row in table)
