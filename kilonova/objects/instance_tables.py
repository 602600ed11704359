"""Objects of a server that have their own tables: its disks, tags, actions, faults and interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register

# --- disks of a server (table block_device_mapping) ------------------------------------------------------------------
NOT_WRITTEN = frozenset(('id', 'instance', 'created_at', 'updated_at', 'deleted_at', 'deleted'))


@register
class BlockDeviceMapping(PersistentObject, KilonovaObject):
    """One disk of a server.

    ``volume_size`` is in GiB. The server boots from the disk with ``boot_index`` 0. A ``boot_index`` of -1 or None
    means that the server never boots from the disk.
    """

    VERSION = '1.21'
    boot_index: int | None
    destination_type: str | None
    fields = {
        'id': fields.IntegerField(),
        'uuid': fields.UUIDField(),
        'instance_uuid': fields.UUIDField(),
        'instance': fields.ObjectField('Instance', nullable=True),
        'source_type': fields.BlockDeviceSourceTypeField(nullable=True),
        'destination_type': fields.BlockDeviceDestinationTypeField(nullable=True),
        'guest_format': fields.StringField(nullable=True),
        'device_type': fields.BlockDeviceTypeField(nullable=True),
        'disk_bus': fields.StringField(nullable=True),
        'boot_index': fields.IntegerField(nullable=True),
        'device_name': fields.StringField(nullable=True),
        'delete_on_termination': fields.BooleanField(default=False),
        'snapshot_id': fields.StringField(nullable=True),
        'volume_id': fields.StringField(nullable=True),
        'volume_size': fields.IntegerField(nullable=True),
        'image_id': fields.StringField(nullable=True),
        'no_device': fields.BooleanField(default=False),
        'connection_info': fields.SensitiveStringField(nullable=True),
        'tag': fields.StringField(nullable=True),
        'attachment_id': fields.UUIDField(nullable=True),
        'volume_type': fields.StringField(nullable=True),
        'encrypted': fields.BooleanField(default=False),
        'encryption_secret_uuid': fields.UUIDField(nullable=True),
        'encryption_format': fields.BlockDeviceEncryptionFormatTypeField(nullable=True),
        'encryption_options': fields.StringField(nullable=True),
    }

    def to_row(self) -> dict[str, Any]:
        """Return {column: value} of the fields that are set."""
        return self.columns(NOT_WRITTEN)

    @property
    def is_root(self) -> bool:
        """True if the server boots from this disk."""
        return self.boot_index == 0

    @property
    def is_volume(self) -> bool:
        """True if the disk is a volume."""
        return self.destination_type == 'volume'


@register
class BlockDeviceMappingList(ListBase, KilonovaObject):
    """The disks of a server."""

    VERSION = '1.18'
    fields = {'objects': fields.ListOfObjectsField('BlockDeviceMapping')}

    @classmethod
    def of_server(cls, ctxt: RequestContext | None, instance_uuid: str, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return a server's disks, made from dicts of column values. The rows need not be in the table yet."""
        return cls.of(ctxt, (BlockDeviceMapping(ctxt, **{**row, 'instance_uuid': instance_uuid}) for row in rows))


# --- tags of a server (table tags) -----------------------------------------------------------------------------------
@register
class Tag(KilonovaObject):
    """One tag of a server."""

    VERSION = '1.1'
    fields = {'resource_id': fields.StringField(), 'tag': fields.StringField()}


@register
class TagList(ListBase, KilonovaObject):
    """The tags of a server."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('Tag')}

    @classmethod
    def from_words(cls, ctxt: RequestContext | None, resource_id: str, words: Iterable[str]) -> Self:
        """Return a server's tags from plain strings."""
        return cls.of(ctxt, (Tag.loaded(ctxt, (('resource_id', resource_id), ('tag', word))) for word in words))


# --- faults: readable reasons of failures (table instance_faults) ----------------------------------------------------
@register
class InstanceFault(PersistentObject, KilonovaObject):
    """The record of a failure of a server.

    ``code`` is an HTTP status. ``details`` are shown to administrators, and to other users unless the code is 500.
    """

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'code': fields.IntegerField(),
        'message': fields.StringField(nullable=True),
        'details': fields.StringField(nullable=True),
        'host': fields.StringField(nullable=True),
    }


@register
class InstanceFaultList(ListBase, KilonovaObject):
    """A list of faults."""

    VERSION = '1.2'
    fields = {'objects': fields.ListOfObjectsField('InstanceFault')}


# --- a server's interfaces, as last read from the network service (table instance_info_caches) -----------------------
@register
class InstanceInfoCache(PersistentObject, KilonovaObject):
    """The interfaces of a server, as they were last read from the network service."""

    VERSION = '1.5'
    fields = {
        'instance_uuid': fields.UUIDField(),
        'network_info': fields.NetworkModelField(nullable=True),
    }

    @classmethod
    def from_row(cls, ctxt: RequestContext | None, row: dict[str, Any]) -> Self:
        """Return the info cache of a row of instance_info_caches. It has no interfaces if ``network_info`` is NULL."""
        values = {**row, 'deleted': bool(row.get('deleted')), 'network_info': row.get('network_info') or '[]'}
        return cls.loaded(ctxt, ((name, values[name]) for name in cls.fields if name in values))


# --- actions on a server and their events (tables instance_actions, instance_actions_events) -------------------------
@register
class InstanceAction(PersistentObject, KilonovaObject):
    """One action on a server, such as a reboot, with its request id, times and message."""

    VERSION = '1.2'
    fields = {
        'id': fields.IntegerField(),
        'action': fields.StringField(nullable=True),
        'instance_uuid': fields.UUIDField(nullable=True),
        'request_id': fields.StringField(nullable=True),
        'user_id': fields.StringField(nullable=True),
        'project_id': fields.StringField(nullable=True),
        'start_time': fields.DateTimeField(nullable=True),
        'finish_time': fields.DateTimeField(nullable=True),
        'message': fields.StringField(nullable=True),
    }


@register
class InstanceActionList(ListBase, KilonovaObject):
    """A list of actions."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('InstanceAction')}


@register
class InstanceActionEvent(PersistentObject, KilonovaObject):
    """One event of an action (a part of its work), with its host, times and result."""

    VERSION = '1.4'
    fields = {
        'id': fields.IntegerField(),
        'event': fields.StringField(nullable=True),
        'action_id': fields.IntegerField(nullable=True),
        'start_time': fields.DateTimeField(nullable=True),
        'finish_time': fields.DateTimeField(nullable=True),
        'result': fields.StringField(nullable=True),
        'traceback': fields.StringField(nullable=True),
        'host': fields.StringField(nullable=True),
        'details': fields.StringField(nullable=True),
    }


@register
class InstanceActionEventList(ListBase, KilonovaObject):
    """A list of events."""

    VERSION = '1.1'
    fields = {'objects': fields.ListOfObjectsField('InstanceActionEvent')}
