"""SecurityGroup: in a server's request only the names (or uuids) matter; the network service owns the rest."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class SecurityGroup(PersistentObject, KilonovaObject):
    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'name': fields.StringField(),
        'description': fields.StringField(),
        'user_id': fields.StringField(),
        'project_id': fields.StringField(),
        'uuid': fields.UUIDField(),
    }


@register
class SecurityGroupList(ListBase, KilonovaObject):
    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('SecurityGroup')}

    @classmethod
    def from_names(cls, ctxt: RequestContext, names: Iterable[str]) -> Self:
        return cls.of(ctxt, (SecurityGroup.loaded(ctxt, (('name', name),)) for name in names))

    def names(self) -> list[str]:
        """Name of each group, else its uuid."""
        return [group.name if 'name' in group else group.uuid for group in self]
