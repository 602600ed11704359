"""Routes of API resources that Nova removed, used by ``kilonova.api.routes``.

Nova answers requests for some removed resources with 410 in every microversion (``PATHS``, ``ACTIONS``), and requests
for others with 404 from a certain microversion on (``REMOVED``). Kilonova gives the same answers. Any other method on
such a path gets 404, like a path that no route has.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.schemas.base import QuerySchema
from kilonova.api.versions import MAX
from kilonova.api.wsgi import ANYBODY, Call, NoRoute, Route
from kilonova.errors import KilonovaError, NotFound


class Gone(KilonovaError):
    """Error 410: the requested resource was removed from the API."""

    msg_fmt = 'This resource is no longer available. No forwarding address is given.'
    code = 410


RULES = ()
# The query schema of the routes in this module: unknown parameters are never refused.
# All routes in this module respond with 404 or 410, whatever the query.
ANY = QuerySchema.of(strict_since=MAX + 1)

PATHS: tuple[tuple[str, str], ...] = (
    ('GET', '/os-agents'),
    ('POST', '/os-agents'),
    ('PUT', '/os-agents/{id}'),
    ('DELETE', '/os-agents/{id}'),
    ('GET', '/os-cells'),
    ('POST', '/os-cells'),
    ('GET', '/os-cells/detail'),
    ('GET', '/os-cells/info'),
    ('GET', '/os-cells/capacities'),
    ('POST', '/os-cells/sync_instances'),
    ('GET', '/os-cells/{id}'),
    ('PUT', '/os-cells/{id}'),
    ('DELETE', '/os-cells/{id}'),
    ('GET', '/os-cells/{id}/capacities'),
    ('POST', '/os-certificates'),
    ('GET', '/os-certificates/{id}'),
    ('GET', '/os-cloudpipe'),
    ('POST', '/os-cloudpipe'),
    ('PUT', '/os-cloudpipe/{id}'),
    ('GET', '/os-fixed-ips/{id}'),
    ('POST', '/os-fixed-ips/{id}/action'),
    ('GET', '/os-floating-ip-dns'),
    ('PUT', '/os-floating-ip-dns/{id}'),
    ('DELETE', '/os-floating-ip-dns/{id}'),
    ('GET', '/os-floating-ip-dns/{id}/entries/{name}'),
    ('PUT', '/os-floating-ip-dns/{id}/entries/{name}'),
    ('DELETE', '/os-floating-ip-dns/{id}/entries/{name}'),
    ('GET', '/os-floating-ips-bulk'),
    ('POST', '/os-floating-ips-bulk'),
    ('GET', '/os-floating-ips-bulk/{id}'),
    ('PUT', '/os-floating-ips-bulk/{id}'),
    ('GET', '/os-fping'),
    ('GET', '/os-fping/{id}'),
    ('GET', '/os-security-group-default-rules'),
    ('POST', '/os-security-group-default-rules'),
    ('GET', '/os-security-group-default-rules/{id}'),
    ('DELETE', '/os-security-group-default-rules/{id}'),
    ('POST', '/os-networks'),
    ('POST', '/os-networks/add'),
    ('DELETE', '/os-networks/{id}'),
    ('POST', '/os-tenant-networks'),
    ('DELETE', '/os-tenant-networks/{id}'),
    ('GET', '/servers/{id}/consoles'),
    ('POST', '/servers/{id}/consoles'),
    ('GET', '/servers/{id}/consoles/{console_id}'),
    ('DELETE', '/servers/{id}/consoles/{console_id}'),
    ('GET', '/servers/{id}/os-virtual-interfaces'),
)
# Pairs of an action path and the key that names the action in the request body.
ACTIONS: tuple[tuple[str, str], ...] = (
    ('/servers/{server_id}/action', 'resetNetwork'),
    *(
        ('/os-networks/{id}/action', key)
        for key in ('disassociate', 'disassociate_host', 'disassociate_project', 'associate_host')
    ),
)
# Resources as (method, path, N): from microversion 2.N on, Nova has removed them and responds with 404.
# Kilonova never had these resources, so it responds with 404 in older microversions, too.
REMOVED: tuple[tuple[str, str, int], ...] = (
    ('GET', '/os-baremetal-nodes', 36),
    ('GET', '/os-baremetal-nodes/{id}', 36),
)


def answer(call: Call) -> Any:
    """Raise Gone (410) for every request with a valid token. The ids in the path are not looked up."""
    raise Gone


def absent(call: Call) -> Any:
    """Raise NoRoute (404): this microversion does not have the resource."""
    raise NoRoute


def unknown_action(call: Call) -> Any:
    """Raise NotFound (404) for ``PUT /os-services/{action}`` with an action that the microversion does not have.

    Until microversion 2.52 the last part of this path is an action: enable, disable, disable-log-reason or (since 2.11)
    force-down.
    """
    raise NotFound('Unknown action')


ROUTES = (
    *(Route(method, path, answer, ANYBODY, query=ANY, status=410) for method, path in PATHS),
    *(Route('POST', path, answer, ANYBODY, query=ANY, status=410, action=key) for path, key in ACTIONS),
    *(Route(method, path, absent, ANYBODY, query=ANY, status=404, since=since) for method, path, since in REMOVED),
)
