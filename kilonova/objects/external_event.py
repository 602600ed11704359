"""InstanceExternalEvent: what another service tells of a server."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class InstanceExternalEvent(KilonovaObject):
    """``tag``: what it is about: a port, a volume, an accelerator request."""

    VERSION = '1.5'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'name': fields.ExternalEventNameField(),
        'status': fields.ExternalEventStatusField(),
        'tag': fields.StringField(nullable=True),
        'data': fields.DictOfStringsField(),
    }

    @property
    def key(self) -> str:
        """What somebody who waits for it would ask for."""
        return f'{self.name}-{self.tag}' if self.tag else self.name
