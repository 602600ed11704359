"""Volume snapshots (``/os-snapshots``): a proxy for the volume service, until microversion 2.35."""

from __future__ import annotations

from typing import Any

from oslo_utils import strutils

from kilonova.api.rules import MEMBER, PREFIX, READER, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.v2.legacy.volumes import QUERY, UNTIL, service
from kilonova.api.wsgi import Call, Route
from kilonova.clients.volume import VolumeSnapshot

LIST, DETAIL, SHOW, CREATE, DELETE = (
    f'{PREFIX}os-volumes:snapshots:{verb}' for verb in ('list', 'detail', 'show', 'create', 'delete')
)
RULES = (
    rule(LIST, READER, 'List the snapshots of the volume service.'),
    rule(DETAIL, READER, 'List the snapshots of the volume service with details.'),
    rule(SHOW, READER, 'Show a snapshot of the volume service.'),
    rule(CREATE, MEMBER, 'Create a snapshot of a volume in the volume service.'),
    rule(DELETE, MEMBER, 'Delete a snapshot in the volume service.'),
)

# If ``force`` is true, a snapshot is also created of a volume that is in use.
CREATE_BODY = Obj(
    Prop(
        'snapshot',
        Obj(
            Prop('volume_id', t.UUID, required=True),
            Prop('display_name', t.TEXT),
            Prop('display_description', t.TEXT),
            Prop('force', t.BOOLEAN),
        ),
        required=True,
    )
)


def index(call: Call) -> dict[str, Any]:
    """List snapshots (``GET /os-snapshots`` and ``GET /os-snapshots/detail``, which have the same response)."""
    found = service(call).snapshots(call.ctxt, call.limit(), call.offset())
    return {'snapshots': [_body(snapshot) for snapshot in found]}


def show(call: Call) -> dict[str, Any]:
    """Return a snapshot (``GET /os-snapshots/{snapshot_id}``)."""
    return {'snapshot': _body(service(call).snapshot(call.ctxt, call.path['snapshot_id']))}


def create(call: Call) -> dict[str, Any]:
    """Create a snapshot (``POST /os-snapshots``). The response is sent before the snapshot is ready."""
    wanted = call.body['snapshot']
    return {
        'snapshot': _body(
            service(call).create_snapshot(
                call.ctxt,
                wanted['volume_id'],
                name=wanted.get('display_name') or '',
                description=wanted.get('display_description'),
                force=strutils.bool_from_string(wanted.get('force', False)),
            )
        )
    }


def delete(call: Call) -> None:
    """Delete a snapshot (``DELETE /os-snapshots/{snapshot_id}``). The response is sent before the snapshot is gone."""
    service(call).remove_snapshot(call.ctxt, call.path['snapshot_id'])


def _body(snapshot: VolumeSnapshot) -> dict[str, Any]:
    return {
        'id': snapshot.id,
        'volumeId': snapshot.volume_id,
        'status': snapshot.status,
        'size': snapshot.size,
        'displayName': snapshot.name,
        'displayDescription': snapshot.description,
        'createdAt': snapshot.created_at,
    }


_ONE = '/os-snapshots/{snapshot_id}'
ROUTES = (
    Route('GET', '/os-snapshots', index, LIST, query=QUERY, until=UNTIL),
    Route('GET', '/os-snapshots/detail', index, DETAIL, query=QUERY, until=UNTIL),
    Route('GET', _ONE, show, SHOW, until=UNTIL),
    Route('POST', '/os-snapshots', create, CREATE, body=CREATE_BODY, until=UNTIL),
    Route('DELETE', _ONE, delete, DELETE, status=202, until=UNTIL),
)
