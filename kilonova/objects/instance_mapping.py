"""InstanceMapping: the cell of a server (API table ``instance_mappings``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register


@register
class InstanceMapping(KilonovaObject):
    """``cell_mapping`` is None until a cell was chosen."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'cell_mapping': fields.ObjectField('CellMapping', nullable=True),
        'project_id': fields.StringField(),
        'user_id': fields.StringField(),
        'queued_for_delete': fields.BooleanField(default=False),
    }


@register
class InstanceMappingList(ListBase, KilonovaObject):
    VERSION = '1.3'
    fields = {'objects': fields.ListOfObjectsField('InstanceMapping')}
