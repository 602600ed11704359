"""Payloads of the unversioned notifications: plain dicts with Nova's older names.

A missing value is an empty text, and times have two different text formats, because consumers of these notifications
expect this.
"""

from __future__ import annotations

import datetime
from typing import Any

from kilonova.objects.aggregate import Aggregate
from kilonova.objects.base import KilonovaObject
from kilonova.objects.flavor import Flavor
from kilonova.objects.image_meta import SYSMETA_PREFIX
from kilonova.objects.instance import Instance
from kilonova.objects.instance_group import InstanceGroup
from kilonova.objects.keypair import KeyPair
from kilonova.objects.notifications.base import EventContext, value
from kilonova.objects.notifications.instance import as_written, period_of, tag_words
from kilonova.objects.request_spec import RequestSpec
from kilonova.objects.volume_usage import VolumeUsage


def usage(
    about: EventContext,
    *,
    instance: Instance,
    moved: str | None = None,
    values: dict[str, Any] | None = None,
    fault: BaseException | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return the part of the notification payload that is the same for all events of servers.

    Changes that were written after ``instance`` was read are given by ``moved``, the name of a state transition such as
    'stop.done', and by ``values``, {column: value}. ``fault`` is the error to report, or None. ``facts`` are ignored:
    they are arguments that other notification formats need.
    """
    server = as_written(instance, moved, values)
    flavor = server.flavor
    metadata = value(server, 'system_metadata') or {}
    payload = {
        'tenant_id': value(server, 'project_id'),
        'user_id': value(server, 'user_id'),
        'instance_id': server.uuid,
        'display_name': value(server, 'display_name'),
        'reservation_id': value(server, 'reservation_id'),
        'hostname': value(server, 'hostname'),
        'instance_type': flavor.name,
        'instance_type_id': flavor.id,
        'instance_flavor_id': flavor.flavorid,
        'architecture': value(server, 'architecture'),
        'memory_mb': flavor.memory_mb,
        'disk_gb': flavor.root_gb + flavor.ephemeral_gb,
        'vcpus': flavor.vcpus,
        'root_gb': flavor.root_gb,
        'ephemeral_gb': flavor.ephemeral_gb,
        'host': value(server, 'host'),
        'node': value(server, 'node'),
        'availability_zone': value(server, 'availability_zone'),
        'cell_name': _text(value(server, 'cell_name')),
        'created_at': str(value(server, 'created_at') or ''),
        'terminated_at': _time(value(server, 'terminated_at')),
        'deleted_at': _time(value(server, 'deleted_at')),
        'launched_at': _time(value(server, 'launched_at')),
        'image_ref_url': _image_url(about, value(server, 'image_ref')),
        'os_type': value(server, 'os_type'),
        'kernel_id': value(server, 'kernel_id'),
        'ramdisk_id': value(server, 'ramdisk_id'),
        'state': value(server, 'vm_state'),
        'state_description': _text(value(server, 'task_state')),
        'progress': _text(value(server, 'progress')),
        'access_ip_v4': _address(value(server, 'access_ip_v4')),
        'access_ip_v6': _address(value(server, 'access_ip_v6')),
        'image_meta': {
            name.removeprefix(SYSMETA_PREFIX): one for name, one in metadata.items() if name.startswith(SYSMETA_PREFIX)
        },
        'metadata': dict(value(server, 'metadata', {})),
    }
    if fault is not None:
        payload.update(message=str(fault), code=getattr(fault, 'code', 500), exception=type(fault).__name__)
    return payload


def _text(word: str | int | datetime.datetime | None) -> str:
    return '' if word is None else str(word)


def _time(moment: datetime.datetime | None) -> str:
    return '' if moment is None else moment.strftime('%Y-%m-%dT%H:%M:%S.%f')


def _address(address: object) -> str | None:
    return None if address is None else str(address)


def _image_url(about: EventContext, image: str | None) -> str:
    """Return the image's URL, made from the request's service catalog.

    Return the image's id if the catalog has no image service.
    """
    for service in about.ctxt.service_catalog if image else ():
        for endpoint in service.get('endpoints') or ():
            if service.get('type') == 'image' and endpoint.get('publicURL'):
                return f'{endpoint["publicURL"].rstrip("/")}/images/{image}'
    return image or ''


def create(about: EventContext, *, image_name: str | None = None, done: bool = False, **facts: Any) -> dict[str, Any]:
    """Return the notification payload of a server's creation.

    If ``image_name`` is given, the payload contains it. If ``done`` is True, it is the payload of the event create.end,
    which also has the message 'Success' and an empty list ``fixed_ips``. ``facts`` are the arguments of ``usage``.
    """
    payload = usage(about, **facts)
    if image_name is not None:
        payload['image_name'] = image_name
    if done:
        payload.update(message='Success', fixed_ips=[])
    return payload


def resize_prep(about: EventContext, *, new_flavor: Flavor, done: bool = False, **facts: Any) -> dict[str, Any]:
    """Return the notification payload for the preparation of a resize.

    If ``done`` is True, it is the payload for the end of the preparation, which also has the new flavor.
    """
    payload = usage(about, **facts)
    if done:
        payload.update(new_instance_type=new_flavor.name, new_instance_type_id=new_flavor.id)
    return payload


def rescue(about: EventContext, *, rescue_image_name: str = '', **facts: Any) -> dict[str, Any]:
    """Return the notification payload of a rescue, with the name of the rescue image ('' for the host's default)."""
    return {**usage(about, **facts), 'rescue_image_name': rescue_image_name}


def volume(about: EventContext, *, volume_id: str = '', **facts: Any) -> dict[str, Any]:
    """Return the notification payload of the attachment or detachment of a volume."""
    return {**usage(about, **facts), 'volume_id': volume_id}


def exists(about: EventContext, *, whole: bool = False, **facts: Any) -> dict[str, Any]:
    """Return the notification payload about a server's usage in an audit period.

    If ``whole`` is True, the payload is about the last complete audit period. Otherwise the payload is about the
    present audit period, from the beginning of this period until now.
    """
    return {**usage(about, **facts), **_period(about, whole), 'bandwidth': {}}


def _period(about: EventContext, whole: bool = False) -> dict[str, str]:
    begin, end = period_of(about, whole)
    return {'audit_period_beginning': _time(begin), 'audit_period_ending': _time(end)}


def update(
    about: EventContext,
    *,
    before: tuple[str | None, str | None] | None = None,
    after: tuple[str | None, str | None] | None = None,
    old_display_name: str | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return the notification payload of a change of a server.

    ``before`` and ``after`` are pairs (vm state, task state). They are None if the states did not change.
    """
    payload = usage(about, **facts)
    if after is not None:
        payload.update(state=after[0], state_description=_text(after[1]))
    if before is not None and after is not None:
        payload.update(old_state=before[0], old_task_state=before[1], new_task_state=after[1])
    if old_display_name is not None:
        payload['old_display_name'] = old_display_name
    return {**payload, **_period(about), 'bandwidth': {}, 'tags': tag_words(facts['instance'])}


def select(about: EventContext, *, request_spec: RequestSpec) -> dict[str, Any]:
    """Return the notification payload of a call to the scheduler."""
    return {'request_spec': _request(request_spec)}


def _request(request_spec: RequestSpec) -> dict[str, Any]:
    found: dict[str, Any] = _plain(request_spec.to_legacy_request_spec_dict())
    return found


def _plain(entity: object) -> Any:
    """Return ``entity``, a dict or a value in a dict, with versioned objects replaced by their serialised form.

    The serialised form has no list of changed fields.
    """
    if isinstance(entity, dict):
        return {name: _plain(one) for name, one in entity.items()}
    return entity.stored_primitive() if isinstance(entity, KilonovaObject) else entity


def compute_task(
    about: EventContext,
    *,
    method: str,
    instance_uuid: str,
    request_spec: RequestSpec,
    state: str | None,
    record: dict[str, Any],
) -> dict[str, Any]:
    """Return the notification payload for a server that could not be scheduled.

    ``method`` is the conductor's method, for example 'build_instances', and ``state`` the server's new vm_state.
    ``record`` is the error from the operation's row, a dict whose key 'message' is the reason in the payload.
    """
    request = _request(request_spec)
    return {
        'request_spec': request,
        'instance_properties': request['instance_properties'],
        'instance_id': instance_uuid,
        'state': state,
        'method': method,
        'reason': record.get('message'),
    }


def exception(about: EventContext, *, error: BaseException, method: str) -> dict[str, Any]:
    """Return the notification payload of an error that an RPC method raised."""
    return {'exception': str(error), 'args': {'method': method}}


def keypair(about: EventContext, *, keypair: KeyPair | dict[str, Any]) -> dict[str, Any]:
    """Return the notification payload of a key pair, which is an object or a row."""
    held = keypair if isinstance(keypair, dict) else {name: value(keypair, name) for name in ('user_id', 'name')}
    return {'tenant_id': about.ctxt.project_id, 'user_id': held['user_id'], 'key_name': held['name']}


def aggregate(about: EventContext, *, aggregate: Aggregate | dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the notification payload of an aggregate, with the additional members ``changes``.

    ``changes`` are members such as {'host': …} or {'meta_data': …}. ``aggregate_id`` in the payload is the aggregate's
    id or, before the aggregate is created, its name.
    """
    held = (
        aggregate
        if isinstance(aggregate, dict)
        else {name: value(aggregate, name) for name in ('id', 'name', 'hosts', 'metadata')}
    )
    return {
        'aggregate_id': held.get('id') or held['name'],
        'name': held['name'],
        'availability_zone': (held.get('metadata') or {}).get('availability_zone'),
        **changes,
    }


def server_group(about: EventContext, *, group: InstanceGroup | dict[str, Any]) -> dict[str, Any]:
    """Return the notification payload of a server group, which is an InstanceGroup or a row."""
    names = ('uuid', 'name', 'user_id', 'project_id', 'policy', 'members')
    held = group if isinstance(group, dict) else {name: value(group, name) for name in names}
    return {
        'server_group_id': held['uuid'],
        **{name: held.get(name) for name in names if name != 'uuid'},
        'policies': [held['policy']] if held.get('policy') else [],
    }


def volume_usage(about: EventContext, *, usage: VolumeUsage) -> dict[str, Any]:
    """Return the notification payload of the usage of a volume."""
    return {
        'volume_id': usage.volume_id,
        'tenant_id': usage.project_id,
        'user_id': usage.user_id,
        'instance_id': usage.instance_uuid,
        'availability_zone': usage.availability_zone,
        'last_refreshed': _text(usage.curr_last_refreshed),
        **{name: usage.total(name) for name in ('reads', 'read_bytes', 'writes', 'write_bytes')},
    }
