"""Volumes (``/os-volumes``), a proxy for the volume service until microversion 2.35.

Every request becomes one request to the volume service with the caller's token. The volume service decides what the
caller may see and change.
"""

from __future__ import annotations

from typing import Any

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.wsgi import Call, NoRoute, Route
from kilonova.clients.volume import Volume, VolumeClient

LIST, DETAIL, SHOW, CREATE, DELETE = (
    f'{PREFIX}os-volumes:{verb}' for verb in ('list', 'detail', 'show', 'create', 'delete')
)
RULES = (
    rule(LIST, READER, 'List the volumes of the volume service.'),
    rule(DETAIL, READER, 'List the volumes of the volume service with details.'),
    rule(SHOW, READER, 'Show a volume of the volume service.'),
    rule(CREATE, MEMBER, 'Create a volume in the volume service.'),
    rule(DELETE, MEMBER, 'Delete a volume in the volume service.'),
)

UNTIL = 35
QUERY = QuerySchema.of(Prop('limit', t.NUMBER_TEXT), Prop('offset', t.NUMBER_TEXT))
CREATE_BODY = Obj(
    Prop(
        'volume',
        Obj(
            Prop('size', t.integer(1), required=True),
            Prop('display_name', t.TEXT),
            Prop('display_description', t.TEXT),
            Prop('volume_type', t.TEXT),
            Prop('availability_zone', t.TEXT),
            Prop('metadata', t.METADATA),
            Prop('snapshot_id', {'anyOf': [t.NULL, t.UUID]}),
        ),
        required=True,
    )
)


def service(call: Call) -> VolumeClient:
    """Return the client of the volume service.

    Raises NoRoute (404) if this cloud has no volume service.
    """
    if call.backend.volumes is None:
        raise NoRoute
    return call.backend.volumes


def index(call: Call) -> dict[str, Any]:
    """List volumes (``GET /os-volumes`` and ``GET /os-volumes/detail``, which have the same response)."""
    return {'volumes': [_body(volume) for volume in service(call).volumes(call.ctxt, call.limit(), call.offset())]}


def show(call: Call) -> dict[str, Any]:
    """Return a volume (``GET /os-volumes/{volume_id}``)."""
    return {'volume': _body(service(call).volume(call.ctxt, call.path['volume_id']))}


def create(call: Call) -> dict[str, Any]:
    """Create a volume (``POST /os-volumes``). The response is sent before the volume is ready."""
    wanted = call.body['volume']
    return {
        'volume': _body(
            service(call).create_volume(
                call.ctxt,
                size=int(wanted['size']),
                name=wanted.get('display_name') or '',
                description=wanted.get('display_description'),
                snapshot_id=wanted.get('snapshot_id'),
                volume_type=wanted.get('volume_type') or None,
                availability_zone=wanted.get('availability_zone') or None,
                metadata=wanted.get('metadata'),
            )
        )
    }


def delete(call: Call) -> None:
    """Delete a volume (``DELETE /os-volumes/{volume_id}``). The response is sent before the volume is deleted."""
    service(call).remove_volume(call.ctxt, call.path['volume_id'])


def _body(volume: Volume) -> dict[str, Any]:
    return {
        'id': volume.id,
        'status': volume.status,
        'size': volume.size,
        'displayName': volume.name,
        'displayDescription': volume.description,
        'createdAt': volume.created_at,
        'availabilityZone': volume.availability_zone,
        'volumeType': volume.volume_type,
        'snapshotId': volume.snapshot_id,
        'metadata': volume.metadata,
        # A volume that is not attached has one empty attachment in the list, as in Nova.
        'attachments': [
            {
                'id': volume.id,
                'volumeId': volume.id,
                'serverId': one.server_id,
                **({'device': one.device} if one.device else {}),
            }
            for one in volume.attachments
        ]
        or [{}],
    }


_ONE = '/os-volumes/{volume_id}'
ROUTES = (
    Route('GET', '/os-volumes', index, LIST, query=QUERY, until=UNTIL),
    Route('GET', '/os-volumes/detail', index, DETAIL, query=QUERY, until=UNTIL),
    Route('GET', _ONE, show, SHOW, until=UNTIL),
    Route('POST', '/os-volumes', create, CREATE, body=CREATE_BODY, until=UNTIL),
    Route('DELETE', _ONE, delete, DELETE, status=202, until=UNTIL),
)
