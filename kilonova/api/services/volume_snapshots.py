"""Snapshots of volumes that servers have, where the volume service can't take them alone: it has begun, and asks.

    create(backend, ctxt, volume_id, snapshot_id, 'volume-….snap')
    delete(backend, ctxt, volume_id, snapshot_id, Merge(file, into))

The volume service hears from a conductor how it ends, so that both return when it has begun.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kilonova.api.services import accept, block_devices
from kilonova.api.services.accept import WORK, Found
from kilonova.api.services.backend import Backend
from kilonova.api.services.volumes import NotAttached, one_of
from kilonova.context import RequestContext
from kilonova.db.engine import Connection
from kilonova.db.queries import volumes as queries
from kilonova.db.queries.operations import Operation
from kilonova.errors import Conflict, Invalid, NotFound
from kilonova.objects.volume import NFS, AttachedVolume

CREATE, DELETE = 'volume_snapshot_create', 'volume_snapshot_delete'


class AttachedToNone(Invalid):
    msg_fmt = 'Invalid volume: no server has volume %(volume)s'


class AttachedToMany(Invalid):
    msg_fmt = 'Invalid volume: volume %(volume)s is attached to several servers: %(servers)s'


class NotAFile(Invalid):
    msg_fmt = ("Invalid volume: snapshots of volume %(volume)s are not taken by its server's host: it is %(reason)s; "
               'accepted: a file of a share (nfs) that is not encrypted')


class SnapshotUnknown(Invalid):
    msg_fmt = 'Snapshot %(snapshot)s of volume %(volume)s could not be found.'


class MovedOn(Conflict):
    msg_fmt = 'volume %(volume)s is not in file %(file)s any more, or not attached as it was'


class NotItsState(Conflict):
    msg_fmt = 'snapshot %(snapshot)s is %(status)s, not %(wanted)s; this API should only be called by Cinder'


def create(backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str, file: str) -> None:
    """Let the guest write to that file from now on, which the volume service has made beside the volume's own.

    Errors: those of ``accept.check`` but for locks, and those above; NoVolumeService.
    """
    server, volume = _find(backend, ctxt, volume_id, snapshot_id, 'creating')
    name, format_ = volume.file
    _accept(backend, ctxt, server, volume, CREATE, snapshot_id, {
        'files': {'name': name, 'format': format_, 'new': file}})


def delete(backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str,
           merge: Mapping[str, str | None]) -> None:
    """Let two files behind the volume become one: ``file`` and ``into`` as ``Merge`` of ``virt.parts`` has them. The
    same errors."""
    server, volume = _find(backend, ctxt, volume_id, snapshot_id, 'deleting')
    _accept(backend, ctxt, server, volume, DELETE, snapshot_id, {'merge': dict(merge)})


def _find(backend: Backend, ctxt: RequestContext, volume_id: str, snapshot_id: str,
          status: str) -> tuple[Found, AttachedVolume]:
    """The server that has it, and as it has it. The volume service's snapshot must have that ``status``: nobody else
    is to ask."""
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
    server = accept.find_server(backend, ctxt, uuids[0], purpose=WORK, for_services=True)
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


def _accept(backend: Backend, ctxt: RequestContext, server: Found, volume: AttachedVolume, kind: str,
            snapshot_id: str, args: dict[str, Any]) -> None:
    """Begun behind what gives the server a device: the file that the volume is in is compared once more then."""
    event = f'{kind}.start'
    accept.check(ctxt, server, event, locked=True)

    def check(conn: Connection) -> None:
        found = [AttachedVolume.read(row) for row in queries.of_servers(conn, [server.uuid]).get(server.uuid, ())]
        if not any((one.uuid, one.attachment_id, one.file) == (volume.uuid, volume.attachment_id, volume.file)
                   for one in found):
            raise MovedOn(volume=volume.volume_id, file=volume.file[0])
    row = Operation.new(ctxt, kind, server.uuid, {'volume_id': volume.volume_id, 'snapshot_id': snapshot_id, **args})
    accept.accept_in_turn(backend, ctxt, server, event, row, kind, write=check)
    backend.conductor.run_operation(ctxt, operation=row.uuid)
