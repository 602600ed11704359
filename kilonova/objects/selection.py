"""Selection: a host that the scheduler chose (or an alternate host), with the server's allocation on this host."""

from __future__ import annotations

import json
from typing import Any

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class Selection(KilonovaObject):
    """A host that the scheduler chose for a server, or an alternate host.

    ``allocation_request`` is the JSON text of {"allocations": {provider: {"resources": {}}}, "mappings": {group:
    [provider]}}.
    """

    VERSION = '1.1'
    fields = {
        'compute_node_uuid': fields.UUIDField(),
        'service_host': fields.StringField(),
        'nodename': fields.StringField(),
        'cell_uuid': fields.UUIDField(),
        'limits': fields.ObjectField('SchedulerLimits', nullable=True),
        'allocation_request': fields.StringField(nullable=True),
        'allocation_request_version': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
    }

    def allocation(self) -> dict[str, Any]:
        """Return the decoded ``allocation_request``, or {} if there is none."""
        return json.loads(self.allocation_request) if self.allocation_request else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the dict {host, nodename, limits}, the older form of the scheduler's reply."""
        limits = self.limits.to_dict() if 'limits' in self and self.limits is not None else {}
        return {'host': self.service_host, 'nodename': self.nodename, 'limits': limits}
