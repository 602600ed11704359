"""Flows that attach a volume to an existing server (attach_to_host, plug), or detach one (unplug, delete_attachment).

An attach attaches the volume to the server's host in Cinder, then plugs it into the guest. A failure undoes the two
steps. A detach ends without a change if the guest does not release the volume. After the guest has released the volume,
the detach is completed and not undone. If the server is on no host, only Cinder is called.

The server gets no task state. The volume's row in block_device_mapping is inserted when the attach is accepted. It is
deleted when the attach has failed or a detach has succeeded.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import HostMethod, Step, Work
from kilonova.db.arguments.attachments import AttachVolumeArguments, VolumeArguments
from kilonova.db.queries import volumes as rows
from kilonova.errors import KilonovaError
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute


class VolumeGone(KilonovaError):
    """The server does not have the volume any more."""

    msg_fmt = 'Server %(server)s no longer has volume %(volume_id)s.'


def volume_of(work: Work[Any]) -> AttachedVolume:
    """Read the server's row of the volume that the operation's arguments name, and return it as an object.

    Raises VolumeGone if the server does not have the volume any more.
    """
    volume_id = work.arguments(VolumeArguments).volume_id
    for volume in work.instance(fresh=True).volumes:
        if volume.volume_id == volume_id:
            return volume
    raise VolumeGone(server=work.instance_uuid, volume_id=volume_id)


class OneVolume(Flow[OutputsT]):
    """Base class of the operations on one volume. If an operation fails, the server is unchanged.

    ``event`` is the name of the event that is added to the instance action and has the reason of a failure.
    """

    event: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """End the operation and its instance action with the result Error."""
        end_with(work, self.event, 'Error')


def end_with(work: Work[Any], event: str, result: str = 'Success', remove: str | None = None) -> None:
    """End the operation and its instance action in one transaction, and add an event with the name ``event``.

    ``result`` is 'Success' or 'Error'. ``remove`` is the uuid of a volume row that is deleted in the same transaction,
    or None.
    """
    host = work.instance_row()['host']

    Ending(
        before=(lambda conn: rows.remove(conn, remove)) if remove is not None else None,
        events=[work.event(event, result, host)],
        failed=result == 'Error',
    ).end(work)


# --- attach ----------------------------------------------------------------------------------------------------------
def attach_to_host(work: Work[Outputs]) -> None:
    """Attach the volume to the server's host in Cinder, or reserve the volume if the server is on no host."""
    volume_of(work)
    host = work.instance_row()['host']
    if host is not None:
        volumes.to_host(work, host, but=work.arguments(VolumeArguments).volume_id)
    else:
        volumes.off_host(work)


def undo_attach_to_host(work: Work[Outputs]) -> None:
    """Delete the volume's attachment in Cinder. The volume is free then."""
    row = work.arguments(AttachVolumeArguments).row
    for volume in work.instance(fresh=True).volumes:
        if volume.uuid == row:
            volumes.drop_one(work, volume)


def plug(work: Work[Outputs]) -> None:
    """Ask the host to plug the volume into the guest. End the operation.

    The attachment is completed in Cinder only after the guest has the volume, because the volume then gets the status
    in-use, and users wait for this status before they send their next request.
    """
    _ask(work, Compute.attach_volume)
    work.env.volumes.complete_attachment(volume_of(work).attachment_id or '')
    end_with(work, AttachVolume.event)


def _ask(work: Work[Outputs], method: HostMethod[..., Any]) -> None:
    """Call this method of the server's host with the volume, or do nothing if the server is on no host."""
    volume_id = volume_of(work).volume_id
    host = work.instance_row()['host']
    if host is not None:
        work.call_host(host, method, instance=work.instance(), volume_id=volume_id)


def undo_plug(work: Work[Outputs]) -> None:
    """Ask the host to unplug the volume from the guest.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
    """
    _undo(work, Compute.undo_attach_volume)


def _undo(work: Work[Outputs], method: HostMethod[..., Any]) -> None:
    server, volume_id = work.instance(fresh=True), work.arguments(VolumeArguments).volume_id
    if server.host is not None and any(volume.volume_id == volume_id for volume in server.volumes):
        releases.ask_to_undo(work, server.host, method, instance=server, volume_id=volume_id)


class AttachVolume(OneVolume[Outputs]):
    """The operation that attaches a volume to an existing server."""

    name, outputs, event = 'attach_volume', Outputs, 'compute_attach_volume'
    steps = (
        Step('attach_to_host', attach_to_host, undo_attach_to_host, formerly='attach'),
        Step('plug', plug, undo_plug),
    )

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Delete the volume's row in block_device_mapping, and end the operation with the result Error."""
        end_with(work, self.event, 'Error', work.arguments(AttachVolumeArguments).row)


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """Ask the host to detach the volume from the guest and to disconnect the volume from the host."""
    _ask(work, Compute.detach_volume)


def undo_unplug(work: Work[Outputs]) -> None:
    """Ask the host to plug the volume into the guest again, unless the guest has already released it.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
    """
    if not _is_out(work):
        _undo(work, Compute.undo_detach_volume)


def _is_out(work: Work[Outputs]) -> bool:
    """Return whether the guest has released the volume. If it has, the detach is completed and not undone."""
    return work.position > DetachVolume().index('unplug')


def delete_attachment(work: Work[Outputs]) -> None:
    """Delete the volume's attachment in Cinder and the volume's row, and end the operation."""
    volume = volume_of(work)
    volumes.drop_one(work, volume)
    end_with(work, DetachVolume.event, remove=volume.uuid)


class DetachVolume(OneVolume[Outputs]):
    """The operation that detaches a volume from a server."""

    name, outputs, event = 'detach_volume', Outputs, 'compute_detach_volume'
    steps = (Step('unplug', unplug, undo_unplug), Step('delete_attachment', delete_attachment, formerly='free'))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Complete the detach if the guest has released the volume, else end the operation with the result Error."""
        if _is_out(work):
            delete_attachment(work)
        else:
            super().ended_badly(work)


FLOWS = (AttachVolume(), DetachVolume(), volumes.VolumeExtended())
