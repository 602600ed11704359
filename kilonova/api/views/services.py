"""Bodies of services (rest-api.md §2.8)."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.views.base import Field, Fields, column, micro

Row = Mapping[str, Any]


def _seen(row: Row, look: Any) -> str | None:
    seen = row['last_seen_up'] or row['updated_at'] or row['created_at']
    return micro(seen)


FIELDS = Fields(
    Field('id', column('id'), until=52),
    Field('id', column('uuid'), since=53),
    Field('binary', column('binary')),
    Field('host', column('host')),
    Field('zone', column('zone')),
    Field('status', lambda row, look: 'disabled' if row['disabled'] else 'enabled'),
    Field('state', lambda row, look: 'up' if row['up'] else 'down'),
    Field('updated_at', _seen),
    Field('disabled_reason', column('disabled_reason')),
    Field('forced_down', lambda row, look: bool(row['forced_down']), since=11),
)


def show(row: Row, version: int) -> dict[str, Any]:
    """The body of a service; its row has ``zone`` and ``up``."""
    return FIELDS.render(row, None, version)


def unknown(host: str) -> dict[str, Any]:
    """The compute service of a host whose cell doesn't answer (2.69)."""
    return {'binary': 'nova-compute', 'host': host, 'status': 'UNKNOWN'}
