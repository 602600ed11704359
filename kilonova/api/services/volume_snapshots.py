"""Assisted volume snapshots: the server's host changes the volume's files because the volume service can't do it alone.

    create(backend, ctxt, volume_id, snapshot_id, 'volume-….snap')
    delete(backend, ctxt, volume_id, snapshot_id, {'file': …, 'into': …})

The volume service sends these requests. The functions return when the operation is accepted. A conductor reports the
result to the volume service later.
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

    msg_fmt = 'volume %(volume)s is no longer in file %(file)s, or its attachment has changed'


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
    """Accept the deletion of a snapshot: the server's host will merge two files of the volume into one.

    ``merge`` has the names of the two files under the keys ``file`` and ``into``. Raises NotItsState if the snapshot's
    status is not deleting. Also raises the other errors of ``create``.
    """
    server, volume = _find(backend, ctxt, volume_id, snapshot_id, 'deleting')
    args = DeleteSnapshotArguments(volume_id=volume.volume_id, snapshot_id=snapshot_id, merge=merge)
    _accept(backend, ctxt, server, volume, DELETE, args)


def _find(
    backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str, status: str
) -> tuple[ServerRef, AttachedVolume]:
    """Return the server that has the volume, and the volume as it is attached.

    ``status`` is the status that the snapshot must have. The volume service sets this status before it sends its
    request. If the snapshot has another status, the request comes from another client and is refused. Raises the errors
    of ``create``, except MovedOn.
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
    """Accept the operation after short operations of the server, such as attaches, have ended.

    ``kind`` is CREATE or DELETE. The transaction checks again that the volume is attached with the same file, and
    raises MovedOn if it is not.
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
