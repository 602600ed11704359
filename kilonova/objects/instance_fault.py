"""InstanceFault: the readable reason of a failure (table ``instance_faults``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class InstanceFault(PersistentObject, KilonovaObject):
    """``code`` is an HTTP status; ``details`` is for administrators (and for everybody at 500)."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'code': fields.IntegerField(),
        'message': fields.StringField(nullable=True),
        'details': fields.StringField(nullable=True),
        'host': fields.StringField(nullable=True),
    }


@register
class InstanceFaultList(ListBase, KilonovaObject):
    VERSION = '1.2'
    fields = {'objects': fields.ListOfObjectsField('InstanceFault')}
