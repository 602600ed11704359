"""Flows of a rebuild, which gives a server a new image on its host, with its devices and allocation.

A rebuild of a local disk has the steps check_host, save_spec, rebuild_instance. If the server boots from a volume that
gets the image, the steps are check_host, save_spec, stop_guest, reserve, reimage, rebuild_from_volume.

The host writes the end state. A failure before the host has deleted the disks, or before the volume service was asked
to write the image, leaves the server unchanged. A later failure leaves it in ERROR, and the user may rebuild it again.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova import objects, states
from kilonova.clients.volume import Volume
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import boot, releases
from kilonova.conductor.flows.resize import image, request_spec, store_spec
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import RetryLater, Step, Work
from kilonova.db import engine
from kilonova.db.queries import claims, instances, metadata, operations, rebuilds
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import KilonovaError, NoValidHost, Unanswered
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# Event of the host's last write before it deletes the disks; the write is marked with the step key.
POINT = 'rebuild.spawning'
EVENT, ON_HOST = 'rebuild_server', 'compute_rebuild_instance'
# Seconds between two checks whether the image is written. The volume service also reports the end, but only once.
LOOK = 5.0


class NotReimaged(KilonovaError):
    """The volume service did not write the image to the volume in time."""

    msg_fmt = (
        'Volume %(volume_id)s did not get image %(image_id)s even after we waited %(seconds).0f seconds. '
        'And its status is %(status)s.'
    )


@dataclass
class ReimageOutputs(Outputs):
    """Stored results of a rebuild of a root volume.

    Attributes:
        asked: True if the volume service may have begun to write the image.
        since: Time at which it has begun, in ISO format; else None.
    """

    asked: bool = False
    since: str | None = None


def check_host(work: Work[Any]) -> None:
    """Have the scheduler check that the server may stay on its host with the new image.

    Only the filters that apply to rebuilds are run.
    """
    if not work.args['check_host'] or not work.args['request_spec']:
        return
    row = work.instance_row()
    spec = request_spec(work)
    spec.requested_destination = objects.Destination(work.ctxt, host=row['host'], node=row['node'])
    spec.scheduler_hints = {**(spec.scheduler_hints or {}), '_nova_check_type': ['rebuild']}
    work.before_sending()
    work.env.select_destinations(
        work.ctxt,
        spec_obj=spec,
        instance_uuids=[work.instance_uuid],
        return_objects=True,
        return_alternates=False,
        claim=False,
        time_left=boot.SELECT_DEADLINE,
    )


def save_spec(work: Work[Any]) -> None:
    """Store the request spec of the new image."""
    if work.args['request_spec']:
        store_spec(work, request_spec(work))


def undo_save_spec(work: Work[Any]) -> None:
    """Store the request spec of the old image again, if the server still has the old image."""
    if work.args['old_request_spec'] and not _is_new(work):
        store_spec(work, request_spec(work, 'old_request_spec'))


def rebuild_instance(work: Work[Outputs]) -> None:
    """Have the host create the disks again and write the end state."""
    _tell(work)
    _make_anew(work)


def _make_anew(work: Work[Any]) -> None:
    order = _order(work)
    work.call_host(order.instance.host, Compute.rebuild_instance, order=order)
    work.ended_by_host()


def _order(work: Work[Any]) -> objects.RebuildOrder:
    instance = work.instance()
    with engine.silence(), work.db.read() as conn:
        # The host needs it for the config drive.
        instance.metadata = metadata.get(conn, work.instance_uuid)
    return objects.RebuildOrder(
        instance=instance,
        image=image(work),
        sealed=work.args.get('sealed'),
        preserve_ephemeral=work.args['preserve_ephemeral'],
    )


def _tell(work: Work[Any]) -> None:
    """Write the event of the conductor's part, and send the notification that the rebuild was scheduled."""
    with engine.silence(), work.db.write() as conn:
        instances.add_event_once(conn, work.instance_uuid, work.request_id, work.event(EVENT, host=work.env.host))
    work.env.notify.emit(work.ctxt, 'instance.rebuild_scheduled', instance=work.instance())


def _is_new(work: Work[Any]) -> bool:
    """Return whether the host has deleted the old disks, or the root volume may have been changed.

    No host deletes disks for an operation that has failed, and none begins with that before the volume is written.
    """
    if isinstance(work.outputs, ReimageOutputs):
        return work.outputs.asked
    flow = Rebuild()
    at = flow.index('rebuild_instance')
    with engine.silence(), work.db.read() as conn:
        return claims.was_moved(conn, claims.make_key(work.uuid, at, flow.steps[at].name, work.attempt), POINT)


# --- a root volume ---------------------------------------------------------------------------------------------------
def stop_guest(work: Work[ReimageOutputs]) -> None:
    """Have the host check what may fail, stop the guest and detach the root volume."""
    _tell(work)
    order = _order(work)
    work.call_host(order.instance.host, Compute.stop_to_reimage, order=order)
    work.changed()


def undo_stop_guest(work: Work[ReimageOutputs]) -> None:
    """Have the host start the guest again, if it ran before and its root volume is unchanged and attached."""
    server = work.instance(fresh=True)
    if not work.outputs.asked and all(volume.host == server.host for volume in server.volumes if volume.is_root):
        releases.ask_to_undo(work, server.host, Compute.undo_stop_to_reimage, instance=server)


def reserve(work: Work[ReimageOutputs]) -> None:
    """Detach the root volume from the host, and keep it reserved for the server."""
    volumes.reserve_root(work)


def undo_reserve(work: Work[ReimageOutputs]) -> None:
    """Attach the root volume to the server's host again, whatever its content is.

    A start or another rebuild tries it again if it fails.
    """
    server = work.instance(fresh=True)
    if server.task_state not in states.ENDING:
        volumes.to_host(work, server.host)


def reimage(work: Work[ReimageOutputs]) -> None:
    """Have the volume service write the image to the volume, and wait until it is written.

    The request is repeated if the service did not answer. Raises NotReimaged if it takes too long or fails.
    """
    client, outputs = work.env.volumes, work.outputs
    found, was_asked = client.volume(None, _root(work).volume_id), outputs.asked
    if not was_asked:
        _make_ready(work, found)
        outputs.asked = True
        work.decide({})
    if outputs.since is None:
        if not was_asked or found.status in volumes.THERE:
            _ask_to_write(work, found.id, was_asked)
        outputs.since = instances.utcnow().isoformat()
        work.decide({})
        found = client.volume(None, found.id)
    since = datetime.datetime.fromisoformat(outputs.since)
    _await_written(work, found, since)
    if found.status not in volumes.THERE:
        raise _not_written(work, found, since)


def _root(work: Work[Any]) -> AttachedVolume:
    return next(volume for volume in work.instance().volumes if volume.is_root)


def _make_ready(work: Work[ReimageOutputs], found: Volume) -> None:
    """Wait for the end of an earlier write to the volume, and reset its error status if that write failed."""
    _await_written(work, found, work.created_at or instances.utcnow())
    if found.status == 'error':
        work.before_sending()
        work.env.volumes.call_reserved(found.id)


def _ask_to_write(work: Work[ReimageOutputs], volume_id: str, was_asked: bool) -> None:
    """Request that the volume service writes the image.

    A refusal means that the write has not begun, unless an earlier request got no reply. Then the volume itself shows
    the result: its metadata name the image when it is written, and its status is an error if that failed.
    """
    work.before_sending()
    try:
        work.env.volumes.reimage_volume(volume_id, work.args['reimage'])
    except Unanswered:
        raise
    except KilonovaError:
        found = work.env.volumes.volume(None, volume_id)
        if not found.is_written:
            work.outputs.asked = was_asked and (
                found.status not in volumes.THERE or found.image_metadata.get('image_id') == work.args['reimage']
            )
            raise
        LOG.warning(
            'The volume service refused to write an image to volume %s, but an image is being written; waiting '
            'for its end',
            volume_id,
            exc_info=True,
            instance_uuid=work.instance_uuid,
        )


def _await_written(work: Work[Any], found: Volume, since: datetime.datetime) -> None:
    """Raise RetryLater while an image is being written to the volume, and NotReimaged if that takes too long."""
    if not found.is_written:
        return
    if _waited(since) >= work.env.conf.reimage_timeout_per_gb * found.size:
        raise _not_written(work, found, since)
    raise RetryLater(who=f'volume {found.id}', reason=f'it is {found.status}', pause=LOOK)


def _waited(since: datetime.datetime) -> float:
    return (instances.utcnow() - since).total_seconds()


def _not_written(work: Work[Any], found: Volume, since: datetime.datetime) -> NotReimaged:
    return NotReimaged(volume_id=found.id, image_id=work.args['reimage'], seconds=_waited(since), status=found.status)


def rebuild_from_volume(work: Work[ReimageOutputs]) -> None:
    """Attach the root volume to the host, and have the host create the guest again from it."""
    volumes.to_host(work, work.instance_row()['host'])
    _make_anew(work)


# --- the flows -------------------------------------------------------------------------------------------------------
class _Rebuilding(Flow[OutputsT]):
    """Base of the two operations that rebuild a server.

    ``asks`` is the name of the first step that calls the host.
    """

    asks: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """Write the end state: the server as before, or ERROR if its disks or its root volume are lost.

        The fault and the events have the reason.
        """
        is_new = _is_new(work)
        at = work.instance_row()['host'] if work.position >= self.index(self.asks) else None
        is_lost = is_new or (at is not None and self.is_without_root(work))
        row = work.instance_row(fresh=True) if work.env.notify.enabled else None
        # Ports of the server may have the new name in DNS.
        rename = (
            [OperationRow.new(work.ctxt, 'network_changed', work.instance_uuid, {'renamed': True}, beside=True)]
            if not is_new and 'hostname' in work.args['old']['values']
            else []
        )

        def end(conn: engine.Connection) -> None:
            uuid = work.instance_uuid
            if not is_new:
                rebuilds.write(conn, uuid, work.args['old'])
                if rename:
                    operations.insert(conn, rename)
            if instances.transition(conn, uuid, 'rebuild.lost' if is_lost else 'rebuild.failed'):
                instances.add_fault(conn, uuid, work.fault())
            # Write the events that were not written when their parts ended, successfully or not.
            for event, host in ((EVENT, work.env.host), (ON_HOST, at))[: 1 if at is None else 2]:
                instances.add_event_once(conn, uuid, work.request_id, work.event(event, 'Error', host))
            instances.finish_action(conn, uuid, work.request_id, 'Error')

        work.end(end)
        work.env.runner.wake(work.db, [each.uuid for each in rename])
        if row is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(
                work.ctxt,
                'compute_task.rebuild_server.error',
                instance_uuid=work.instance_uuid,
                request_spec=request_spec(work),
                state=row['vm_state'],
                record=work.error,
            )

    def is_without_root(self, work: Work[OutputsT]) -> bool:
        """Return whether the guest is off and can't be started, because it has no root volume."""
        return False


class Rebuild(_Rebuilding[Outputs]):
    """The operation that rebuilds a server on a local disk."""

    name, outputs, asks = 'rebuild', Outputs, 'rebuild_instance'
    steps = (
        Step('check_host', check_host, saved=False),
        Step('save_spec', save_spec, undo_save_spec),
        Step('rebuild_instance', rebuild_instance),
    )


class Reimage(_Rebuilding[ReimageOutputs]):
    """The operation that rebuilds a server on its root volume."""

    name, outputs, asks = 'reimage', ReimageOutputs, 'stop_guest'
    steps = (
        Step('check_host', check_host, saved=False),
        Step('save_spec', save_spec, undo_save_spec),
        Step('stop_guest', stop_guest, undo_stop_guest),
        Step('reserve', reserve, undo_reserve),
        Step('reimage', reimage),
        Step('rebuild_from_volume', rebuild_from_volume),
    )

    def is_without_root(self, work: Work[ReimageOutputs]) -> bool:
        """Return whether the root volume could not be attached to the host again."""
        server = work.instance(fresh=True)
        return any(volume.host != server.host for volume in server.volumes if volume.is_root)


FLOWS = (Rebuild(), Reimage())
