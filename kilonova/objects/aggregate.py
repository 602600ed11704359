"""Aggregate: hosts with common metadata (API tables ``aggregates``, ``aggregate_hosts``, ``aggregate_metadata``)."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class Aggregate(PersistentObject, KilonovaObject):
    """A host aggregate. It is made from a dict that contains the list ``hosts`` and the dict ``metadata``."""

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
        """The availability zone that the aggregate's metadata name for its hosts, or None if they name no zone."""
        return (self.metadata or {}).get('availability_zone')


@register
class AggregateList(ListBase, KilonovaObject):
    """A list of aggregates."""

    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('Aggregate')}
