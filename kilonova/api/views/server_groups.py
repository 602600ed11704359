"""Bodies of server groups (rest-api.md §2.9)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.base import Field, Fields, column

FIELDS = Fields(
    Field('id', column('uuid')),
    Field('name', column('name')),
    Field('policies', lambda row, look: [row['policy']], until=63),
    Field('policy', column('policy'), since=64),
    Field('rules', lambda row, look: {name: int(value) for name, value in row['rules'].items()}, since=64),
    Field('members', column('members')),
    Field('metadata', lambda row, look: {}, until=63),
    Field('project_id', column('project_id'), since=13),
    Field('user_id', column('user_id'), since=13),
)


def server_group(row: Mapping[str, Any], version: int) -> dict[str, Any]:
    """One group."""
    return FIELDS.render(row, None, version)
