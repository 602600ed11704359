"""The volumes of a server (``os-volume_attachments``): list, show, attach, swap, change and detach them.

Lists are read from the server's rows of block_device_mapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_utils import strutils

from kilonova.api.fields import ABSENT, Field, Fields, column
from kilonova.api.rules import MEMBER, PREFIX, READER, SERVICE, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import volumes
from kilonova.api.services.server_operations import WHOLE, WORK
from kilonova.api.wsgi import SERVER, Call, Reply, Route
from kilonova.errors import Invalid

# --- policy rules ----------------------------------------------------------------------------------------------------
INDEX, SHOW, CREATE, UPDATE, SWAP, DELETE = (
    f'{PREFIX}os-volumes-attachments:{verb}' for verb in ('index', 'show', 'create', 'update', 'swap', 'delete')
)
RULES = (
    rule(INDEX, READER, 'List the volumes of a server.'),
    rule(SHOW, READER, 'Show a volume of a server.'),
    rule(CREATE, MEMBER, 'Attach a volume to a server.'),
    rule(UPDATE, MEMBER, 'Change whether a volume is deleted with its server.'),
    rule(SWAP, SERVICE, 'Replace a volume of a server with another volume.'),
    rule(DELETE, MEMBER, 'Detach a volume of a server.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------
_DEVICE = {'type': ['string', 'null'], 'maxLength': 255, 'pattern': r'^/dev/x?[a-z]?d?[a-z]+[0-9]*$'}
QUERY = QuerySchema.of(Prop('limit', t.NUMBER_TEXT), Prop('offset', t.NUMBER_TEXT))
# The request may name a device. The name has no effect, because the host names the disks.
CREATE_BODY = Obj(
    Prop(
        'volumeAttachment',
        Obj(
            Prop('volumeId', t.UUID, required=True),
            Prop('device', _DEVICE),
            Prop('tag', t.TAG, since=49),
            Prop('delete_on_termination', t.BOOLEAN, since=79),
        ),
        required=True,
    )
)
SWAP_BODY = Obj(
    Prop('volumeAttachment', Obj(Prop('volumeId', t.UUID, required=True), Prop('device', _DEVICE)), required=True)
)
UPDATE_BODY = Obj(
    Prop(
        'volumeAttachment',
        Obj(
            Prop('volumeId', t.UUID, required=True),
            Prop('device', _DEVICE),
            Prop('tag', t.TAG),
            Prop('delete_on_termination', t.BOOLEAN),
            Prop('id', t.UUID),
            Prop('serverId', t.UUID),
        ),
        required=True,
    )
)
MULTIATTACH_SINCE, ASYNC_SINCE, UPDATE_SINCE = 60, 101, 85


class NotMutable(Invalid):
    """Error 400: the request would change a property of the attachment that cannot be changed."""

    msg_fmt = 'The %(name)s property is not mutable: it is %(value)s.'


# --- response fields -------------------------------------------------------------------------------------------------
LISTED, CREATED = 'list', 'create'
_LISTED, _CREATED = frozenset((LISTED,)), frozenset((CREATED,))


def _device(row: Mapping[str, Any], viewer: object) -> Any:
    """Return the device name of an attachment. The field is absent until the host has chosen a name."""
    return row['device_name'] or ABSENT


FIELDS = Fields(
    Field('id', column('volume_id'), until=88, kinds=_LISTED),
    Field('id', column('volume_id'), kinds=_CREATED),
    Field('volumeId', column('volume_id')),
    Field('serverId', column('instance_uuid')),
    Field('device', _device),
    Field('tag', column('tag'), since=70),
    Field('delete_on_termination', lambda row, viewer: bool(row['delete_on_termination']), since=79),
    Field('attachment_id', column('attachment_id'), since=89, kinds=_LISTED),
    Field('bdm_uuid', column('uuid'), since=89, kinds=_LISTED),
)


def _body(call: Call, row: Mapping[str, Any], kind: str = LISTED) -> dict[str, Any]:
    return FIELDS.render(row, None, call.version, kind)


# --- handlers of requests --------------------------------------------------------------------------------------------
def index(call: Call) -> dict[str, Any]:
    """List the volumes of a server, oldest attachment first (``GET /servers/{server_id}/os-volume_attachments``)."""
    first = call.offset()
    rows = volumes.of_server(call.server)[first : first + (call.limit() or call.backend.options.max_limit)]
    return {'volumeAttachments': [_body(call, row) for row in rows]}


def show(call: Call) -> dict[str, Any]:
    """Return one volume of a server (``GET /servers/{server_id}/os-volume_attachments/{volume_id}``)."""
    return {'volumeAttachment': _body(call, volumes.one_of(call.server, call.path['volume_id']))}


def create(call: Call) -> Any:
    """Attach a volume to a server (``POST /servers/{server_id}/os-volume_attachments``).

    Before microversion 2.101 the response is sent after the volume has been attached, and contains the attachment. From
    2.101 on the response is sent at once and has no body.
    """
    asked = call.body['volumeAttachment']
    wanted = volumes.WantedAttachment(
        asked['volumeId'], asked.get('tag'), strutils.bool_from_string(asked.get('delete_on_termination', False))
    )
    attach = volumes.attach(call.backend, call.ctxt, call.server, wanted, multiattach=call.version >= MULTIATTACH_SINCE)
    if call.version >= ASYNC_SINCE:
        return Reply(status=202)
    row = volumes.attached(call.backend, call.ctxt, call.server, attach)
    return {'volumeAttachment': _body(call, row, CREATED)}


def swap(call: Call) -> None:
    """Replace a volume of a server, up to microversion 2.84 (``PUT …/os-volume_attachments/{volume_id}``).

    Cinder sends this request while it moves a volume to another storage back end.
    """
    asked = call.body['volumeAttachment']['volumeId']
    volumes.swap(call.backend, call.ctxt, call.server, call.path['volume_id'], asked)


def update(call: Call) -> None:
    """Change an attachment, from microversion 2.85 on (``PUT …/os-volume_attachments/{volume_id}``).

    The request may set whether the volume is deleted with its server. If volumeId names another volume, the request is
    also a swap, which needs the policy rule SWAP. Raises NotMutable (400) if the request would change any other
    property.
    """
    asked, row = call.body['volumeAttachment'], volumes.one_of(call.server, call.path['volume_id'])
    is_another = asked['volumeId'].lower() != row['volume_id']
    if is_another:
        call.authorise(SWAP)
    for name, value in (
        ('id', row['volume_id']),
        ('serverId', call.server.uuid),
        ('device', row['device_name']),
        ('tag', row['tag']),
    ):
        if name in asked and asked[name] != value:
            raise NotMutable(name=name, value=value)
    if is_another:
        swap(call)
    if 'delete_on_termination' in asked:
        volumes.set_delete_on_termination(
            call.server, row['volume_id'], strutils.bool_from_string(asked['delete_on_termination'])
        )


def delete(call: Call) -> None:
    """Begin to detach a volume (``DELETE /servers/{server_id}/os-volume_attachments/{volume_id}``).

    Returns before the guest has released the device.
    """
    volumes.detach(call.backend, call.ctxt, call.server, call.path['volume_id'])


# --- routes of the handlers ------------------------------------------------------------------------------------------
_ALL, _ONE = f'{SERVER}/os-volume_attachments', f'{SERVER}/os-volume_attachments/{{volume_id}}'
ROUTES = (
    Route('GET', _ALL, index, INDEX, query=QUERY, server=WHOLE),
    Route('GET', _ONE, show, SHOW, server=WHOLE),
    Route('POST', _ALL, create, CREATE, body=CREATE_BODY, server=WORK),
    Route('PUT', _ONE, swap, SWAP, body=SWAP_BODY, status=202, server=WORK, for_services=True, until=UPDATE_SINCE - 1),
    Route('PUT', _ONE, update, UPDATE, body=UPDATE_BODY, status=202, server=WORK, asks=(SWAP,), since=UPDATE_SINCE),
    Route('DELETE', _ONE, delete, DELETE, status=202, server=WORK),
)
