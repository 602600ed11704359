"""All routes of the API, collected from the modules of the resources. ``make routes`` prints the tables.

``ROUTES`` are the routes of Nova's API, below /v2.1. ``OWN_ROUTES`` are the routes of Kilonova's own API, below
``versions.OWN_PATH``. A request of Nova's API that Kilonova does not implement has no route.

Each resource is a module or a package with two tuples: ``ROUTES``, and ``RULES`` with the policy rules of its routes.
The order of the routes does not matter. Actions of one resource have the same path: the key in the request's body
selects the route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kilonova.api import versions
from kilonova.api.own import device_history, devices, metrics
from kilonova.api.v2 import (
    aggregates,
    assisted_volume_snapshots,
    availability_zones,
    console_output,
    create_backup,
    create_image,
    deferred_delete,
    evacuate,
    extensions,
    flavors,
    gone,
    hypervisors,
    instance_actions,
    instance_usage_audit_log,
    interfaces,
    ips,
    keypairs,
    limits,
    lock_server,
    migrations,
    quota_class_sets,
    quota_sets,
    remote_consoles,
    rescue,
    security_groups,
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
    shelve,
    simple_tenant_usage,
    volume_attachments,
)
from kilonova.api.v2.legacy import fixed_ips, floating_ips, images, networks, os_hosts, snapshots, volumes
from kilonova.api.wsgi import SERVER, Route

# The sample policy file lists the rules in this order.
NOUNS = (
    servers,
    server_actions,
    instance_actions,
    flavors,
    services,
    hypervisors,
    migrations,
    aggregates,
    availability_zones,
    limits,
    quota_sets,
    os_hosts,
    extensions,
    create_image,
    create_backup,
    deferred_delete,
    server_metadata,
    server_tags,
    ips,
    interfaces,
    security_groups,
    volume_attachments,
    server_topology,
    server_diagnostics,
    server_password,
    console_output,
    remote_consoles,
    server_migrations,
    lock_server,
    rescue,
    shelve,
    evacuate,
    server_external_events,
    server_groups,
    keypairs,
    quota_class_sets,
    simple_tenant_usage,
    instance_usage_audit_log,
    images,
    volumes,
    snapshots,
    assisted_volume_snapshots,
    networks,
    floating_ips,
    fixed_ips,
    gone,
)
OWN_NOUNS = (devices, device_history, metrics)
RULES = tuple(rule for noun in (*NOUNS, *OWN_NOUNS) for rule in noun.RULES)
_ROWS: tuple[Route, ...] = tuple(row for noun in NOUNS for row in noun.ROUTES)
# The routes of the path /os-volumes_boot, which is another name of the path /servers until microversion 2.102.
# Nova once needed the path /os-volumes_boot for servers that boot from volumes.
_SECOND = tuple(
    replace(route, path=route.path.replace('/servers', '/os-volumes_boot', 1), until=min(route.until, 102))
    for route in _ROWS
    if route.since <= 102 and route.path in ('/servers', '/servers/detail', SERVER, f'{SERVER}/action')
)
ROUTES = _ROWS + _SECOND
OWN_ROUTES: tuple[Route, ...] = tuple(row for noun in OWN_NOUNS for row in noun.ROUTES)
# Kilonova's own routes with their full paths, for ``operations`` and ``own_rows``.
_OWN_ROWS = tuple(replace(route, path=versions.OWN_PATH + route.path) for route in OWN_ROUTES)


def operations(rule: str) -> list[tuple[str, str]]:
    """Return the API requests that are checked against the policy rule with the name ``rule``.

    Each request is a pair like ('POST', '/servers/{server_id}/action (os-start)'). First come the requests that always
    need the rule (``Route.policy``). Then come the requests that need the rule only with certain parameters or for
    certain response fields (``Route.asks``). The old paths /os-volumes_boot are left out.
    """
    asked = [route for route in (*_ROWS, *_OWN_ROWS) if route.policy == rule]
    found = [*asked, *(route for route in (*_ROWS, *_OWN_ROWS) if rule in route.asks)]
    return list(
        dict.fromkeys(
            (route.method, f'{route.path} ({route.action})' if route.action else route.path) for route in found
        )
    )


HEADER = ('method', 'path below /v2.1', 'action', 'success', 'versions', 'rule', 'handler')


def rows() -> list[tuple[str, ...]]:
    """Return the table of Nova's routes as text cells, sorted by path.

    ``HEADER`` names the columns. ``make routes`` and the documentation show the table.
    """
    return [
        (
            route.method,
            route.path,
            route.action or '',
            str(route.status),
            _window(route),
            route.policy or 'any token',
            _name(route.handler),
        )
        for route in sorted(ROUTES, key=lambda route: (route.path, route.action or '', route.method, route.since))
    ]


OWN_HEADER = ('method', 'path', 'success', 'rule', 'handler')


def own_rows() -> list[tuple[str, ...]]:
    """Return the table of Kilonova's own routes as text cells. ``OWN_HEADER`` names the columns."""
    return [
        (route.method, route.path, str(route.status), route.policy or 'any token', _name(route.handler))
        for route in sorted(_OWN_ROWS, key=lambda route: (route.path, route.method))
    ]


def _window(route: Route) -> str:
    """Return the microversions of a route as text, such as '2.26 to 2.104'."""
    return f'{versions.text(route.since)} to {versions.text(route.until)}'


def _name(handler: Callable[..., Any]) -> str:
    """Return the name of a handler with its module, such as 'lock_server.lock'."""
    module = handler.__module__.removeprefix('kilonova.api.v2.').removeprefix('kilonova.api.own.')
    return f'{module}.{handler.__name__}'


def text() -> str:
    """Return the two route tables as text in columns."""
    return f'{_columns([HEADER, *rows()])}\n\n{_columns([OWN_HEADER, *own_rows()])}'


def _columns(table: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return '\n'.join(
        '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
