"""Volume snapshots that need the help of the server's host (``/os-assisted-volume-snapshots``).

The volume service sends these requests for volumes that are files on an NFS share and attached to a server.
"""

from __future__ import annotations

import json
from typing import Any

from kilonova.api.rules import PREFIX, SERVICE, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop, QuerySchema
from kilonova.api.services import volume_snapshots
from kilonova.api.wsgi import Call, Route
from kilonova.errors import Invalid

# --- policy rules ----------------------------------------------------------------------------------------------------
CREATE, DELETE = (f'{PREFIX}os-assisted-volume-snapshots:{verb}' for verb in ('create', 'delete'))
RULES = (
    rule(CREATE, SERVICE, 'Create a snapshot of an attached volume for the volume service.'),
    rule(DELETE, SERVICE, 'Delete a snapshot of an attached volume for the volume service.'),
)


# --- request schemas -------------------------------------------------------------------------------------------------

# The name of a file in the volume's directory.
# Characters such as '<' are refused, because the host looks for the name in the guest's XML definition.
_FILE = {'type': 'string', 'minLength': 1, 'maxLength': 255, 'pattern': r'^[A-Za-z0-9_-][A-Za-z0-9._-]*$'}
_FILE_OR_NONE = {'anyOf': [t.NULL, _FILE]}
_QCOW2 = t.one_of('qcow2')
CREATE_BODY = Obj(
    Prop(
        'snapshot',
        Obj(
            Prop('volume_id', t.UUID, required=True),
            Prop(
                'create_info',
                Obj(
                    Prop('snapshot_id', t.UUID, required=True),
                    Prop('type', _QCOW2, required=True),
                    Prop('new_file', _FILE, required=True),
                    Prop('id', t.UUID),
                ),
                required=True,
            ),
        ),
        required=True,
    )
)
QUERY = QuerySchema.of(Prop('delete_info', t.ANY_TEXT))
# The schema of the parameter delete_info, which is a JSON text.
DELETE_INFO = Obj(
    Prop('volume_id', t.UUID, required=True),
    Prop('type', _QCOW2),
    Prop('file_to_merge', _FILE_OR_NONE),
    Prop('merge_target_file', _FILE_OR_NONE),
)


class BadDeleteInfo(Invalid):
    """Error 400: the parameter delete_info is missing, repeated or malformed."""

    msg_fmt = 'Invalid delete_info: %(reason)s'


def _delete_info(call: Call) -> dict[str, Any]:
    """Return the parsed and checked query parameter delete_info.

    Raises BadDeleteInfo in the following cases:

    - The request does not have the parameter exactly once.
    - The value is not JSON.
    - The value has ``merge_target_file`` but does not have ``file_to_merge``.

    Raises ValidationError if the value does not match its schema.
    """
    texts = call.query.get('delete_info', [])
    if len(texts) != 1:
        raise BadDeleteInfo(reason=f'the parameter must be given exactly once, not {len(texts)} times')
    try:
        found = json.loads(texts[0])
    except (ValueError, RecursionError) as error:
        raise BadDeleteInfo(reason=f'{texts[0]} is not JSON: {error}') from None
    checked: dict[str, Any] = DELETE_INFO.check(found, call.version)
    if checked.get('merge_target_file') is not None and checked.get('file_to_merge') is None:
        raise BadDeleteInfo(reason=f'merge_target_file is {checked["merge_target_file"]}, but file_to_merge is missing')
    return checked


# --- handlers of requests --------------------------------------------------------------------------------------------
def create(call: Call) -> dict[str, Any]:
    """Begin to create a snapshot (``POST /os-assisted-volume-snapshots``).

    A conductor reports the result to the volume service later.
    """
    asked = call.body['snapshot']
    info = asked['create_info']
    volume_snapshots.create(call.backend, call.ctxt, asked['volume_id'], info['snapshot_id'], info['new_file'])
    return {'snapshot': {'id': info.get('id', info['snapshot_id']), 'volumeId': asked['volume_id']}}


def delete(call: Call) -> None:
    """Begin to delete a snapshot (``DELETE /os-assisted-volume-snapshots/{snapshot_id}``).

    A conductor reports the result to the volume service later.
    """
    info = _delete_info(call)
    volume_snapshots.delete(
        call.backend,
        call.ctxt,
        info['volume_id'],
        call.path['snapshot_id'],
        {'file': info.get('file_to_merge'), 'into': info.get('merge_target_file')},
    )


# --- routes of the handlers ------------------------------------------------------------------------------------------
ROUTES = (
    Route('POST', '/os-assisted-volume-snapshots', create, CREATE, body=CREATE_BODY),
    Route('DELETE', '/os-assisted-volume-snapshots/{snapshot_id}', delete, DELETE, query=QUERY, status=204),
)
