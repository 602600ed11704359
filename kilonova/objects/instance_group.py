"""InstanceGroup: servers that want to be together or apart."""
from __future__ import annotations

from typing import Any

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class InstanceGroup(PersistentObject, KilonovaObject):
    """``policy``: affinity, anti-affinity, soft-affinity, soft-anti-affinity; ``hosts`` where its members run.

    ``places``: {server: hosts} as a scheduler found them, those of moves under way and those that it just sent
    somewhere among them; it isn't part of the object and doesn't travel. None: nobody looked.
    """

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

    places: dict[str, set[str]] | None = None
    members: Any
    hosts: Any

    def put(self, server: str, host: str) -> None:
        """A server of the group was just sent to a host."""
        self.members = [*dict.fromkeys([*((self.members if 'members' in self else None) or ()), server])]
        self.hosts = [*((self.hosts if 'hosts' in self else None) or ()), host]
        if self.places is not None:
            self.places = {**self.places, server: {host}}

    def count(self, host: str, but: str | None = None) -> int:
        """How many members a host has, ``but`` not counted."""
        return sum(host in hosts for server, hosts in (self.places or {}).items() if server != but)

    @property
    def rules(self) -> dict[str, Any]:
        """The policy's settings: {'max_server_per_host': n} of anti-affinity."""
        return {name: int(value) for name, value in (self._rules if '_rules' in self else {}).items()}


@register
class InstanceGroupList(ListBase, KilonovaObject):
    VERSION = '1.8'
    fields = {'objects': fields.ListOfObjectsField('InstanceGroup')}
