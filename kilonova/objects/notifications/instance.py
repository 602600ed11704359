"""Payloads about servers.

    InstanceActionPayload.of(about, instance=instance, moved='stop.done', values={'power_state': 4})

``instance`` is the server as it was read from the database. Changes that were written later are given separately.
``moved`` is the name of a transition in states.TRANSITIONS: 'stop.done' sets vm_state and task_state to those of a
stopped server. ``values`` is {column: value} of other changes.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, Self

from kilonova.objects import fields
from kilonova.objects.audit_period import last_period, present_period
from kilonova.objects.base import register
from kilonova.objects.fields import InstancePowerStateField
from kilonova.objects.flavor import Flavor
from kilonova.objects.instance import Instance
from kilonova.objects.notifications.base import (
    DiskConfigTypeField,
    EventContext,
    InstanceStateField,
    InstanceTaskStateField,
    Payload,
    power_word,
    value,
)
from kilonova.objects.notifications.exception import ExceptionPayload
from kilonova.objects.notifications.flavor import FlavorPayload
from kilonova.objects.notifications.nouns import KeypairPayload
from kilonova.states import TRANSITIONS

# Fields of the payload that have the value of the Instance field with the same name.
SAME = (
    'uuid',
    'user_id',
    'reservation_id',
    'display_name',
    'display_description',
    'host',
    'node',
    'os_type',
    'architecture',
    'availability_zone',
    'key_name',
    'kernel_id',
    'ramdisk_id',
    'created_at',
    'launched_at',
    'terminated_at',
    'deleted_at',
    'updated_at',
    'task_state',
    'progress',
    'locked',
)
# A dict from a field of the payload to the Instance field, with another name, that has its value.
OTHER = {'tenant_id': 'project_id', 'host_name': 'hostname', 'state': 'vm_state'}


def as_written(instance: Instance, moved: str | None = None, values: dict[str, Any] | None = None) -> Instance:
    """Return a copy of the server with the changes that were written after it was read.

    ``moved`` is the name of a state transition, and ``values`` is {column: value}.
    """
    values = {name: one for name, one in (values or {}).items() if name in Instance.fields}
    if moved is not None:
        rule = TRANSITIONS[moved]
        values['task_state'] = rule.to_task
        if rule.to_vm is not None:
            values['vm_state'] = rule.to_vm
    return instance.replaced(**values) if values else instance


@register
class IpPayload(Payload):
    """Notification payload: one address of a server, and the port that has it."""

    VERSION = '1.0'
    fields = {
        'label': fields.StringField(),
        'mac': fields.MACAddressField(),
        'meta': fields.DictOfStringsField(),
        'port_uuid': fields.UUIDField(nullable=True),
        'version': fields.IntegerField(),
        'address': fields.IPAddressField(),
        'device_name': fields.StringField(nullable=True),
    }

    @classmethod
    def all_of(cls, vifs: Iterable[dict[str, Any]]) -> list[Self]:
        """Return one payload for each address of the interfaces. ``vifs`` are the dicts that the info cache stores."""
        return [
            cls.made(
                {
                    'label': vif['network']['label'],
                    'mac': vif['address'],
                    'meta': vif.get('meta') or {},
                    'port_uuid': vif.get('id'),
                    'version': ip['version'],
                    'address': ip['address'],
                    'device_name': vif.get('devname'),
                }
            )
            for vif in vifs
            for subnet in vif['network'].get('subnets') or ()
            for ip in subnet.get('ips') or ()
        ]


@register
class BlockDevicePayload(Payload):
    """Notification payload: one volume of a server."""

    VERSION = '1.0'
    fields = {
        'device_name': fields.StringField(nullable=True),
        'boot_index': fields.IntegerField(nullable=True),
        'delete_on_termination': fields.BooleanField(default=False),
        'volume_id': fields.UUIDField(),
        'tag': fields.StringField(nullable=True),
    }


@register
class SharePayload(Payload):
    """Notification payload: one file share (Manila) of a server."""

    VERSION = '1.0'
    fields = {
        'share_mapping_uuid': fields.UUIDField(),
        'share_id': fields.UUIDField(),
        'status': fields.StringField(),
        'tag': fields.StringField(),
        'export_location': fields.StringField(),
        'share_proto': fields.StringField(),
    }


@register
class AuditPeriodPayload(Payload):
    """Notification payload: the period of a usage report."""

    VERSION = '1.0'
    fields = {
        'audit_period_beginning': fields.DateTimeField(),
        'audit_period_ending': fields.DateTimeField(),
    }

    @classmethod
    def of(cls, about: EventContext, *, whole: bool = False) -> Self:
        """Return the payload of the present audit period, from the beginning of this period until now.

        If ``whole`` is True, return the payload of the last complete audit period.
        """
        begin, end = period_of(about, whole)
        return cls.made({'audit_period_beginning': begin, 'audit_period_ending': end})


def period_of(about: EventContext, whole: bool) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the begin and the end of an audit period, in UTC without a time zone.

    If ``whole`` is True, this is the last complete audit period. Otherwise it is the present audit period, which is
    returned with the present time as its end.
    """
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return (last_period if whole else present_period)(about.audit_period, now)


@register
class InstanceStateUpdatePayload(Payload):
    """Notification payload: a server's states before and after an event."""

    VERSION = '1.0'
    fields = {
        'old_state': fields.StringField(nullable=True),
        'state': fields.StringField(nullable=True),
        'old_task_state': fields.StringField(nullable=True),
        'new_task_state': fields.StringField(nullable=True),
    }


FIELDS = {
    'uuid': fields.UUIDField(),
    'user_id': fields.StringField(nullable=True),
    'tenant_id': fields.StringField(nullable=True),
    'reservation_id': fields.StringField(nullable=True),
    'display_name': fields.StringField(nullable=True),
    'display_description': fields.StringField(nullable=True),
    'host_name': fields.StringField(nullable=True),
    'host': fields.StringField(nullable=True),
    'node': fields.StringField(nullable=True),
    'os_type': fields.StringField(nullable=True),
    'architecture': fields.StringField(nullable=True),
    'availability_zone': fields.StringField(nullable=True),
    'flavor': fields.ObjectField('FlavorPayload'),
    'image_uuid': fields.UUIDField(nullable=True),
    'key_name': fields.StringField(nullable=True),
    'kernel_id': fields.StringField(nullable=True),
    'ramdisk_id': fields.StringField(nullable=True),
    'created_at': fields.DateTimeField(nullable=True),
    'launched_at': fields.DateTimeField(nullable=True),
    'terminated_at': fields.DateTimeField(nullable=True),
    'deleted_at': fields.DateTimeField(nullable=True),
    'updated_at': fields.DateTimeField(nullable=True),
    'state': InstanceStateField(nullable=True),
    'power_state': InstancePowerStateField(nullable=True),
    'task_state': InstanceTaskStateField(nullable=True),
    'progress': fields.IntegerField(nullable=True),
    'ip_addresses': fields.ListOfObjectsField('IpPayload'),
    'block_devices': fields.ListOfObjectsField('BlockDevicePayload', nullable=True),
    'metadata': fields.DictOfStringsField(),
    'locked': fields.BooleanField(),
    'auto_disk_config': DiskConfigTypeField(),
    'request_id': fields.StringField(nullable=True),
    'action_initiator_user': fields.StringField(nullable=True),
    'action_initiator_project': fields.StringField(nullable=True),
    'locked_reason': fields.StringField(nullable=True),
    'shares': fields.ListOfObjectsField('SharePayload'),
}


@register
class InstancePayload(Payload):
    """Notification payload with the fields that are the same for all events of servers.

    The field ``metadata`` is unset if the server was read without its metadata.
    """

    VERSION = '1.9'
    fields = dict(FIELDS)

    @classmethod
    def of(
        cls,
        about: EventContext,
        *,
        instance: Instance,
        moved: str | None = None,
        values: dict[str, Any] | None = None,
        bdms: Iterable[Any] = (),
        **facts: Any,
    ) -> Self:
        """Return the notification payload of an event of a server.

        Changes that were written after ``instance`` was read are given by ``moved``, the name of a state transition
        such as 'stop.done', and by ``values``, {column: value}. ``bdms`` are the server's disks; the payload has the
        volumes among them if ``EventContext.bdms`` is True. ``facts`` are arguments that only a subclass needs: its
        method ``more`` computes the subclass's additional fields from them.
        """
        server = as_written(instance, moved, values)
        return cls.made(
            {
                **_server(server),
                **_context(about),
                'block_devices': _volumes(about, bdms),
                **cls.more(about, server, **facts),
            }
        )

    @classmethod
    def more(cls, about: EventContext, server: Instance, **facts: Any) -> dict[str, Any]:
        """Return {field: value} for the fields that a subclass adds to this payload. This class adds none.

        ``facts`` are the arguments of ``of`` that only some events have.
        """
        return {}


def _server(server: Instance) -> dict[str, Any]:
    cache = value(server, 'info_cache')
    metadata = {'metadata': dict(server.metadata)} if 'metadata' in server else {}
    return {
        **{name: value(server, name) for name in SAME},
        **{name: value(server, own) for name, own in OTHER.items()},
        **metadata,
        'flavor': FlavorPayload.like(server.flavor),
        'image_uuid': value(server, 'image_ref') or None,
        'locked': bool(value(server, 'locked')),
        'power_state': power_word(value(server, 'power_state')),
        'auto_disk_config': 'AUTO' if value(server, 'auto_disk_config') else 'MANUAL',
        'ip_addresses': IpPayload.all_of((cache.network_info or ()) if cache is not None else ()),
        'shares': [],
        'locked_reason': (value(server, 'system_metadata') or {}).get('locked_reason'),
    }


def _context(about: EventContext) -> dict[str, Any]:
    ctxt = about.ctxt
    return {
        'request_id': ctxt.request_id,
        'action_initiator_user': ctxt.user_id,
        'action_initiator_project': ctxt.project_id,
    }


def _volumes(about: EventContext, bdms: Iterable[Any]) -> list[BlockDevicePayload]:
    if not about.bdms:
        return []
    return [BlockDevicePayload.like(bdm) for bdm in bdms if value(bdm, 'volume_id') is not None]


@register
class InstanceActionPayload(InstancePayload):
    """Notification payload: an action on a server. ``fault`` is the reason if the action failed."""

    VERSION = '1.9'
    fields = {**FIELDS, 'fault': fields.ObjectField('ExceptionPayload', nullable=True)}

    @classmethod
    def more(
        cls, about: EventContext, server: Instance, *, fault: BaseException | None = None, **facts: Any
    ) -> dict[str, Any]:
        """Return {field: value} for the field that this payload adds to InstancePayload: the fault."""
        return {'fault': ExceptionPayload.of(about, error=fault) if fault is not None else None}


@register
class InstanceActionResizePrepPayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the server's new flavor."""

    VERSION = '1.4'
    fields = {**InstanceActionPayload.fields, 'new_flavor': fields.ObjectField('FlavorPayload', nullable=True)}

    @classmethod
    def more(
        cls, about: EventContext, server: Instance, *, new_flavor: Flavor | None = None, **facts: Any
    ) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload: the fault and new flavor."""
        return {
            **super().more(about, server, **facts),
            'new_flavor': FlavorPayload.like(new_flavor) if new_flavor is not None else None,
        }


def certificates_of(server: Instance) -> list[str] | None:
    """Return the ids of the certificates by which the server's image is verified, or None if there are none."""
    certificates = value(server, 'trusted_certs')
    return list(certificates.ids) if certificates is not None else None


@register
class InstanceActionRebuildPayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the certificates by which its new image is verified."""

    VERSION = '1.9'
    fields = {**InstanceActionPayload.fields, 'trusted_image_certificates': fields.ListOfStringsField(nullable=True)}

    @classmethod
    def more(cls, about: EventContext, server: Instance, **facts: Any) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload: fault and certificate ids."""
        return {**super().more(about, server, **facts), 'trusted_image_certificates': certificates_of(server)}


@register
class InstanceActionRescuePayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the requested rescue image, or null if none was requested."""

    VERSION = '1.3'
    fields = {**InstanceActionPayload.fields, 'rescue_image_ref': fields.UUIDField(nullable=True)}

    @classmethod
    def more(
        cls, about: EventContext, server: Instance, *, rescue_image_ref: str | None = None, **facts: Any
    ) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload: fault, rescue image id."""
        return {**super().more(about, server, **facts), 'rescue_image_ref': rescue_image_ref}


@register
class InstanceActionVolumePayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the volume that is attached or detached."""

    VERSION = '1.6'
    fields = {**InstanceActionPayload.fields, 'volume_id': fields.UUIDField()}

    @classmethod
    def more(cls, about: EventContext, server: Instance, *, volume_id: str = '', **facts: Any) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload: the fault and volume id."""
        return {**super().more(about, server, **facts), 'volume_id': volume_id}


@register
class InstanceActionVolumeSwapPayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the volume that is replaced and the new volume."""

    VERSION = '1.8'
    fields = {**InstanceActionPayload.fields, 'old_volume_id': fields.UUIDField(), 'new_volume_id': fields.UUIDField()}

    @classmethod
    def more(
        cls, about: EventContext, server: Instance, *, old_volume_id: str = '', new_volume_id: str = '', **facts: Any
    ) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload.

        These are the fault and the ids of the old and the new volume.
        """
        return {**super().more(about, server, **facts), 'old_volume_id': old_volume_id, 'new_volume_id': new_volume_id}


@register
class InstanceActionSnapshotPayload(InstanceActionPayload):
    """Notification payload: an action on a server, with the image that is created from the server."""

    VERSION = '1.10'
    fields = {**InstanceActionPayload.fields, 'snapshot_image_id': fields.UUIDField()}

    @classmethod
    def more(
        cls, about: EventContext, server: Instance, *, snapshot_image_id: str = '', **facts: Any
    ) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload: fault and new image id."""
        return {**super().more(about, server, **facts), 'snapshot_image_id': snapshot_image_id}


@register
class InstanceCreatePayload(InstanceActionPayload):
    """Notification payload: the creation of a server, with its key pairs, tags, certificates and hypervisor name."""

    VERSION = '1.13'
    fields = {
        **InstanceActionPayload.fields,
        'keypairs': fields.ListOfObjectsField('KeypairPayload'),
        'tags': fields.ListOfStringsField(),
        'trusted_image_certificates': fields.ListOfStringsField(nullable=True),
        'instance_name': fields.StringField(nullable=True),
    }

    @classmethod
    def more(cls, about: EventContext, server: Instance, **facts: Any) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload.

        These are the fault, the key pairs, the tags, the server's name at the hypervisor and the ids of certificates.
        """
        return {
            **super().more(about, server, **facts),
            'keypairs': [KeypairPayload.like(pair) for pair in value(server, 'keypairs', ())],
            'tags': tag_words(server),
            'instance_name': hypervisor_name(about, server),
            'trusted_image_certificates': certificates_of(server),
        }


def tag_words(server: Instance) -> list[str]:
    """Return the server's tags as words. The list is empty if the tags were not read with the server."""
    return [tag.tag for tag in value(server, 'tags', ())]


def hypervisor_name(about: EventContext, server: Instance) -> str | None:
    """Return the name of the server's domain at the hypervisor, or None if the object has no id.

    The name is made from the template [DEFAULT]instance_name_template. The template contains either one placeholder for
    the server's id, such as %08x, or the placeholders %(id)s, %(uuid)s and %(project_id)s.
    """
    if 'id' not in server:
        return None
    try:
        found: str | None = about.name_template % server.id
        return found
    except TypeError:
        return about.name_template % {'id': server.id, 'uuid': server.uuid, 'project_id': server.project_id}


@register
class InstanceExistsPayload(InstancePayload):
    """Notification payload: the usage of a server in a period.

    If the payload is made with ``whole=True``, it is about the last complete audit period. Otherwise it is about the
    present audit period, from the beginning of this period until now.
    """

    VERSION = '2.1'
    fields = {**FIELDS, 'audit_period': fields.ObjectField('AuditPeriodPayload')}

    @classmethod
    def more(cls, about: EventContext, server: Instance, *, whole: bool = False, **facts: Any) -> dict[str, Any]:
        """Return {'audit_period': …}, the field that this payload adds to InstancePayload.

        It is the last complete audit period if ``whole`` is True, otherwise the audit period in progress.
        """
        return {'audit_period': AuditPeriodPayload.of(about, whole=whole)}


@register
class InstanceUpdatePayload(InstancePayload):
    """Notification payload: a change of a server's states, name, tags or metadata.

    ``before`` and ``after`` are pairs (vm state, task state). If they are not given, the states did not change, and the
    payload has only the present states.
    """

    VERSION = '2.1'
    fields = {
        **FIELDS,
        'state_update': fields.ObjectField('InstanceStateUpdatePayload'),
        'audit_period': fields.ObjectField('AuditPeriodPayload'),
        'old_display_name': fields.StringField(nullable=True),
        'tags': fields.ListOfStringsField(),
    }

    @classmethod
    def more(
        cls,
        about: EventContext,
        server: Instance,
        *,
        before: tuple[str | None, str | None] | None = None,
        after: tuple[str | None, str | None] | None = None,
        old_display_name: str | None = None,
        **facts: Any,
    ) -> dict[str, Any]:
        """Return {field: value} for the fields that this payload adds to InstancePayload or sets to another value.

        The added fields are ``state_update``, the audit period, the old name and the tags. ``before`` and ``after`` are
        pairs (vm_state, task_state). ``state`` and ``task_state`` get the values in ``after``.
        """
        state, task = after or (value(server, 'vm_state'), value(server, 'task_state'))
        changed: dict[str, Any] = {'state': state}
        if before is not None:
            changed.update(old_state=before[0], old_task_state=before[1], new_task_state=task)
        return {
            'state_update': InstanceStateUpdatePayload.made(changed),
            'audit_period': AuditPeriodPayload.of(about),
            'state': state,
            'task_state': task,
            'old_display_name': old_display_name,
            'tags': tag_words(server),
        }
