"""HostMapping: the cell of a host (API table ``host_mappings``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class HostMapping(KilonovaObject):
    """From a row that holds its ``cell_mapping`` object."""

    VERSION = '1.0'
    fields = {
        'id': fields.IntegerField(),
        'host': fields.StringField(),
        'cell_mapping': fields.ObjectField('CellMapping'),
    }


@register
class HostMappingList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('HostMapping')}
