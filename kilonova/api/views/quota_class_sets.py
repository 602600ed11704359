"""Bodies of quota classes (rest-api.md §2.10)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.services.quota import NETWORK
from kilonova.api.views.base import Field, Fields, column

_FIELDS = Fields(
    *(Field(name, column(name)) for name in ('cores', 'instances', 'ram', 'key_pairs', 'metadata_items')),
    *(Field(name, column(name), since=50) for name in ('server_groups', 'server_group_members')),
    *(Field(name, column(name), until=49) for name in NETWORK),
    Field('injected_files', column('injected_files'), until=56),
    Field('injected_file_content_bytes', column('injected_file_content_bytes'), until=56),
    Field('injected_file_path_bytes', column('injected_file_path_length'), until=56),
)


def quota_class_set(limits: Mapping[str, int], version: int) -> dict[str, Any]:
    """Limits by resource."""
    return _FIELDS.render(limits, None, version)
