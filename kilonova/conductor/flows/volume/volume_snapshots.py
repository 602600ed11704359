"""Flows for snapshots of volumes that are files of a network share and attached to a server.

The volume service requests these operations, because only the guest's host can switch the guest to another file or
merge files that the guest uses.

The steps of a create are switch_file and notify_volume_service. In ``switch_file`` the host switches the guest to a new
file. The new file is an overlay with the former file as its backing file, and the server's row then names the new file.
From this point on the snapshot is not undone: a guest that opens the new file sees all data. If the volume service
rejects the snapshot in ``notify_volume_service``, the host merges the new file into the former one, and the snapshot
fails.

The steps of a delete are merge and notify_volume_service. The host merges two files of the volume's backing chain. The
guest reads these files and writes to another one, so the server's row is not changed. The server gets no task state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova.clients.volume import SnapshotNotFound
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume.volume_attach import OneVolume, end_with, volume_of
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, HostMethod, RetryLater, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import (
    CreateSnapshotArguments,
    DeleteSnapshotArguments,
    VolumeSnapshotArguments,
)
from kilonova.db.arguments.releases import SnapshotStatusRelease
from kilonova.db.queries import volumes as rows
from kilonova.errors import Cancelled, KeyGone, KilonovaError, LeaseLost, Unanswered
from kilonova.objects.volume import QCOW2
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError

LOG = logging.getLogger(__name__)

# Progress value which tells Cinder that the host is done, and seconds between two checks of a snapshot's status.
DONE, LOOK = '90%', 1.0


class SnapshotRefused(KilonovaError):
    """The volume service rejected the snapshot."""

    msg_fmt = 'The volume service rejected snapshot %(snapshot)s: %(reason)s'


@dataclass
class SnapshotOutputs(Outputs):
    """Stored results of a snapshot operation.

    Attributes:
        asked: True if this operation may already have called the host to switch the guest to the new file.
        done: True if the guest writes to the new file (create), or if the files are merged (delete).
        kept: True if it is certain that the guest writes to the former file.
        refused: True if the volume service rejected the snapshot.
    """

    asked: bool = False
    done: bool = False
    kept: bool = False
    refused: bool = False


def _ask(work: Work[SnapshotOutputs], method: HostMethod[..., Any], message: dict[str, Any]) -> None:
    """Call the RPC method ``method`` of the server's host, with the server and ``message`` as its arguments.

    ``message`` is the result of ``_files`` (create) or ``_merge`` (delete).

    Raises HostDown if an operator has forced the host down, because no guest runs on it then. Raises HostNotFenced if
    the host is down and may still run the guest, because it is then unknown which file the guest uses.
    """
    volume_of(work)
    server = work.instance()
    try:
        work.call_host(server.host, method, instance=server, **message)
    except HostDown:
        releases.check_no_guest(work, server.host)
        raise


def _files(work: Work[SnapshotOutputs]) -> dict[str, Any]:
    """Return {'files': {…}}, the RPC argument that names the volume and its files, for calls that create a snapshot."""
    args = work.arguments(CreateSnapshotArguments)
    return {'files': {**args.files, 'volume_id': args.volume_id}}


def _merge(work: Work[SnapshotOutputs]) -> dict[str, Any]:
    """Return {'merge': {…}}, the RPC argument that names the volume and the files to merge, to delete a snapshot."""
    args = work.arguments(DeleteSnapshotArguments)
    return {'merge': {**args.merge, 'volume_id': args.volume_id}}


def _look(work: Work[SnapshotOutputs], method: HostMethod[..., Any], message: dict[str, Any]) -> Any:
    """Call ``method`` on the server's host, to undo a step. Return the host's reply, or None if the host is down.

    The reply is a dict that says whether the guest writes to the new file ('taken') or whether the files are merged
    ('merged'). ``message`` has the further arguments of the method.
    """
    server = work.instance(fresh=True)
    return releases.ask_to_undo(work, server.host, method, instance=server, **message)


# --- create ----------------------------------------------------------------------------------------------------------
def switch_file(work: Work[SnapshotOutputs]) -> None:
    """Ask the host to switch the guest to the new file. Write the new file's name to the server's row."""
    args = work.arguments(CreateSnapshotArguments)
    if not work.outputs.asked:
        _plan(work)
    try:
        _ask(work, Compute.snapshot_volume, _files(work))
    except VersionCapError:
        # The host's release is too old for the call, which was not sent, so the guest still writes to the former file.
        work.outputs.kept = True
        raise
    except HostDown as error:
        LOG.warning(
            'Could not ask the host whether the guest writes to the snapshot file of volume %s; recording file %s: %s',
            args.volume_id,
            args.files['new'],
            error,
            instance_uuid=work.instance_uuid,
        )
    work.outputs.done = True
    work.write_with_checkpoint(_is_in(work, args.files['new'], QCOW2))
    work.changed()


def _plan(work: Work[SnapshotOutputs]) -> None:
    """Record in the operation row that the host will be called to switch the guest to the new file.

    Raises HostDown if the host is forced down already; the guest keeps the former file. Raises HostNotFenced if the
    host is down and may still run the guest.
    """
    host = work.instance().host
    with engine.silence():
        is_down = work.env.liveness.is_down(work.db, host)
    if is_down:
        releases.check_no_guest(work, host)
        work.outputs.kept = True
        raise HostDown(host=host)
    work.outputs.asked = True
    work.decide({})


def _is_in(work: Work[SnapshotOutputs], name: str, format_: str) -> Callable[[engine.Connection], object]:
    """Return a function ``write(conn)`` that records in the server's volume row which file the guest now writes to.

    ``name`` and ``format_`` of the file become part of the row's connection_info. The caller runs ``write`` in its own
    transaction.
    """
    volume = volume_of(work).in_file(name, format_)
    connector = volume.known_at.get(volume.host or '', {}).get('connector')
    text = volume.connection_info(work.instance_uuid, volume.host, volume.connection, connector)
    return lambda conn: rows.change(conn, volume.uuid, volume.attachment_id, {'connection_info': text})


def undo_switch_file(work: Work[SnapshotOutputs]) -> None:
    """Ask the host which file the guest writes to. Record the new file in the server's row if the guest uses it.

    If the host is down, the new file is also recorded. This is safe, because the new file is an overlay with the former
    file as its backing file: a guest that opens the new file sees all data.
    """
    if not work.outputs.done and not work.outputs.kept:
        answer = _look(work, Compute.undo_snapshot_volume, _files(work))
        work.outputs.done = answer is None or answer['taken']
    if work.outputs.done:
        new = work.arguments(CreateSnapshotArguments).files['new']
        work.decide({}, cancelled=True, write=_is_in(work, new, QCOW2))
        work.changed()


def notify_volume_service(work: Work[SnapshotOutputs]) -> None:
    """Notify the volume service that the guest writes to the new file, and wait until it has recorded the new file.

    The wait takes some seconds. Without it, the volume service would give the former file to another host if the server
    moved at once. Raises SnapshotRefused if the volume service rejects the snapshot. In this case the guest has been
    switched back to the former file.
    """
    snapshot_id = work.arguments(CreateSnapshotArguments).snapshot_id
    reason = releases.tell_snapshot(work, snapshot_id, 'creating', DONE)
    if not _is_taken(work):
        work.outputs.refused = True
        _withdraw(work)
        raise SnapshotRefused(snapshot=snapshot_id, reason=reason or 'it could not create the snapshot')
    end_with(work, Create.event)


def _withdraw(work: Work[SnapshotOutputs]) -> None:
    """Ask the host to merge the new file into the former file and to switch the guest back to the former file.

    The former file is also written to the server's row. Raises Unanswered if the host can't do this now. The operation
    must wait for the host, because otherwise another host would get the former file, without the newer data, if the
    server moved.
    """
    files = work.arguments(CreateSnapshotArguments).files
    try:
        _ask(work, Compute.withdraw_volume_snapshot, _files(work))
    except HostDown:
        _say_where(work, "the server's host is off")
        raise
    except (Unanswered, LeaseLost, KeyGone, Cancelled):
        raise
    except KilonovaError as error:
        raise Unanswered(f'Host {work.instance().host} cannot merge the snapshot now: {error}') from error
    work.outputs.done, work.outputs.kept = False, True
    work.decide({}, write=_is_in(work, files['name'], files['format']))
    work.changed()


def _say_where(work: Work[SnapshotOutputs], why: str) -> None:
    """Log an error that names the file whose data an operator must merge (docs/admin/volumes.md).

    ``why`` is the reason in the log line.
    """
    args = work.arguments(CreateSnapshotArguments)
    LOG.error(
        'Data that server %s wrote to volume %s is in file %s, which the volume service does not know (%s). '
        'An operator must merge the file, see docs/admin/volumes.md',
        work.instance_uuid,
        args.volume_id,
        args.files['new'],
        why,
        instance_uuid=work.instance_uuid,
    )


def _is_taken(work: Work[SnapshotOutputs]) -> bool:
    """Return whether the volume service has created the snapshot.

    Raises RetryLater while the snapshot is being created or deleted, because the result is not known yet.
    """
    snapshot_id = work.arguments(CreateSnapshotArguments).snapshot_id
    try:
        status = work.env.volumes.snapshot(None, snapshot_id).status
    except SnapshotNotFound:
        return False
    if status in ('creating', 'deleting'):
        raise RetryLater(who=f'snapshot {snapshot_id}', reason=f'it is {status}', pause=LOOK)
    return status != 'error'


class Create(OneVolume[SnapshotOutputs]):
    """The operation that takes a snapshot of a volume in use."""

    name, outputs, event = 'volume_snapshot_create', SnapshotOutputs, 'compute_volume_snapshot_create'
    steps = (
        Step('switch_file', switch_file, undo_switch_file, formerly='take'),
        Step('notify_volume_service', notify_volume_service, formerly='tell'),
    )

    def ended_badly(self, work: Work[SnapshotOutputs]) -> None:
        """End a failed or cancelled snapshot, and notify the volume service of the result.

        If the guest writes to the new file, it is not switched back. In this case the operation ends only when the
        volume service has recorded the new file, unless the server is being deleted.
        """
        taken = work.outputs.done and not work.outputs.refused
        if not work.outputs.refused:
            _tell_or_note(work, *(('creating', DONE) if taken else ('error', None)))
        if taken and not work.cancelled and not _is_taken(work):
            # Cinder has rejected the snapshot, but the guest writes to the new file.
            # A failed operation does not call the host to merge the files, so an operator must merge them.
            _say_where(work, "the server's host failed before")
            taken = False
        if taken:
            end_with(work, self.event)
        else:
            super().ended_badly(work)


def _tell_or_note(work: Work[SnapshotOutputs], status: str, progress: str | None) -> None:
    """Notify the volume service of the snapshot's status. If it does not answer, add an operation row.

    A conductor runs this operation (a pending release) later and sends the status then. So an undo does not wait for
    the volume service.
    """
    told = (work.arguments(VolumeSnapshotArguments).snapshot_id, status, progress)
    releases.now_or_later(
        work,
        'Notifying the volume service of a snapshot',
        lambda: releases.tell_snapshot(work, *told),
        lambda: releases.add_release(work, SnapshotStatusRelease(snapshot_told=told)),
    )


# --- delete ----------------------------------------------------------------------------------------------------------
def merge(work: Work[SnapshotOutputs]) -> None:
    """Ask the host to merge two files of the volume."""
    _ask(work, Compute.merge_volume, _merge(work))
    work.outputs.done = True


def undo_merge(work: Work[SnapshotOutputs]) -> None:
    """Ask the host to end a running merge and to report whether the files are merged.

    A complete merge is not undone.
    """
    if not work.outputs.done:
        answer = _look(work, Compute.undo_merge_volume, _merge(work))
        work.outputs.done = answer is not None and answer['merged']


def notify_of_merge(work: Work[SnapshotOutputs]) -> None:
    """Notify the volume service that it can remove the merged file.

    A refusal of the volume service is ignored. Either the volume service has removed the file already, or it will
    request the delete again, and then the host finds the files merged.
    """
    releases.tell_snapshot(work, work.arguments(DeleteSnapshotArguments).snapshot_id, 'deleting', DONE)
    end_with(work, DeleteVolumeSnapshot.event)


class DeleteVolumeSnapshot(OneVolume[SnapshotOutputs]):
    """The operation that deletes a snapshot of a volume in use."""

    name, outputs, event = 'volume_snapshot_delete', SnapshotOutputs, 'compute_volume_snapshot_delete'
    steps = (
        Step('merge', merge, undo_merge),
        Step('notify_volume_service', notify_of_merge, formerly='tell'),
    )

    def ended_badly(self, work: Work[SnapshotOutputs]) -> None:
        """End a failed or cancelled delete, and notify the volume service of the result.

        If the files are merged already, the delete counts as successful.
        """
        _tell_or_note(work, *(('deleting', DONE) if work.outputs.done else ('error_deleting', None)))
        if work.outputs.done:
            end_with(work, self.event)
        else:
            super().ended_badly(work)


FLOWS = (Create(), DeleteVolumeSnapshot())
