"""Bodies of quotas (rest-api.md §2.10)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.services.quota import NETWORK, Limits
from kilonova.api.views.base import Field, Fields, column

_FIELDS = Fields(
    *(Field(name, column(name)) for name in ('cores', 'instances', 'ram', 'key_pairs', 'metadata_items',
                                             'server_groups', 'server_group_members')),
    *(Field(name, column(name), until=35) for name in NETWORK),
    Field('injected_files', column('injected_files'), until=56),
    Field('injected_file_content_bytes', column('injected_file_content_bytes'), until=56),
    Field('injected_file_path_bytes', column('injected_file_path_length'), until=56),
)


def quota_set(limits: Limits, version: int) -> dict[str, Any]:
    """Limits by resource."""
    return _FIELDS.render(limits, None, version)


def quota_detail(limits: Limits, used: Mapping[str, int], version: int) -> dict[str, Any]:
    """The same with what is used of each; nothing is reserved."""
    rows = {name: {'limit': limit, 'in_use': used.get(name, 0), 'reserved': 0} for name, limit in limits.items()}
    return _FIELDS.render(rows, None, version)
