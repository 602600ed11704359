"""Create an image of a server: the image record, and the operation in which the host uploads the data.

    image_id = make(backend, ctxt, server, Making('snapshot.start', 'snapshot', 'createImage', name, SnapshotArguments))

The values of ``Making`` in this example are the state change, the kind of the operation, the name of the instance
action, the name of the image, and the class of the operation's arguments.

The image of a server that boots from a volume has no data. Instead the API creates snapshots of all the server's
volumes with the user's token, and the image's property block_device_mapping names them. A new server from this image
gets volumes that are made from the snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova import states
from kilonova.api.services import block_devices, images, server_operations, unsupported, volumes
from kilonova.api.services.backend import Backend
from kilonova.api.services.scatter_gather import is_silence
from kilonova.api.services.server_operations import ServerRef
from kilonova.clients.volume import MADE_FOR_IMAGE
from kilonova.context import RequestContext
from kilonova.db.arguments.base import NewImageArguments
from kilonova.db.arguments.releases import ImageRelease, SnapshotsRelease
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Invalid, KilonovaError
from kilonova.objects.image_meta import SYSMETA_MEMBERS, SYSMETA_PREFIX

LOG = logging.getLogger(__name__)

# A conductor deletes a new image if the request for it has not been accepted after this number of seconds.
LATE = 300.0


class NoImageProperty(Invalid):
    """Error 400: a key of the new image's metadata is the name of a standard field of images."""

    msg_fmt = "Image metadata cannot have the key '%(name)s': every image has a field of this name."


class BackupOfVolume(Invalid):
    """Error 400: a backup is requested of a server that boots from a volume."""

    msg_fmt = 'Backup is not supported for volume-backed instances.'


@dataclass(frozen=True)
class Making:
    """The parameters of a new image that is created from a server.

    ``event`` is the state change with which the operation begins, such as 'snapshot.start'. ``kind`` is the kind of the
    operation, and ``action`` the name of the instance action. ``name`` is the image's name. ``arguments`` is the class
    of the operation's arguments (or a function), which is called with ``image_id``. ``metadata`` are image properties
    from the user, and ``properties`` are image properties from the calling function, such as backup_type.
    """

    event: str
    kind: str
    action: str
    name: str
    arguments: Callable[..., NewImageArguments]
    properties: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


def make(backend: Backend, ctxt: RequestContext, server: ServerRef, making: Making) -> str:
    """Create an image of the server with the parameters ``making``, and return the image's id.

    The image stays queued until the host has uploaded the data. The image of a server that boots from a volume is
    active at once. The image belongs to the caller, because it is created with the caller's token.

    Raises:
        NoImageProperty: A key of the metadata is the name of a standard field of images.
        NotServed: A property of the server's image forbids images of the running server.
        BackupOfVolume: A backup is requested of a server that boots from a volume.
        Forbidden, Invalid: The image service or the volume service refuses the request.
        TookTooLong: The image service needed more than 300 s, so a conductor already deletes the new image.

    Also raises the errors of ``server_operations.accept``.
    """
    for key in making.metadata:
        if key in images.NO_PROPERTIES:
            raise NoImageProperty(name=key)
    image_id = uuidutils.generate_uuid()
    if not server.row['image_ref']:
        _make_of_volumes(backend, ctxt, server, making, image_id)
        return image_id
    row = OperationRow.new(ctxt, making.kind, server.uuid, making.arguments(image_id=image_id))
    record = _record(backend, ctxt, server, making)
    # Plan a cleanup operation: after ``LATE`` seconds, a conductor runs the operation, which deletes the image.
    # ``write``, the transaction that accepts the request, deletes the row of the cleanup operation.
    # So the cleanup operation runs only if the request fails or this process dies.
    note = OperationRow.new(ctxt, 'release', server.uuid, ImageRelease(image_id=image_id), beside=True)
    operations.plan(server.cell, [note], LATE)

    def write(conn: Connection) -> None:
        if not operations.end_planned(conn, [note.uuid]):
            raise operations.TookTooLong

    try:
        backend.images.create({**record, 'id': image_id}, ctxt)
        server_operations.accept(ctxt, server, making.event, row, making.action, write=write)
    except Exception:
        _take_back(backend, ctxt, server, image_id, note.uuid)
        raise
    backend.conductor.run_operation(ctxt, operation=row.uuid)
    return image_id


def _record(backend: Backend, ctxt: RequestContext, server: ServerRef, making: Making) -> dict[str, Any]:
    """Return the fields and properties of the new image as one dict, in the form of the Glance API.

    The new image inherits the properties of the server's own image, which the server's system metadata stores. Its
    min_disk is the larger one of that image's min_disk and the size of the server's root disk.
    """
    with server.cell.read() as conn:
        system_metadata = instances.get_system_metadata(conn, server.uuid)
    kept = {
        key.removeprefix(SYSMETA_PREFIX): value
        for key, value in system_metadata.items()
        if key.startswith(SYSMETA_PREFIX)
    }
    if server.row['vm_state'] != states.VmState.STOPPED.value:
        unsupported.check_snapshot(kept)
    members = {member: kept.pop(member, None) for member in SYSMETA_MEMBERS}
    row, not_inherited = server.row, {*backend.options.non_inheritable_image_properties, *images.NO_PROPERTIES}
    properties = {key: value for key, value in kept.items() if key not in not_inherited}
    properties.update(
        base_image_ref=row['image_ref'] or '',
        image_type='snapshot',
        instance_uuid=server.uuid,
        user_id=ctxt.user_id or '',
    )
    return {
        **properties,
        **making.metadata,
        **making.properties,
        'name': making.name,
        'disk_format': 'qcow2',
        'container_format': 'bare',
        'min_ram': int(members['min_ram'] or 0),
        'min_disk': max(int(members['min_disk'] or 0), (row['root_gb'] or 0) if row['image_ref'] else 0),
        'visibility': 'private' if ctxt.project_id == row['project_id'] else 'shared',
    }


def _make_of_volumes(backend: Backend, ctxt: RequestContext, server: ServerRef, making: Making, image_id: str) -> None:
    """Create an image of a server that boots from a volume: an image without data, and a snapshot of each volume.

    The image property block_device_mapping names the snapshots. If an error occurs or this process dies, a conductor
    deletes the snapshots and the image.

    Raises:
        BackupOfVolume: The action is createBackup, which does not support such servers.
        NoVolumeService: This cloud has no volume service.
        Forbidden, Invalid: The volume service or the image service refuses a request.
    """
    if making.kind != 'snapshot':
        raise BackupOfVolume
    client = backend.volumes
    if client is None:
        raise block_devices.NoVolumeService(wanted='snapshot')
    record = _record(backend, ctxt, server, making)
    note = _note(backend, ctxt, server, image_id, LATE)
    try:
        devices = []
        for row in volumes.of_server(server):
            made = client.create_snapshot(
                ctxt, row['volume_id'], name=f'snapshot for {making.name}'[:255], metadata={MADE_FOR_IMAGE: image_id}
            )
            devices.append(block_devices.of_snapshot(row, made.id))
        backend.images.create(
            {**record, 'id': image_id, 'disk_format': 'raw', **block_devices.as_properties(devices)}, ctxt
        )
        backend.images.activate(image_id, ctxt)
        operations.unplan(backend.api_db, [note])
    except BaseException:
        _note(backend, ctxt, server, image_id, 0.0)
        raise
    LOG.info(
        'Image %s was created from %d volumes of server %s',
        image_id,
        len(devices),
        server.uuid,
        instance_uuid=server.uuid,
    )


def _note(backend: Backend, ctxt: RequestContext, server: ServerRef, image_id: str, delay: float) -> str:
    """Insert a cleanup operation that deletes the image and its volume snapshots, and return the operation's uuid.

    A conductor runs the operation after ``delay`` seconds, for example because this process died. After the caller has
    created all snapshots and activated the image, it deletes the operation row, so that nothing is deleted.
    """
    row = OperationRow.new(ctxt, 'release', server.uuid, SnapshotsRelease(snapshots_of=image_id), beside=True)
    operations.plan(backend.api_db, [row], delay)
    return row.uuid


def _take_back(backend: Backend, ctxt: RequestContext, server: ServerRef, image_id: str, note: str) -> None:
    """Delete the new image after its request has failed, and delete the cleanup operation of this image.

    ``note`` is the uuid of the cleanup operation, which would delete the image later. The transaction that accepts the
    request also deletes the cleanup operation. So if it does not exist, the request was accepted despite the error, and
    the image is kept.
    """
    try:
        with server.cell.read() as conn:
            if operations.get(conn, note) is None:
                return
        try:
            backend.images.delete(image_id, ctxt)
        except KilonovaError as error:
            LOG.warning(
                'The request that created image %s has failed, and the image could not be deleted now; a conductor '
                'will delete it (operation %s). Error: %s',
                image_id,
                note,
                error,
                instance_uuid=server.uuid,
            )
            operations.hasten(server.cell, note)
        else:
            operations.unplan(server.cell, [note])
    except Exception as error:
        if not isinstance(error, KilonovaError) and not is_silence(error):
            raise
        LOG.warning(
            'An error hides whether the request that created image %s was accepted. If it was not, a conductor deletes '
            'the image in %d s (operation %s). Error: %s',
            image_id,
            LATE,
            note,
            error,
            instance_uuid=server.uuid,
        )
