"""Bodies of limits (rest-api.md §2.10)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.services.quota import Limits
from kilonova.api.views.base import Field, Fields, column


def _used(name: str) -> Any:
    return lambda row, used: used[name]


_LIMITS = Fields(
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


def absolute(limits: Limits, used: Mapping[str, int], version: int) -> dict[str, int]:
    """The body of GET /limits: what a project may have, and what it uses."""
    return _LIMITS.render(limits, used, version)
