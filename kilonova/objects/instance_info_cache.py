"""InstanceInfoCache: a server's networks as last seen (table ``instance_info_caches``)."""
from __future__ import annotations

from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, PersistentObject, register


@register
class InstanceInfoCache(PersistentObject, KilonovaObject):
    VERSION = '1.5'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'network_info': fields.NetworkModelField(nullable=True),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        values = {**row, 'deleted': bool(row.get('deleted')), 'network_info': row.get('network_info') or '[]'}
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))
