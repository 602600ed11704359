"""A server that is there gets a volume, or gives one up.

Attach: attach · plug. The volume is attached to the server's host, then the guest gets it; what fails leaves neither.
Detach: unplug · free. A guest that keeps it ends it, and all is as it was; once it is out, it goes to its end. Of a
server that is on no host the volume service alone is asked. Neither has a task state. The row in block_device_mapping
is there from when an attach is accepted until it failed, or a detach has ended.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, volumes
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import instances
from kilonova.db.queries import volumes as rows
from kilonova.errors import KilonovaError
from kilonova.objects.volume import AttachedVolume


class VolumeGone(KilonovaError):
    msg_fmt = 'Server %(server)s has no volume %(volume_id)s any more.'


def volume_of(work: Work[Any]) -> AttachedVolume:
    """The one that it is about, as it stands now. VolumeGone."""
    for volume in work.instance(fresh=True).volumes:
        if volume.volume_id == work.args['volume_id']:
            return volume
    raise VolumeGone(server=work.instance_uuid, volume_id=work.args['volume_id'])


class OneVolume(Flow[OutputsT]):
    """``event``: of the action. A failure leaves the server as it was, with the reason in the event."""

    event: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        end_with(work, self.event, 'Error')


def end_with(work: Work[Any], event: str, result: str = 'Success', remove: str | None = None) -> None:
    """The operation is over: the event, the action, and the row to ``remove``, together."""
    host = work.instance_row()['host']

    def end(conn: engine.Connection) -> None:
        if remove is not None:
            rows.remove(conn, remove)
        instances.add_events(conn, work.instance_uuid, work.request_id, [work.event(event, result, host)])
        instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error' if result == 'Error' else None)
    work.end(end)


# --- attach ----------------------------------------------------------------------------------------------------------
def attach(work: Work[Outputs]) -> None:
    """The volume is attached to the server's host, or to the server alone."""
    volume_of(work)
    host = work.instance_row()['host']
    if host is not None:
        volumes.to_host(work, host, but=work.args['volume_id'])
    else:
        volumes.off_host(work)


def undo_attach(work: Work[Outputs]) -> None:
    """The volume is free."""
    for volume in work.instance(fresh=True).volumes:
        if volume.uuid == work.args['row']:
            volumes.drop_one(work, volume)


def plug(work: Work[Outputs]) -> None:
    """The guest gets it. Who waits until the volume is in use may ask for something else then."""
    _ask(work, 'attach_volume')
    work.env.volumes.complete_attachment(volume_of(work).attachment_id or '')
    end_with(work, Attach.event)


def _ask(work: Work[Outputs], method: str) -> None:
    """The server's host, if it is on one."""
    volume_of(work)
    host = work.instance_row()['host']
    if host is not None:
        work.ask(host, method, instance=work.instance(), volume_id=work.args['volume_id'])


def undo_plug(work: Work[Outputs]) -> None:
    """The guest hasn't got it; its host does that later if it is down."""
    _undo(work, 'undo_attach_volume')


def _undo(work: Work[Outputs], method: str) -> None:
    server = work.instance(fresh=True)
    if server.host is not None and any(volume.volume_id == work.args['volume_id'] for volume in server.volumes):
        beside.ask_to_undo(work, server.host, method, instance=server, volume_id=work.args['volume_id'])


class Attach(OneVolume[Outputs]):
    name, outputs, event = 'attach_volume', Outputs, 'compute_attach_volume'
    steps = (Step('attach', attach, undo_attach), Step('plug', plug, undo_plug))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """The server never had it."""
        end_with(work, self.event, 'Error', work.args['row'])


# --- detach ----------------------------------------------------------------------------------------------------------
def unplug(work: Work[Outputs]) -> None:
    """The guest lets the volume go, and its host does."""
    _ask(work, 'detach_volume')


def undo_unplug(work: Work[Outputs]) -> None:
    """The guest has it again; its host does that later if it is down."""
    if not _is_out(work):
        _undo(work, 'undo_detach_volume')


def _is_out(work: Work[Outputs]) -> bool:
    """Whether the guest has let it go: from then on there is no way back."""
    return work.position > Detach().index('unplug')


def free(work: Work[Outputs]) -> None:
    """The attachment goes; then the server has one volume less."""
    volume = volume_of(work)
    volumes.drop_one(work, volume)
    end_with(work, Detach.event, remove=volume.uuid)


class Detach(OneVolume[Outputs]):
    name, outputs, event = 'detach_volume', Outputs, 'compute_detach_volume'
    steps = (Step('unplug', unplug, undo_unplug), Step('free', free))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Cancelled behind that point it goes to its end."""
        if _is_out(work):
            free(work)
        else:
            super().ended_badly(work)


FLOWS = (Attach(), Detach(), volumes.VolumeExtended())
