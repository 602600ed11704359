"""What the field took out: for good, which is answered with 410 in every version, or from a version
on, which is answered with 404.

Only the methods that are named here; another one on the same path doesn't exist, as any path that nobody knows.
"""
from __future__ import annotations

from typing import Any

from kilonova.api.schemas.base import Query
from kilonova.api.versions import MAX
from kilonova.api.wsgi import ANYBODY, Call, NoRoute, Route
from kilonova.errors import KilonovaError, NotFound


class Gone(KilonovaError):
    msg_fmt = 'This resource is no longer available. No forwarding address is given.'
    code = 410
    safe = True
RULES = ()
# Whatever is asked for, the answer is the same.
ANY = Query.of(strict_since=MAX + 1)

PATHS: tuple[tuple[str, str], ...] = (
    ('GET', '/os-agents'), ('POST', '/os-agents'), ('PUT', '/os-agents/{id}'), ('DELETE', '/os-agents/{id}'),
    ('GET', '/os-cells'), ('POST', '/os-cells'), ('GET', '/os-cells/detail'), ('GET', '/os-cells/info'),
    ('GET', '/os-cells/capacities'), ('POST', '/os-cells/sync_instances'), ('GET', '/os-cells/{id}'),
    ('PUT', '/os-cells/{id}'), ('DELETE', '/os-cells/{id}'), ('GET', '/os-cells/{id}/capacities'),
    ('POST', '/os-certificates'), ('GET', '/os-certificates/{id}'),
    ('GET', '/os-cloudpipe'), ('POST', '/os-cloudpipe'), ('PUT', '/os-cloudpipe/{id}'),
    ('GET', '/os-fixed-ips/{id}'), ('POST', '/os-fixed-ips/{id}/action'),
    ('GET', '/os-floating-ip-dns'), ('PUT', '/os-floating-ip-dns/{id}'), ('DELETE', '/os-floating-ip-dns/{id}'),
    ('GET', '/os-floating-ip-dns/{id}/entries/{name}'), ('PUT', '/os-floating-ip-dns/{id}/entries/{name}'),
    ('DELETE', '/os-floating-ip-dns/{id}/entries/{name}'),
    ('GET', '/os-floating-ips-bulk'), ('POST', '/os-floating-ips-bulk'), ('GET', '/os-floating-ips-bulk/{id}'),
    ('PUT', '/os-floating-ips-bulk/{id}'),
    ('GET', '/os-fping'), ('GET', '/os-fping/{id}'),
    ('GET', '/os-security-group-default-rules'), ('POST', '/os-security-group-default-rules'),
    ('GET', '/os-security-group-default-rules/{id}'), ('DELETE', '/os-security-group-default-rules/{id}'),
    ('POST', '/os-networks'), ('POST', '/os-networks/add'), ('DELETE', '/os-networks/{id}'),
    ('POST', '/os-tenant-networks'), ('DELETE', '/os-tenant-networks/{id}'),
    ('GET', '/servers/{id}/consoles'), ('POST', '/servers/{id}/consoles'),
    ('GET', '/servers/{id}/consoles/{console_id}'), ('DELETE', '/servers/{id}/consoles/{console_id}'),
    ('GET', '/servers/{id}/os-virtual-interfaces'),
)
# Paths of actions, and the keys of the bodies.
ACTIONS: tuple[tuple[str, str], ...] = (
    ('/servers/{server_id}/action', 'resetNetwork'),
    *(('/os-networks/{id}/action', key) for key in (
        'disassociate', 'disassociate_host', 'disassociate_project', 'associate_host')),
)
# What was asked for here until a version, and isn't built: (method, path, version that took it out). Before that
# version the answer is the same.
REMOVED: tuple[tuple[str, str, int], ...] = (
    ('GET', '/os-baremetal-nodes', 36), ('GET', '/os-baremetal-nodes/{id}', 36))


def answer(call: Call) -> Any:
    """410 to everybody with a token, whether the things in the path exist or not."""
    raise Gone


def absent(call: Call) -> Any:
    """404 in the form of a fault."""
    raise NoRoute


def unknown_action(call: Call) -> Any:
    """PUT /os-services/{verb} until 2.52, for verbs that there aren't, or not yet."""
    raise NotFound('Unknown action')


ROUTES = (
    *(Route(method, path, answer, ANYBODY, query=ANY, status=410) for method, path in PATHS),
    *(Route('POST', path, answer, ANYBODY, query=ANY, status=410, action=key) for path, key in ACTIONS),
    *(Route(method, path, absent, ANYBODY, query=ANY, status=404, since=since) for method, path, since in REMOVED),
)
