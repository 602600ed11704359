"""InstanceGroup: servers that want to be together or apart."""
from __future__ import annotations

from typing import Any

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class InstanceGroup(PersistentObject, KilonovaObject):
    """``policy``: affinity, anti-affinity, soft-affinity, soft-anti-affinity; ``hosts`` where its members run."""

    VERSION = '1.11'
    fields = {
        'id': fields.IntegerField(),
        'user_id': fields.StringField(nullable=True),
        'project_id': fields.StringField(nullable=True),
        'uuid': fields.UUIDField(),
        'name': fields.StringField(nullable=True),
        'policies': fields.ListOfStringsField(nullable=True, read_only=True),
        'members': fields.ListOfStringsField(nullable=True),
        'hosts': fields.ListOfStringsField(nullable=True),
        'policy': fields.StringField(nullable=True),
        '_rules': fields.DictOfStringsField(),
    }

    @property
    def rules(self) -> dict[str, Any]:
        """The policy's settings: {'max_server_per_host': n} of anti-affinity."""
        return {name: int(value) for name, value in (self._rules if '_rules' in self else {}).items()}


@register
class InstanceGroupList(ListBase, KilonovaObject):
    VERSION = '1.8'
    fields = {'objects': fields.ListOfObjectsField('InstanceGroup')}
