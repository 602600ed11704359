"""CellMapping: a cell's uuid, database and message queue (API table ``cell_mappings``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register

CELL0_UUID = '00000000-0000-0000-0000-000000000000'


@register
class CellMapping(KilonovaObject):
    VERSION = '1.1'
    uuid: str
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'name': fields.StringField(nullable=True),
        'transport_url': fields.StringField(),
        'database_connection': fields.StringField(),
        'disabled': fields.BooleanField(default=False),
    }

    def is_cell0(self) -> bool:
        """Whether this is where servers lie that never found a host."""
        return self.uuid == CELL0_UUID


@register
class CellMappingList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('CellMapping')}
