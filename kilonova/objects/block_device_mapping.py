"""BlockDeviceMapping: one disk of a server (table ``block_device_mapping``)."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from kilonova.context import RequestContext
from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, ListBase, PersistentObject, register

NOT_WRITTEN = frozenset(('id', 'instance', 'created_at', 'updated_at', 'deleted_at', 'deleted'))


@register
class BlockDeviceMapping(PersistentObject, KilonovaObject):
    """``volume_size`` in GiB; ``boot_index`` 0 is the disk that is booted, -1 or None is none."""

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
        """Columns of the fields that are set."""
        return self.columns(NOT_WRITTEN)

    @property
    def is_root(self) -> bool:
        return self.boot_index == 0

    @property
    def is_volume(self) -> bool:
        return self.destination_type == 'volume'


@register
class BlockDeviceMappingList(ListBase, KilonovaObject):
    VERSION = '1.18'
    fields = {'objects': fields.ListOfObjectsField('BlockDeviceMapping')}

    @classmethod
    def of_server(cls, ctxt: RequestContext, instance_uuid: str, rows: Iterable[Mapping[str, Any]]) -> Self:
        """A server's disks from columns, of the table or about to be written."""
        return cls.of(ctxt, (BlockDeviceMapping(ctxt, **{**row, 'instance_uuid': instance_uuid}) for row in rows))
