"""Flows of a rebuild, which gives a server a new image. The server keeps its host, devices and allocation.

If the root disk is a local disk, the steps are check_host, save_spec and rebuild_instance. If it is a volume, to which
the volume service writes the image, the steps are check_host, save_spec, stop_guest, reserve_root_volume, reimage and
rebuild_from_volume.

If a rebuild fails before the host has deleted the disks, or before the volume service was asked to write the image, the
server is unchanged. After a later failure the server has the state ERROR, and the user may rebuild it again.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova import objects, states
from kilonova.clients.volume import Volume
from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import boot, releases
from kilonova.conductor.flows.moving import image, store_spec
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import RetryLater, Step, Work
from kilonova.db import engine
from kilonova.db.arguments.attachments import NetworkChangedArguments
from kilonova.db.arguments.servers import RebuildArguments, ReimageArguments
from kilonova.db.queries import claims, instances, metadata, operations, rebuilds
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import KilonovaError, NoValidHost, Unanswered
from kilonova.objects.volume import AttachedVolume
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)

# The state transition that the host records in the database, with its step key, just before it deletes the disks.
# After a failure, ``_is_new`` reads it there: if it is recorded, the host may have deleted the disks.
POINT = 'rebuild.spawning'
EVENT, ON_HOST = 'rebuild_server', 'compute_rebuild_instance'
# Seconds between two checks whether Cinder has written the image. Cinder also sends an event, which may be lost.
LOOK = 5.0


class NotReimaged(KilonovaError):
    """The volume service failed to write the image to the volume, or took too long."""

    msg_fmt = (
        'Volume %(volume_id)s did not get image %(image_id)s even after we waited %(seconds).0f seconds. '
        'And its status is %(status)s.'
    )


@dataclass
class ReimageOutputs(Outputs):
    """Stored results of a rebuild of a root volume.

    Attributes:
        asked: True if the volume service was asked to write the image and so may have begun to write.
        since: Time at which the volume service accepted the request, in ISO format; None before that.
    """

    asked: bool = False
    since: str | None = None


def check_host(work: Work[Any]) -> None:
    """Ask the scheduler to check that the server's host fits the new image. Raises NoValidHost if it does not fit.

    Only the filters that apply to rebuilds are run. Nothing is checked if the image is not changed.
    """
    args = work.arguments(RebuildArguments)
    if not args.check_host or not args.request_spec:
        return
    row = work.instance_row()
    spec = work.request_spec(args.request_spec)
    spec.requested_destination = objects.Destination(work.ctxt, host=row['host'], node=row['node'])
    spec.scheduler_hints = {**(spec.scheduler_hints or {}), '_nova_check_type': ['rebuild']}
    work.before_sending()
    work.env.select_destinations(
        work.ctxt,
        spec_obj=spec,
        instance_uuids=[work.instance_uuid],
        return_alternates=False,
        claim=False,
        time_left=boot.SELECT_DEADLINE,
    )


def save_spec(work: Work[Any]) -> None:
    """Store the request spec of the new image."""
    if spec := work.arguments(RebuildArguments).request_spec:
        store_spec(work, work.request_spec(spec))


def undo_save_spec(work: Work[Any]) -> None:
    """Store the request spec of the old image again, if the server still has the old image."""
    spec = work.arguments(RebuildArguments).old_request_spec
    if spec and not _is_new(work):
        store_spec(work, work.request_spec(spec))


def rebuild_instance(work: Work[Outputs]) -> None:
    """Ask the host to create the disks from the new image and to start the guest."""
    _tell(work)
    _make_anew(work)


def _make_anew(work: Work[Any]) -> None:
    order = _order(work)
    work.call_host(order.instance.host, Compute.rebuild_instance, order=order)
    work.ended_by_host()


def _order(work: Work[Any]) -> objects.RebuildOrder:
    instance, args = work.instance(), work.arguments(RebuildArguments)
    with engine.silence(), work.db.read() as conn:
        # The host writes the user's metadata to the config drive.
        instance.metadata = metadata.get(conn, work.instance_uuid)
    return objects.RebuildOrder(
        instance=instance,
        image=image(work),
        sealed=args.sealed,
        preserve_ephemeral=args.preserve_ephemeral,
    )


def _tell(work: Work[Any]) -> None:
    """Write the event ``rebuild_server`` to the instance action, and send the notification of the scheduled rebuild."""
    with engine.silence(), work.db.write() as conn:
        instances.add_event_once(conn, work.instance_uuid, work.request_id, work.event(EVENT, host=work.env.host))
    work.env.notify.emit(work.ctxt, 'instance.rebuild_scheduled', instance=work.instance())


def _is_new(work: Work[Any]) -> bool:
    """Return whether the old root disk may be lost: deleted by the host, or overwritten if it is a volume.

    Call this after the operation has failed. The result is then final, because a host does not start to delete the
    disks for a failed operation.
    """
    if isinstance(work.outputs, ReimageOutputs):
        return work.outputs.asked
    flow = Rebuild()
    at = flow.index('rebuild_instance')
    with engine.silence(), work.db.read() as conn:
        return claims.was_moved(conn, claims.make_key(work.uuid, at, flow.steps[at].key_name, work.attempt), POINT)


# --- rebuild of a root volume ----------------------------------------------------------------------------------------
def stop_guest(work: Work[ReimageOutputs]) -> None:
    """Ask the host to stop the guest and to disconnect the root volume.

    The host first checks that it can rebuild the server.
    """
    _tell(work)
    order = _order(work)
    work.call_host(order.instance.host, Compute.stop_to_reimage, order=order)
    work.changed()


def undo_stop_guest(work: Work[ReimageOutputs]) -> None:
    """If the guest ran before the rebuild, ask the host to start the guest again.

    Do nothing if the root volume may have been overwritten or is not attached to the host.
    """
    server = work.instance(fresh=True)
    if not work.outputs.asked and all(volume.host == server.host for volume in server.volumes if volume.is_root):
        releases.ask_to_undo(work, server.host, Compute.undo_stop_to_reimage, instance=server)


def reserve_root_volume(work: Work[ReimageOutputs]) -> None:
    """Detach the root volume from the host in Cinder, and keep the volume reserved for the server."""
    volumes.reserve_root(work)


def undo_reserve_root_volume(work: Work[ReimageOutputs]) -> None:
    """Attach the root volume to the server's host again, even if its content was overwritten.

    If the volume can't be attached, a later start or rebuild of the server tries to attach it.
    """
    server = work.instance(fresh=True)
    if server.task_state not in states.ENDING:
        volumes.to_host(work, server.host)


def reimage(work: Work[ReimageOutputs]) -> None:
    """Ask the volume service to write the image to the root volume. Wait until the image is written.

    The request is repeated if the volume service did not answer. Raises NotReimaged if the write fails or takes too
    long.
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
    """Make the volume ``found`` ready to be reimaged: wait for a running reimage, and clear the status error.

    After a failed reimage the volume has the status error. Its status is set to reserved. Raises RetryLater while
    Cinder still writes an image for an earlier request, and NotReimaged if this takes too long.
    """
    _await_written(work, found, work.created_at or instances.utcnow())
    if found.status == 'error':
        work.before_sending()
        work.env.volumes.call_reserved(found.id)


def _ask_to_write(work: Work[ReimageOutputs], volume_id: str, was_asked: bool) -> None:
    """Request that Cinder writes the image to the volume.

    If Cinder refuses the request since it is already writing an image, only log this. For any other refusal, set
    ``outputs.asked`` to whether an earlier request may have changed the volume, and raise the refusal. ``was_asked`` is
    True if there was an earlier request without a reply.
    """
    image_id = work.arguments(ReimageArguments).reimage
    work.before_sending()
    try:
        work.env.volumes.reimage_volume(volume_id, image_id)
    except Unanswered:
        raise
    except KilonovaError:
        found = work.env.volumes.volume(None, volume_id)
        if not found.is_written:
            work.outputs.asked = was_asked and (
                found.status not in volumes.THERE or found.image_metadata.get('image_id') == image_id
            )
            raise
        LOG.warning(
            'Cinder refused the request to write an image to volume %s, but it is already writing one, probably for '
            'an earlier request; waiting until the image is written',
            volume_id,
            exc_info=True,
            instance_uuid=work.instance_uuid,
        )


def _await_written(work: Work[Any], found: Volume, since: datetime.datetime) -> None:
    """Raise RetryLater while an image is being written to the volume, and NotReimaged if the write takes too long.

    ``since`` is the time at which the write began. The time limit is [DEFAULT]reimage_timeout_per_gb for each GiB.
    """
    if not found.is_written:
        return
    if _waited(since) >= work.env.conf.reimage_timeout_per_gb * found.size:
        raise _not_written(work, found, since)
    raise RetryLater(who=f'volume {found.id}', reason=f'it is {found.status}', pause=LOOK)


def _waited(since: datetime.datetime) -> float:
    return (instances.utcnow() - since).total_seconds()


def _not_written(work: Work[Any], found: Volume, since: datetime.datetime) -> NotReimaged:
    image_id = work.arguments(ReimageArguments).reimage
    return NotReimaged(volume_id=found.id, image_id=image_id, seconds=_waited(since), status=found.status)


def rebuild_from_volume(work: Work[ReimageOutputs]) -> None:
    """Attach the root volume to the host. Ask the host to create the guest from the volume."""
    volumes.to_host(work, work.instance_row()['host'])
    _make_anew(work)


# --- the flows -------------------------------------------------------------------------------------------------------
class _Rebuilding(Flow[OutputsT]):
    """Base class of the two operations that rebuild a server.

    The attribute ``asks`` is the name of the first step that calls the server's host. If a rebuild fails before this
    step, the instance action gets no event of the host.
    """

    asks: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """End a failed rebuild, and write a fault and events with the reason of the failure.

        The server's row gets the values that it had before the rebuild, unless the old root disk is lost. The server
        gets the state ERROR if the old root disk is lost or if the root volume is not attached; otherwise it gets its
        former state.
        """
        is_new = _is_new(work)
        at = work.instance_row()['host'] if work.position >= self.index(self.asks) else None
        is_lost = is_new or (at is not None and self.is_without_root(work))
        row = work.instance_row(fresh=True) if work.env.notify.enabled else None
        old = work.arguments(RebuildArguments).old
        # If the rebuild has changed the hostname, write the old hostname to the DNS names of the ports again.
        rename = (
            [
                OperationRow.new(
                    work.ctxt,
                    'network_changed',
                    work.instance_uuid,
                    NetworkChangedArguments(renamed=True),
                    beside=True,
                )
            ]
            if not is_new and 'hostname' in old['values']
            else []
        )

        def as_it_was(conn: engine.Connection) -> None:
            rebuilds.write(conn, work.instance_uuid, old)
            if rename:
                operations.insert(conn, rename)

        # The instance action gets an event ``ON_HOST`` only if the host was called.
        events = [work.event(EVENT, 'Error', work.env.host)]
        events += [work.event(ON_HOST, 'Error', at)] if at is not None else []
        Ending(
            before=None if is_new else as_it_was,
            event='rebuild.lost' if is_lost else 'rebuild.failed',
            fault=True,
            events=events,
            once=True,
            failed=True,
        ).end(work)
        work.env.runner.wake(work.db, [each.uuid for each in rename])
        spec = work.arguments(RebuildArguments).request_spec
        if row is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(
                work.ctxt,
                'compute_task.rebuild_server.error',
                instance_uuid=work.instance_uuid,
                request_spec=work.request_spec(spec) if spec else None,
                state=row['vm_state'],
                record=work.error,
            )

    def is_without_root(self, work: Work[OutputsT]) -> bool:
        """Return whether the server's root volume is not attached, so that the guest can't be started.

        The result is False here, because a local root disk is never detached.
        """
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
        Step('reserve_root_volume', reserve_root_volume, undo_reserve_root_volume, formerly='reserve'),
        Step('reimage', reimage),
        Step('rebuild_from_volume', rebuild_from_volume),
    )

    def is_without_root(self, work: Work[ReimageOutputs]) -> bool:
        """Return whether the root volume is still detached from the server's host after the undo, so no guest can run.

        The undo attaches the root volume again, unless Cinder refuses this.
        """
        server = work.instance(fresh=True)
        return any(volume.host != server.host for volume in server.volumes if volume.is_root)


FLOWS = (Rebuild(), Reimage())
