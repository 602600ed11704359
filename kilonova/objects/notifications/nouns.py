"""Payloads of key pairs, services, aggregates, server groups and volume usage."""

from __future__ import annotations

from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.aggregate import Aggregate
from kilonova.objects.base import register
from kilonova.objects.instance_group import InstanceGroup
from kilonova.objects.keypair import KeyPair
from kilonova.objects.notifications.base import EventContext, Payload
from kilonova.objects.service import Service
from kilonova.objects.volume_usage import VolumeUsage


@register
class KeypairPayload(Payload):
    """Notification payload: a key pair without its private key."""

    VERSION = '1.0'
    fields = {
        'user_id': fields.StringField(nullable=True),
        'name': fields.StringField(),
        'public_key': fields.StringField(nullable=True),
        'fingerprint': fields.StringField(nullable=True),
        'type': fields.StringField(),
    }

    @classmethod
    def of(cls, about: EventContext, *, keypair: KeyPair | dict[str, Any]) -> Self:
        """Return the notification payload of a key pair, which is an object or a row."""
        return cls.like(keypair)


@register
class ServiceStatusPayload(Payload):
    """Notification payload: a service, with the values of its row after the event."""

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
    def of(cls, about: EventContext, *, service: Service | dict[str, Any]) -> Self:
        """Return the notification payload of a service, which is an object or a row."""
        return cls.like(service)


@register
class AggregatePayload(Payload):
    """Notification payload: a host aggregate."""

    VERSION = '1.1'
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(nullable=False),
        'name': fields.StringField(),
        'hosts': fields.ListOfStringsField(nullable=True),
        'metadata': fields.DictOfStringsField(nullable=True),
    }

    @classmethod
    def of(cls, about: EventContext, *, aggregate: Aggregate | dict[str, Any], **changes: Any) -> Self:
        """Return the notification payload of an aggregate, which is an object or a row with hosts and metadata.

        The payload of an aggregate that is not created yet has no id. ``changes`` are ignored: only the legacy format
        has them.
        """
        return cls.like(aggregate)


@register
class ServerGroupPayload(Payload):
    """Notification payload: a server group; ``policies`` is the older form of ``policy``, a list with one element."""

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
    def of(cls, about: EventContext, *, group: InstanceGroup | dict[str, Any]) -> Self:
        """Return the notification payload of a server group.

        ``group`` is an InstanceGroup or a row with ``members``, ``policy`` and ``rules``.
        """
        held = group.get if isinstance(group, dict) else lambda name: getattr(group, name) if name in group else None
        policy, rules = held('policy'), held('rules') if isinstance(group, dict) else group.rules
        return cls.like(
            group,
            policies=[policy] if policy else [],
            rules={name: str(limit) for name, limit in (rules or {}).items()},
        )


@register
class VolumeUsagePayload(Payload):
    """Notification payload: how much servers read from a volume and wrote to it.

    ``reads`` and ``writes`` are numbers of requests, and the other counters are bytes. ``instance_uuid`` is the server
    that has the volume now.
    """

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
    def of(cls, about: EventContext, *, usage: VolumeUsage) -> Self:
        """Return the notification payload of the usage of a volume."""
        return cls.like(
            usage,
            last_refreshed=usage.curr_last_refreshed,
            **{name: usage.total(name) for name in ('reads', 'read_bytes', 'writes', 'write_bytes')},
        )
