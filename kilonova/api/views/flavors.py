"""Bodies of flavors (rest-api.md §2.4, §6)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.api.views.base import ABSENT, Field, Fields, column

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """``specs``: whether the caller may see extra specs."""

    links: Any
    version: int
    specs: bool


FIELDS = Fields(
    Field('id', column('flavorid')),
    Field('name', column('name')),
    Field('ram', column('memory_mb')),
    Field('disk', column('root_gb', 0)),
    Field('swap', lambda row, look: row['swap'] or '', until=74),
    Field('swap', column('swap', 0), since=75),
    Field('OS-FLV-EXT-DATA:ephemeral', column('ephemeral_gb', 0)),
    Field('OS-FLV-DISABLED:disabled', lambda row, look: bool(row['disabled']), until=101),
    Field('vcpus', column('vcpus')),
    Field('os-flavor-access:is_public', lambda row, look: bool(row['is_public'])),
    Field('rxtx_factor', lambda row, look: '' if row['rxtx_factor'] is None else row['rxtx_factor'], until=101),
    Field('links', lambda row, look: look.links.of('flavors', row['flavorid'])),
    Field('description', column('description'), since=55),
    Field('extra_specs', lambda row, look: row['extra_specs'] if look.specs else ABSENT, since=61),
)


def show(row: Row, look: Look) -> dict[str, Any]:
    """The whole body of a flavor."""
    return FIELDS.render(row, look, look.version)


def brief(row: Row, look: Look) -> dict[str, Any]:
    """An entry of a plain list."""
    body = {'id': row['flavorid'], 'name': row['name'], 'links': look.links.of('flavors', row['flavorid'])}
    return {**body, 'description': row['description']} if look.version >= 55 else body
