"""BuildRequest: a server that no cell holds yet (API table ``build_requests``)."""
from __future__ import annotations

from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, register
from kilonova.objects.instance import Instance
from kilonova.objects.instance_tables import BlockDeviceMappingList, TagList


@register
class BuildRequest(KilonovaObject):
    VERSION = '1.3'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'project_id': fields.StringField(),
        'instance': fields.ObjectField('Instance'),
        'block_device_mappings': fields.ObjectField('BlockDeviceMappingList'),
        'created_at': fields.DateTimeField(nullable=True),
        'updated_at': fields.DateTimeField(nullable=True),
        'tags': fields.ObjectField('TagList'),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """From a row of ``build_requests``; its three text columns are envelopes."""
        values = dict(row)
        instance = Instance.from_json(row['instance'], ctxt)
        if instance is not None and 'created_at' not in instance:
            instance.load((('created_at', row.get('created_at')),))
        values['instance'] = instance
        values['block_device_mappings'] = (BlockDeviceMappingList.from_json(row.get('block_device_mappings'), ctxt)
                                           or BlockDeviceMappingList(ctxt))
        values['tags'] = TagList.from_json(row.get('tags'), ctxt) or TagList(ctxt)
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))

    def to_row(self) -> dict[str, Any]:
        """Columns for an INSERT; the stored instance keeps no change marks."""
        return {'instance_uuid': self.instance_uuid, 'project_id': self.project_id,
                'instance': self.instance.to_json(),
                'block_device_mappings': self.block_device_mappings.to_json() if 'block_device_mappings' in self
                else None,
                'tags': self.tags.to_json() if 'tags' in self else None}


@register
class BuildRequestList(ListBase, KilonovaObject):
    VERSION = '1.0'
    fields = {'objects': fields.ListOfObjectsField('BuildRequest')}
