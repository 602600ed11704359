"""The resource ``/limits``: the quota limits of a project, and the project's current usage of the limited resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.fields import Field, Fields, column
from kilonova.api.rules import ADMIN, ANY, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Prop, QuerySchema
from kilonova.api.services import quota
from kilonova.api.services.quota import UserLimits
from kilonova.api.wsgi import Call, Route

SHOW = f'{PREFIX}limits'
OTHER_PROJECT = f'{PREFIX}limits:other_project'
RULES = (
    rule(SHOW, ANY, "Show the limits of the caller's project."),
    rule(OTHER_PROJECT, ADMIN, 'Show the limits of the project that the request names.'),
)

# There are no quota reservations any more: the parameter ``reserved`` is accepted and has no effect.
QUERY = QuerySchema.of(Prop('tenant_id', t.ANY_TEXT), Prop('reserved', t.ANY_TEXT))


def _used(name: str) -> Any:
    return lambda row, used: used[name]


_FIELDS = Fields(
    Field('maxTotalInstances', column('instances')),
    Field('maxTotalCores', column('cores')),
    Field('maxTotalRAMSize', column('ram')),
    Field('maxTotalKeypairs', column('key_pairs')),
    Field('maxServerMeta', column('metadata_items')),
    Field('maxServerGroups', column('server_groups')),
    Field('maxServerGroupMembers', column('server_group_members')),
    Field('maxImageMeta', column('metadata_items'), until=38),
    Field('maxPersonality', column('injected_files'), until=56),
    Field('maxPersonalitySize', column('injected_file_content_bytes'), until=56),
    Field('maxSecurityGroups', column('security_groups'), until=35),
    Field('maxSecurityGroupRules', column('security_group_rules'), until=35),
    Field('maxTotalFloatingIps', column('floating_ips'), until=35),
    Field('totalInstancesUsed', _used('instances')),
    Field('totalCoresUsed', _used('cores')),
    Field('totalRAMUsed', _used('ram')),
    Field('totalServerGroupsUsed', _used('server_groups')),
    Field('totalSecurityGroupsUsed', lambda row, used: 0, until=35),
    Field('totalFloatingIpsUsed', lambda row, used: 0, until=35),
)


def _body(limits: UserLimits, used: Mapping[str, int], version: int) -> dict[str, int]:
    """Return the body of ``GET /limits``: the project's limits and its usage."""
    return _FIELDS.render(limits, used, version)


def show(call: Call) -> Any:
    """Return the limits of the caller's project, or of the project ``tenant_id`` (``GET /limits``).

    A request with the parameter ``tenant_id`` needs the policy rule OTHER_PROJECT. As in Nova, this is also true if
    ``tenant_id`` is the caller's own project.
    """
    named = call.one('tenant_id')
    project_id = named or call.ctxt.project_id
    if named:
        call.authorise(OTHER_PROJECT, {'project_id': project_id, 'user_id': call.ctxt.user_id})
    used = quota.usage_and_groups(call.backend, project_id).shared
    body = _body(quota.limits(call.backend, project_id), used, call.version)
    return {'limits': {'rate': [], 'absolute': body}}


ROUTES = (Route('GET', '/limits', show, SHOW, query=QUERY, asks=(OTHER_PROJECT,)),)
