"""Bodies of limits and quotas (rest-api.md §2.10)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.base import Field, Fields

# Quotas of a network service that never belonged to this cloud: what the field shows for them.
_NETWORK = {'fixed_ips': -1, 'floating_ips': 10, 'security_groups': 10, 'security_group_rules': 20}


def _quota(name: str) -> Any:
    return lambda row, look: row[name]


def _network(name: str) -> Any:
    return lambda row, look: row.get(name, look(_NETWORK[name]))


QUOTAS = Fields(
    *(Field(name, _quota(name)) for name in ('cores', 'instances', 'ram', 'key_pairs', 'metadata_items',
                                             'server_groups', 'server_group_members')),
    *(Field(name, _network(name), until=35) for name in _NETWORK),
    Field('injected_files', _quota('injected_files'), until=56),
    Field('injected_file_content_bytes', _quota('injected_file_content_bytes'), until=56),
    Field('injected_file_path_bytes', _quota('injected_file_path_length'), until=56),
)

_LIMITS = Fields(
    Field('maxTotalInstances', _quota('instances')),
    Field('maxTotalCores', _quota('cores')),
    Field('maxTotalRAMSize', _quota('ram')),
    Field('maxTotalKeypairs', _quota('key_pairs')),
    Field('maxServerMeta', _quota('metadata_items')),
    Field('maxServerGroups', _quota('server_groups')),
    Field('maxServerGroupMembers', _quota('server_group_members')),
    Field('maxImageMeta', _quota('metadata_items'), until=38),
    Field('maxPersonality', _quota('injected_files'), until=56),
    Field('maxPersonalitySize', _quota('injected_file_content_bytes'), until=56),
    Field('maxSecurityGroups', lambda row, look: _NETWORK['security_groups'], until=35),
    Field('maxSecurityGroupRules', lambda row, look: _NETWORK['security_group_rules'], until=35),
    Field('maxTotalFloatingIps', lambda row, look: _NETWORK['floating_ips'], until=35),
    Field('totalInstancesUsed', lambda row, look: look['instances']),
    Field('totalCoresUsed', lambda row, look: look['cores']),
    Field('totalRAMUsed', lambda row, look: look['ram']),
    Field('totalServerGroupsUsed', lambda row, look: 0),
    Field('totalSecurityGroupsUsed', lambda row, look: 0, until=35),
    Field('totalFloatingIpsUsed', lambda row, look: 0, until=35),
)


def absolute(limits: Mapping[str, int], usage: Mapping[str, int], version: int) -> dict[str, int]:
    """The body of GET /limits."""
    return _LIMITS.render(limits, usage, version)


def quota_set(limits: Mapping[str, int], version: int, project_id: str) -> dict[str, Any]:
    """Limits by resource, and whose they are."""
    return {**QUOTAS.render(limits, lambda limit: limit, version), 'id': project_id}


def quota_detail(limits: Mapping[str, int], usage: Mapping[str, int], version: int, project_id: str) -> dict[str, Any]:
    """The same with what is used of each."""
    def whole(limit: int, used: int = 0) -> dict[str, int]:
        return {'limit': limit, 'in_use': used, 'reserved': 0}
    rows = {name: whole(limit, usage.get(name, 0)) for name, limit in limits.items()}
    return {**QUOTAS.render(rows, whole, version), 'id': project_id}
