"""An image of a server: made without data, together with the operation whose host brings the data.

    image_id = make(backend, ctxt, server, Making('snapshot.start', 'snapshot', 'createImage', name))
"""
from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from oslo_utils import uuidutils

from kilonova import states
from kilonova.api.services import accept, images, refusals
from kilonova.api.services.accept import Found
from kilonova.api.services.backend import Backend
from kilonova.context import RequestContext
from kilonova.db.queries import instances
from kilonova.db.queries.operations import Operation
from kilonova.errors import Invalid, KilonovaError
from kilonova.objects.image_meta import SYSMETA_MEMBERS, SYSMETA_PREFIX

LOG = logging.getLogger(__name__)


class NoImageProperty(Invalid):
    msg_fmt = "Image metadata can't be called '%(name)s': that is a member of every image."


@dataclass(frozen=True)
class Making:
    """``event`` by which the server moves, ``kind`` of the operation, ``action`` of the server's story. ``properties``
    of the image besides those of every such image, ``metadata``: the user's; ``args`` of the operation besides
    image_id."""

    event: str
    kind: str
    action: str
    name: str
    properties: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)


def make(backend: Backend, ctxt: RequestContext, server: Found, making: Making) -> str:
    """The id of the new image, which is queued until the host has sent the data.

    NotServed: the server's own image demands more than a copy of its disk. Forbidden, Invalid: the image service
    refuses the image. The caller owns it: it is made with the caller's token.
    """
    for key in making.metadata:
        if key in images.NO_PROPERTIES:
            raise NoImageProperty(name=key)
    image_id = uuidutils.generate_uuid()
    row = Operation.new(ctxt, making.kind, server.uuid, {'image_id': image_id, **making.args})
    record = _record(backend, ctxt, server, making)
    try:
        backend.images.create({**record, 'id': image_id}, ctxt)
        accept.accept(ctxt, server, making.event, row, making.action)
    except Exception:
        _take_back(backend, ctxt, image_id)
        raise
    backend.conductor.run_operation(ctxt, operation=row.uuid)
    return image_id


def _record(backend: Backend, ctxt: RequestContext, server: Found, making: Making) -> dict[str, Any]:
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
    return {**properties, **making.metadata, **making.properties, 'name': making.name, 'disk_format': 'qcow2',
            'container_format': 'bare', 'min_ram': int(members['min_ram'] or 0),
            'min_disk': max(int(members['min_disk'] or 0), row['root_gb'] or 0),
            'visibility': 'private' if ctxt.project_id == row['project_id'] else 'shared'}


def _take_back(backend: Backend, ctxt: RequestContext, image_id: str) -> None:
    try:
        backend.images.delete(image_id, ctxt)
    except KilonovaError as error:
        LOG.warning('Image %s of a server may be left over, as its making was not accepted: %s', image_id, error)
