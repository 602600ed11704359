"""Assisted volume snapshots: the server's host changes the volume's files because the volume service can't do it alone.

    create(backend, ctxt, volume_id, snapshot_id, 'volume-….snap')           # the guest will write to this new file
    delete(backend, ctxt, volume_id, snapshot_id, {'file': …, 'into': …})    # the data of ``file`` is merged ``into``

The volume service (Cinder) sends these requests for volumes that are files on NFS shares. Both functions only accept
the request. The server's host does the work later, and then a conductor reports the result to Cinder.
"""

from __future__ import annotations

from kilonova.api.services import block_devices, server_operations
from kilonova.api.services.backend import Backend
from kilonova.api.services.server_operations import WORK, ServerRef
from kilonova.api.services.volumes import NotAttached, one_of
from kilonova.context import RequestContext
from kilonova.db.arguments.attachments import (
    CreateSnapshotArguments,
    DeleteSnapshotArguments,
    MergedFiles,
    VolumeSnapshotArguments,
)
from kilonova.db.engine import Connection
from kilonova.db.queries import volumes as queries
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Conflict, Invalid, NotFound
from kilonova.objects.volume import NFS, AttachedVolume

CREATE, DELETE = 'volume_snapshot_create', 'volume_snapshot_delete'


class AttachedToNone(Invalid):
    """Error 400: no server has the volume."""

    msg_fmt = 'Invalid volume: no server has volume %(volume)s'


class AttachedToMany(Invalid):
    """Error 400: several servers have the volume."""

    msg_fmt = 'Invalid volume: volume %(volume)s is attached to several servers: %(servers)s'


class NotAFile(Invalid):
    """Error 400: the volume is not an unencrypted file on an NFS share."""

    msg_fmt = (
        'Invalid volume: the host cannot take snapshots of volume %(volume)s, because it is %(reason)s; '
        'supported are unencrypted files on NFS shares'
    )


class SnapshotUnknown(Invalid):
    """Error 400: the requested snapshot does not exist, or is a snapshot of another volume."""

    msg_fmt = 'Snapshot %(snapshot)s of volume %(volume)s could not be found.'


class MovedOn(Conflict):
    """Error 409: after the request was checked, the volume's file changed, or the volume was detached."""

    msg_fmt = 'the file of volume %(volume)s is no longer %(file)s, or the volume was detached'


class NotItsState(Conflict):
    """Error 409: the snapshot's status is not creating (for a create) or deleting (for a delete)."""

    msg_fmt = 'snapshot %(snapshot)s is %(status)s, not %(wanted)s; this API should only be called by Cinder'


def create(backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str, file: str) -> None:
    """Accept a snapshot: the guest will write to the new file ``file``, which the volume service has created.

    ``file`` is the name of a file in the directory of the volume's current file on the NFS share.

    Raises:
        NoVolumeService: This cloud has no volume service.
        AttachedToNone, AttachedToMany: The volume is not attached to exactly one server (error 400).
        NotAFile: The volume is not an unencrypted file on an NFS share (error 400).
        SnapshotUnknown: The volume has no such snapshot (error 400).
        NotItsState: The snapshot's status is not creating (error 409).
        MovedOn: The volume's file changed, or the volume was detached, in the meantime (error 409).

    Also raises the errors of ``server_operations.check``, except InstanceIsLocked.
    """
    server, volume = _find(backend, ctxt, volume_id, snapshot_id, 'creating')
    name, format_ = volume.file
    args = CreateSnapshotArguments(
        volume_id=volume.volume_id,
        snapshot_id=snapshot_id,
        files={'name': name, 'format': format_, 'new': file},
    )
    _accept(backend, ctxt, server, volume, CREATE, args)


def delete(backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str, merge: MergedFiles) -> None:
    """Accept the deletion of a snapshot: the server's host will merge one file of the volume into another file.

    ``merge`` is {'file': <name>, 'into': <name>}: the data of the first file is written into the second file, its
    backing file. ``MergedFiles`` explains the name None. Raises NotItsState if the snapshot's status is not deleting,
    and the other errors of ``create``: AttachedToNone, AttachedToMany, NotAFile, SnapshotUnknown and MovedOn.
    """
    server, volume = _find(backend, ctxt, volume_id, snapshot_id, 'deleting')
    args = DeleteSnapshotArguments(volume_id=volume.volume_id, snapshot_id=snapshot_id, merge=merge)
    _accept(backend, ctxt, server, volume, DELETE, args)


def _find(
    backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str, status: str
) -> tuple[ServerRef, AttachedVolume]:
    """Return the server to which the volume is attached, and the attached volume.

    ``status`` is the status that the snapshot must have, 'creating' or 'deleting'. Cinder sets it before it calls this
    API. A different status shows that the caller is not Cinder, so the request is refused. Raises the errors of
    ``create``, except MovedOn.
    """
    client = backend.volumes
    if client is None:
        raise block_devices.NoVolumeService(wanted=f'volume {volume_id}')
    uuids: list[str] = []
    for cell in backend.cells.databases():
        with cell.read() as conn:
            uuids += queries.servers_of(conn, volume_id.lower())
    if not uuids:
        raise AttachedToNone(volume=volume_id)
    if len(uuids) > 1:
        raise AttachedToMany(volume=volume_id, servers=', '.join(sorted(uuids)))
    server = server_operations.find_server(backend, ctxt, uuids[0], purpose=WORK, for_services=True)
    try:
        volume = AttachedVolume.read(one_of(server, volume_id))
    except NotAttached:
        raise AttachedToNone(volume=volume_id) from None
    if volume.kind != NFS or volume.encryption is not None:
        raise NotAFile(volume=volume_id, reason='encrypted' if volume.kind == NFS else f"of kind '{volume.kind}'")
    try:
        snapshot = client.snapshot(None, snapshot_id)
    except NotFound:
        raise SnapshotUnknown(snapshot=snapshot_id, volume=volume.volume_id) from None
    if snapshot.volume_id != volume.volume_id:
        raise SnapshotUnknown(snapshot=snapshot_id, volume=volume.volume_id)
    if snapshot.status != status:
        raise NotItsState(snapshot=snapshot_id, status=snapshot.status, wanted=status)
    return server, volume


def _accept(
    backend: Backend,
    ctxt: RequestContext,
    server: ServerRef,
    volume: AttachedVolume,
    kind: str,
    args: VolumeSnapshotArguments,
) -> None:
    """Accept the operation and wake a conductor. ``kind`` is CREATE or DELETE.

    While a short operation of the server, such as an attach, is running, wait for its end. The accepting transaction
    checks again that the server has the attachment ``volume`` with the same file. If not, raise MovedOn.
    """
    event = f'{kind}.start'
    server_operations.check(ctxt, server, event, locked=True)

    def check(conn: Connection) -> None:
        found = [AttachedVolume.read(row) for row in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())]
        if not any(
            (one.uuid, one.attachment_id, one.file) == (volume.uuid, volume.attachment_id, volume.file) for one in found
        ):
            raise MovedOn(volume=volume.volume_id, file=volume.file[0])

    row = OperationRow.new(ctxt, kind, server.uuid, args)
    server_operations.accept_in_turn(backend, ctxt, server, event, row, kind, write=check)
    backend.conductor.run_operation(ctxt, operation=row.uuid)
