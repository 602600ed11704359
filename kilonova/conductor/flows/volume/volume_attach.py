"""Flows that attach a volume to an existing server (attach, plug), or detach one (unplug, free).

AttachVolume: the volume is attached to the server's host, then plugged into the guest. A failure undoes these steps.
DetachVolume: if the guest keeps the volume, the operation ends and nothing is changed. After the guest has released the
volume, the operation only goes forward. If the server is on no host, only the volume service is called. The server gets
no task state. The row in block_device_mapping exists from the moment an attach is accepted until it has failed, or
until a detach has ended.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import HostMethod, Step, Work
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.db.queries import volumes as rows
from kilonova.errors import KilonovaError
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute


class VolumeGone(KilonovaError):
    """The server does not have the volume any more."""

    msg_fmt = 'Server %(server)s no longer has volume %(volume_id)s.'


def volume_of(work: Work[Any]) -> AttachedVolume:
    """Return the volume of this operation as its row is now.

    Raises VolumeGone if the server does not have it any more.
    """
    for volume in work.instance(fresh=True).volumes:
        if volume.volume_id == work.args['volume_id']:
            return volume
    raise VolumeGone(server=work.instance_uuid, volume_id=work.args['volume_id'])


class OneVolume(Flow[OutputsT]):
    """Base of the operations on one volume, whose failure leaves the server unchanged.

    ``event`` is the name of the action's event, which has the reason of a failure.
    """

    event: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """End the operation with the result Error."""
        end_with(work, self.event, 'Error')


def end_with(work: Work[Any], event: str, result: str = 'Success', remove: str | None = None) -> None:
    """End the operation: write its event and action, and delete the volume row ``remove``, in one transaction."""
    host = work.instance_row()['host']

    def end(conn: engine.Connection) -> None:
        if remove is not None:
            rows.remove(conn, remove)
        instances.add_events(conn, work.instance_uuid, work.request_id, [work.event(event, result, host)])
        instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error' if result == 'Error' else None)

    work.end(end)


# --- attach ----------------------------------------------------------------------------------------------------------
def attach(work: Work[Outputs]) -> None:
    """Attach the volume to the server's host, or reserve it if the server is on no host."""
    volume_of(work)
    host = work.instance_row()['host']
    if host is not None:
        volumes.to_host(work, host, but=work.args['volume_id'])
    else:
        volumes.off_host(work)


def undo_attach(work: Work[Outputs]) -> None:
    """Detach the volume, so that it is free."""
    for volume in work.instance(fresh=True).volumes:
        if volume.uuid == work.args['row']:
            volumes.drop_one(work, volume)


def plug(work: Work[Outputs]) -> None:
    """Have the host plug the volume into the guest, and end the operation.

    The attachment is completed only when the guest has the volume, because a user who waits until the volume is in use
    may send the next request then.
    """
    _ask(work, Compute.attach_volume)
    work.env.volumes.complete_attachment(volume_of(work).attachment_id or '')
    end_with(work, AttachVolume.event)


def _ask(work: Work[Outputs], method: HostMethod[..., Any]) -> None:
    """Call the server's host, if the server is on one."""
    volume_of(work)
    host = work.instance_row()['host']
    if host is not None:
        work.call_host(host, method, instance=work.instance(), volume_id=work.args['volume_id'])


def undo_plug(work: Work[Outputs]) -> None:
    """Have the host unplug the volume from the guest.

    A pending release does it if the host is down.
    """
    _undo(work, Compute.undo_attach_volume)


def _undo(work: Work[Outputs], method: HostMethod[..., Any]) -> None:
    server = work.instance(fresh=True)
    if server.host is not None and any(volume.volume_id == work.args['volume_id'] for volume in server.volumes):
        releases.ask_to_undo(work, server.host, method, instance=server, volume_id=work.args['volume_id'])


class AttachVolume(OneVolume[Outputs]):
    """The operation that attaches a volume to an existing server."""

    name, outputs, event = 'attach_volume', Outputs, 'compute_attach_volume'
    steps = (Step('attach', attach, undo_attach), Step('plug', plug, undo_plug))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Delete the volume's row and end the operation with the result Error."""
        end_with(work, self.event, 'Error', work.args['row'])


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """Have the guest and the host release the volume."""
    _ask(work, Compute.detach_volume)


def undo_unplug(work: Work[Outputs]) -> None:
    """Have the host plug the volume into the guest again.

    A pending release does it if the host is down. Nothing is done if the guest has released the volume.
    """
    if not _is_out(work):
        _undo(work, Compute.undo_detach_volume)


def _is_out(work: Work[Outputs]) -> bool:
    """Return whether the guest has released the volume, after which the detach is not undone any more."""
    return work.position > DetachVolume().index('unplug')


def free(work: Work[Outputs]) -> None:
    """Delete the attachment and the volume's row, and end the operation."""
    volume = volume_of(work)
    volumes.drop_one(work, volume)
    end_with(work, DetachVolume.event, remove=volume.uuid)


class DetachVolume(OneVolume[Outputs]):
    """The operation that detaches a volume from a server."""

    name, outputs, event = 'detach_volume', Outputs, 'compute_detach_volume'
    steps = (Step('unplug', unplug, undo_unplug), Step('free', free))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """End the operation with the result Error, or finish the detach if the guest has released the volume."""
        if _is_out(work):
            free(work)
        else:
            super().ended_badly(work)


FLOWS = (AttachVolume(), DetachVolume(), volumes.VolumeExtended())
