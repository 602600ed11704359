"""The action createImage: an image without data, and an operation that brings the data."""
from __future__ import annotations

import logging
from typing import Any

from oslo_utils import uuidutils

from kilonova import states
from kilonova.api.rules import MEMBER, PREFIX, rule
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import Obj, Prop
from kilonova.api.services import accept, images, quota, refusals
from kilonova.api.services.backend import Backend
from kilonova.api.services.lookup import Found
from kilonova.api.wsgi import Call, Reply, server_action
from kilonova.context import RequestContext
from kilonova.db.queries import instances
from kilonova.db.queries.operations import Operation
from kilonova.errors import Invalid, KilonovaError
from kilonova.objects.image_meta import SYSMETA_MEMBERS, SYSMETA_PREFIX

LOG = logging.getLogger(__name__)

METADATA_COUNTED_UNTIL = 38
BODY_SINCE = 45

CREATE_IMAGE = f'{PREFIX}servers:create_image'
RULES = (rule(CREATE_IMAGE, MEMBER, 'Make an image of a server.'),)

BODY = Obj(Prop('createImage', Obj(Prop('name', t.NAME, required=True), Prop('metadata', t.METADATA)),
                required=True))


def create_image(call: Call) -> Reply:
    """createImage. Where the image is stands in a header, from 2.45 on its id in the body."""
    body = call.body['createImage']
    image_id = _make(call.backend, call.ctxt, call.server, body['name'], body.get('metadata') or {},
                     counted=call.version <= METADATA_COUNTED_UNTIL)
    if call.version >= BODY_SINCE:
        return Reply({'image_id': image_id})
    return Reply(headers=(('Location', call.backend.images.url(image_id, call.ctxt)),))


class NoImageProperty(Invalid):
    msg_fmt = "Image metadata can't be called '%(name)s': that is a member of every image."


def _make(backend: Backend, ctxt: RequestContext, server: Found, name: str, metadata: dict[str, str], *,
          counted: bool) -> str:
    """The id of the new image, which is queued until the host has sent the data.

    ``counted``: the number of metadata items has a quota (MetadataLimitExceeded). NotServed: the server's own image
    demands more than a copy of its disk. Forbidden, Invalid: the image service refuses the image. The caller owns it:
    it is made with the caller's token.
    """
    accept.check(ctxt, server, 'snapshot.start')
    if counted:
        quota.check_metadata(quota.limits(backend, ctxt.project_id), metadata)
    for key in metadata:
        if key in images.NO_PROPERTIES:
            raise NoImageProperty(name=key)
    image_id = uuidutils.generate_uuid()
    row = Operation.new(ctxt, 'snapshot', server.uuid, {'image_id': image_id})
    record = _record(backend, ctxt, server, name, metadata)
    try:
        backend.images.create({**record, 'id': image_id}, ctxt)
        accept.accept(ctxt, server, 'snapshot.start', row, 'createImage')
    except Exception:
        _take_back(backend, ctxt, image_id)
        raise
    backend.conductor.run_operation(ctxt, operation=row.uuid)
    return image_id


def _record(backend: Backend, ctxt: RequestContext, server: Found, name: str,
            metadata: dict[str, str]) -> dict[str, Any]:
    """What a server kept of its image is its image's, too; a root disk that has grown needs more room."""
    with server.cell.read() as conn:
        system_metadata = instances.get_system_metadata(conn, server.uuid)
    kept = {key.removeprefix(SYSMETA_PREFIX): value for key, value in system_metadata.items()
            if key.startswith(SYSMETA_PREFIX)}
    if server.row['vm_state'] != states.VmState.STOPPED.value:
        refusals.check_snapshot(kept)
    members = {member: kept.pop(member, None) for member in SYSMETA_MEMBERS}
    row, not_inherited = server.row, {*backend.options.non_inheritable_image_properties, *images.NO_PROPERTIES}
    properties = {key: value for key, value in kept.items() if key not in not_inherited}
    properties.update(base_image_ref=row['image_ref'] or '', image_type='snapshot', instance_uuid=server.uuid,
                      user_id=ctxt.user_id or '')
    return {**properties, **metadata, 'name': name, 'disk_format': 'qcow2', 'container_format': 'bare',
            'min_ram': int(members['min_ram'] or 0),
            'min_disk': max(int(members['min_disk'] or 0), row['root_gb'] or 0),
            'visibility': 'private' if ctxt.project_id == row['project_id'] else 'shared'}


def _take_back(backend: Backend, ctxt: RequestContext, image_id: str) -> None:
    try:
        backend.images.delete(image_id, ctxt)
    except KilonovaError as error:
        LOG.warning('Image %s of a snapshot that was not accepted may be left over: %s', image_id, error)


ROUTES = (server_action('createImage', create_image, CREATE_IMAGE, BODY),)
