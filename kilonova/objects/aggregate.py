"""Aggregate: hosts that share metadata (API tables ``aggregates``, ``aggregate_hosts``, ``aggregate_metadata``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class Aggregate(PersistentObject, KilonovaObject):
    """From a row that holds its ``hosts`` list and ``metadata`` dict."""

    VERSION = '1.3'
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'name': fields.StringField(),
        'hosts': fields.ListOfStringsField(nullable=True),
        'metadata': fields.DictOfStringsField(nullable=True),
    }

    @property
    def availability_zone(self) -> str | None:
        """The zone that the aggregate makes of its hosts."""
        return (self.metadata or {}).get('availability_zone')


@register
class AggregateList(ListBase, KilonovaObject):
    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('Aggregate')}
