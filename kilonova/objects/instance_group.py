"""InstanceGroup: a server group, whose policy keeps its servers on the same host or on different hosts."""

from __future__ import annotations

from typing import Any

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register


@register
class InstanceGroup(PersistentObject, KilonovaObject):
    """A server group with one policy: affinity, anti-affinity, soft-affinity or soft-anti-affinity.

    ``hosts`` are the hosts on which its members run. ``places`` is a dict from a member's uuid to the set of hosts that
    the scheduler counts for this member: its host, during a move both hosts, or the host that the scheduler has just
    chosen. ``places`` is set only in the scheduler and is not sent to other processes.
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
        """Record that the scheduler has just chosen a host for a server of the group."""
        self.members = [*dict.fromkeys([*((self.members if 'members' in self else None) or ()), server])]
        self.hosts = [*((self.hosts if 'hosts' in self else None) or ()), host]
        if self.places is not None:
            self.places = {**self.places, server: {host}}

    def count(self, host: str, but: str | None = None) -> int:
        """Return how many members of the group are on a host. The server ``but`` is not counted."""
        return sum(host in hosts for server, hosts in (self.places or {}).items() if server != but)

    @property
    def rules(self) -> dict[str, Any]:
        """The settings of the policy: {'max_server_per_host': n} for anti-affinity."""
        return {name: int(value) for name, value in (self._rules if '_rules' in self else {}).items()}


@register
class InstanceGroupList(ListBase, KilonovaObject):
    """A list of server groups."""

    VERSION = '1.8'
    fields = {'objects': fields.ListOfObjectsField('InstanceGroup')}
