"""FlavorPayload: a flavor, alone or as part of a server's payload."""

from __future__ import annotations

from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.base import register
from kilonova.objects.flavor import Flavor
from kilonova.objects.notifications.base import EventContext, Payload


@register
class FlavorPayload(Payload):
    """Notification payload: a flavor. ``projects`` is null if the projects with access to the flavor were not read."""

    VERSION = '1.4'
    fields = {
        'flavorid': fields.StringField(nullable=True),
        'memory_mb': fields.IntegerField(nullable=True),
        'vcpus': fields.IntegerField(nullable=True),
        'root_gb': fields.IntegerField(nullable=True),
        'ephemeral_gb': fields.IntegerField(nullable=True),
        'name': fields.StringField(),
        'swap': fields.IntegerField(),
        'rxtx_factor': fields.FloatField(nullable=True),
        'vcpu_weight': fields.IntegerField(nullable=True),
        'disabled': fields.BooleanField(),
        'is_public': fields.BooleanField(),
        'extra_specs': fields.DictOfStringsField(),
        'projects': fields.ListOfStringsField(nullable=True),
        'description': fields.StringField(nullable=True),
    }

    @classmethod
    def of(cls, about: EventContext, *, flavor: Flavor | dict[str, Any]) -> Self:
        """Return the notification payload of a flavor, which is an object or a row with its extra specs."""
        return cls.like(flavor)
