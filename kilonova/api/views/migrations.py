"""Bodies of migrations (rest-api.md §2.11)."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.views.base import ABSENT, Field, Fields, column, micro

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """``hosts``: whether the caller sees where servers come from and go to; ``links``: wsgi.Links."""

    hosts: bool
    links: Any = None


# Live migrations that can still be looked at, forced or aborted below their server.
_UNDER_WAY = frozenset(('queued', 'preparing', 'running', 'post-migrating'))


def _links(row: Row, look: Look) -> Any:
    if row['migration_type'] != 'live-migration' or row['status'] not in _UNDER_WAY:
        return ABSENT
    return look.links.of(f"servers/{row['instance_uuid']}/migrations", row['id'])


def _host(name: str) -> Callable[[Row, Look], Any]:
    return lambda row, look: row[name] if look.hosts else None


FIELDS = Fields(
    Field('created_at', lambda row, look: micro(row['created_at'])),
    Field('dest_compute', _host('dest_compute')),
    Field('dest_host', _host('dest_host')),
    Field('dest_node', _host('dest_node')),
    Field('id', column('id')),
    Field('instance_uuid', column('instance_uuid')),
    Field('new_instance_type_id', column('new_instance_type_id')),
    Field('old_instance_type_id', column('old_instance_type_id')),
    Field('source_compute', _host('source_compute')),
    Field('source_node', _host('source_node')),
    Field('status', column('status')),
    Field('updated_at', lambda row, look: micro(row['updated_at'])),
    Field('migration_type', column('migration_type'), since=23),
    Field('links', _links, since=23),
    Field('uuid', column('uuid'), since=59),
    Field('user_id', column('user_id'), since=80),
    Field('project_id', column('project_id'), since=80),
)
