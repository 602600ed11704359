"""InstanceExternalEvent: an event of a server that another service reports."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class InstanceExternalEvent(KilonovaObject):
    """An event of a server; ``tag`` is the id of its port, volume or accelerator request."""

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
        """The key under which code waits for this event: ``<name>-<tag>``, or only the name if there is no tag."""
        return f'{self.name}-{self.tag}' if self.tag else self.name
