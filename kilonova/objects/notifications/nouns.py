"""Payloads of what isn't a server: key pairs, services, aggregates, server groups, volumes."""
from __future__ import annotations

from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.aggregate import Aggregate
from kilonova.objects.base import register
from kilonova.objects.instance_group import InstanceGroup
from kilonova.objects.keypair import KeyPair
from kilonova.objects.notifications.base import About, Payload
from kilonova.objects.service import Service
from kilonova.objects.volume_usage import VolumeUsage


@register
class KeypairPayload(Payload):
    """Never the private key."""

    VERSION = '1.0'
    fields = {
        'user_id': fields.StringField(nullable=True),
        'name': fields.StringField(),
        'public_key': fields.StringField(nullable=True),
        'fingerprint': fields.StringField(nullable=True),
        'type': fields.StringField(),
    }

    @classmethod
    def of(cls, about: About, *, keypair: KeyPair | dict[str, Any]) -> Self:
        """``keypair``: an object or a row."""
        return cls.like(keypair)


@register
class ServiceStatusPayload(Payload):
    """A row of services as it is after the event."""

    VERSION = '1.1'
    fields = {
        'host': fields.StringField(nullable=True),
        'binary': fields.StringField(nullable=True),
        'topic': fields.StringField(nullable=True),
        'report_count': fields.IntegerField(),
        'disabled': fields.BooleanField(),
        'disabled_reason': fields.StringField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'last_seen_up': fields.DateTimeField(nullable=True),
        'forced_down': fields.BooleanField(),
        'version': fields.IntegerField(),
        'uuid': fields.UUIDField(),
    }

    @classmethod
    def of(cls, about: About, *, service: Service | dict[str, Any]) -> Self:
        """``service``: an object or a row."""
        return cls.like(service)


@register
class AggregatePayload(Payload):
    """Hosts that share metadata."""

    VERSION = '1.1'
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(nullable=False),
        'name': fields.StringField(),
        'hosts': fields.ListOfStringsField(nullable=True),
        'metadata': fields.DictOfStringsField(nullable=True),
    }

    @classmethod
    def of(cls, about: About, *, aggregate: Aggregate | dict[str, Any], **changes: Any) -> Self:
        """``aggregate``: an object, or a row with its hosts and metadata; before a create it has no id."""
        return cls.like(aggregate)


@register
class ServerGroupPayload(Payload):
    """Servers that want to be together or apart. ``policies`` is the old list of ``policy``."""

    VERSION = '1.1'
    fields = {
        'uuid': fields.UUIDField(),
        'name': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'project_id': fields.StringField(nullable=True),
        'policies': fields.ListOfStringsField(nullable=True),
        'members': fields.ListOfStringsField(nullable=True),
        'hosts': fields.ListOfStringsField(nullable=True),
        'policy': fields.StringField(nullable=True),
        'rules': fields.DictOfStringsField(),
    }

    @classmethod
    def of(cls, about: About, *, group: InstanceGroup | dict[str, Any]) -> Self:
        """``group``: an InstanceGroup, or a row with ``members``, ``policy`` and ``rules``."""
        held = group.get if isinstance(group, dict) else lambda name: getattr(group, name) if name in group else None
        policy, rules = held('policy'), held('rules') if isinstance(group, dict) else group.rules
        return cls.like(group, policies=[policy] if policy else [],
                        rules={name: str(limit) for name, limit in (rules or {}).items()})


@register
class VolumeUsagePayload(Payload):
    """What servers have read and written of a volume, and the server that has it now. Bytes, but for the requests."""

    VERSION = '1.0'
    fields = {
        'volume_id': fields.UUIDField(),
        'project_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'instance_uuid': fields.UUIDField(nullable=True),
        'availability_zone': fields.StringField(nullable=True),
        'last_refreshed': fields.DateTimeField(nullable=True),
        'reads': fields.IntegerField(),
        'read_bytes': fields.IntegerField(),
        'writes': fields.IntegerField(),
        'write_bytes': fields.IntegerField(),
    }

    @classmethod
    def of(cls, about: About, *, usage: VolumeUsage) -> Self:
        return cls.like(usage, last_refreshed=usage.curr_last_refreshed,
                        **{name: usage.total(name) for name in ('reads', 'read_bytes', 'writes', 'write_bytes')})
