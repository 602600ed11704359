"""Bodies of live migrations that are under way (rest-api.md §2.3)."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.views.base import Field, Fields, column, micro

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """``hosts``: whether the caller sees from where to where."""

    hosts: bool


def _host(name: str) -> Callable[[Row, Look], Any]:
    return lambda row, look: row[name] if look.hosts else None


def _bytes(what: str, part: str) -> Field:
    return Field(f'{what}_{part}_bytes', column(f'{what}_{part}'))


FIELDS = Fields(
    Field('created_at', lambda row, look: micro(row['created_at'])),
    Field('dest_compute', _host('dest_compute')),
    Field('dest_host', _host('dest_host')),
    Field('dest_node', _host('dest_node')),
    *(_bytes('disk', part) for part in ('processed', 'remaining', 'total')),
    Field('id', column('id')),
    *(_bytes('memory', part) for part in ('processed', 'remaining', 'total')),
    Field('server_uuid', column('instance_uuid')),
    Field('source_compute', _host('source_compute')),
    Field('source_node', _host('source_node')),
    Field('status', column('status')),
    Field('updated_at', lambda row, look: micro(row['updated_at'])),
    Field('uuid', column('uuid'), since=59),
    Field('user_id', column('user_id'), since=80),
    Field('project_id', column('project_id'), since=80),
)
