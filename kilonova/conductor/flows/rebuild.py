"""Rebuild: check_host · save_spec · rebuild_instance. Of a server whose root volume gets the image: check_host ·
save_spec · stop_guest · reserve · reimage · rebuild_from_volume. The server stays where it is, with its devices and
allocation.

The host's save is the end state. What fails before the host threw the disks away, or the volume service was asked to
write the image, leaves the server as it was; what fails afterwards leaves it in ERROR, and another rebuild may follow.
"""
from __future__ import annotations

import datetime
import logging
from dataclasses import dataclass
from typing import Any

from kilonova import objects, states
from kilonova.clients.volume import Volume
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import beside, boot, volumes
from kilonova.conductor.flows.resize import image, request_spec, store_spec
from kilonova.conductor.row import Outputs, OutputsT
from kilonova.conductor.work import NotYet, Step, Work
from kilonova.db import engine
from kilonova.db.queries import claims, instances, metadata, operations, rebuilds
from kilonova.db.queries.operations import Operation
from kilonova.errors import KilonovaError, NoValidHost, Unanswered
from kilonova.objects.volume import AttachedVolume

LOG = logging.getLogger(__name__)

# Where the host says that the disks go: its last write under the step's key.
POINT = 'rebuild.spawning'
EVENT, ON_HOST = 'rebuild_server', 'compute_rebuild_instance'
# Seconds between two looks whether an image is written: the volume service tells its end as well, but once.
LOOK = 5.0


class NotReimaged(KilonovaError):
    msg_fmt = ('Volume %(volume_id)s did not get image %(image_id)s even after we waited %(seconds).0f seconds. '
               'And its status is %(status)s.')


@dataclass
class ReimageOutputs(Outputs):
    """``asked``: the volume service may have begun to write the image; ``since``: it has, at this time."""

    asked: bool = False
    since: str | None = None


def check_host(work: Work[Any]) -> None:
    """Whether the server may stay where it is with another image: only filters that look at rebuilds are asked."""
    if not work.args['check_host'] or not work.args['request_spec']:
        return
    row = work.instance_row()
    spec = request_spec(work)
    spec.requested_destination = objects.Destination(work.ctxt, host=row['host'], node=row['node'])
    spec.scheduler_hints = {**(spec.scheduler_hints or {}), '_nova_check_type': ['rebuild']}
    work.before_sending()
    work.env.select_destinations(
        work.ctxt, spec_obj=spec, instance_uuids=[work.instance_uuid], return_objects=True, return_alternates=False,
        claim=False, time_left=boot.SELECT_DEADLINE)


def save_spec(work: Work[Any]) -> None:
    """The stored request spec is from now on the new image's."""
    if work.args['request_spec']:
        store_spec(work, request_spec(work))


def undo_save_spec(work: Work[Any]) -> None:
    """The stored request spec is the old image's again, if the server is."""
    if work.args['old_request_spec'] and not _is_new(work):
        store_spec(work, request_spec(work, 'old_request_spec'))


def rebuild_instance(work: Work[Outputs]) -> None:
    """The host makes the disks anew, and writes the end state."""
    _tell(work)
    _make_anew(work)


def _make_anew(work: Work[Any]) -> None:
    order = _order(work)
    work.ask(order.instance.host, 'rebuild_instance', order=order)
    work.ended_by_host()


def _order(work: Work[Any]) -> objects.RebuildOrder:
    instance = work.instance()
    with engine.silence(), work.db.read() as conn:
        # For the config drive.
        instance.metadata = metadata.get(conn, work.instance_uuid)
    return objects.RebuildOrder(instance=instance, image=image(work), sealed=work.args.get('sealed'),
                                preserve_ephemeral=work.args['preserve_ephemeral'])


def _tell(work: Work[Any]) -> None:
    """The conductor's part is over when the host is asked, and so is its event."""
    with engine.silence(), work.db.write() as conn:
        instances.add_event_once(conn, work.instance_uuid, work.request_id, work.event(EVENT, host=work.env.host))
    work.env.notify.emit(work.ctxt, 'instance.rebuild_scheduled', instance=work.instance())


def _is_new(work: Work[Any]) -> bool:
    """Whether the host has thrown the old disks away, or the root volume is not what it was. No host throws disks away
    for a row that has failed, and none comes to that before the volume."""
    if isinstance(work.outputs, ReimageOutputs):
        return work.outputs.asked
    flow = Rebuild()
    at = flow.index('rebuild_instance')
    with engine.silence(), work.db.read() as conn:
        return claims.was_moved(conn, claims.make_key(work.uuid, at, flow.steps[at].name, work.attempt), POINT)


# --- a root volume ---------------------------------------------------------------------------------------------------
def stop_guest(work: Work[ReimageOutputs]) -> None:
    """The host sees to what can fail, stops the guest and lets the volume go that it boots from."""
    _tell(work)
    order = _order(work)
    work.ask(order.instance.host, 'stop_to_reimage', order=order)
    work.changed()


def undo_stop_guest(work: Work[ReimageOutputs]) -> None:
    """The guest runs again, if it did and has its volume as it was."""
    server = work.instance(fresh=True)
    if not work.outputs.asked and all(volume.host == server.host for volume in server.volumes if volume.is_root):
        beside.ask_to_undo(work, server.host, 'undo_stop_to_reimage', instance=server)


def reserve(work: Work[ReimageOutputs]) -> None:
    """The volume is attached to no host, and stays reserved for the server."""
    volumes.reserve_root(work)


def undo_reserve(work: Work[ReimageOutputs]) -> None:
    """It is attached to the server's host again, whatever is on it; a start or another rebuild tries that once more."""
    server = work.instance(fresh=True)
    if server.task_state not in states.ENDING:
        volumes.to_host(work, server.host)


def reimage(work: Work[ReimageOutputs]) -> None:
    """The volume service writes the image to the volume. Asked again where it was silent, and waited for until it is
    done. NotReimaged."""
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
    """An earlier rebuild may have ended while its image was being written, or because that failed."""
    _await_written(work, found, work.created_at or instances.utcnow())
    if found.status == 'error':
        work.before_sending()
        work.env.volumes.call_reserved(found.id)


def _ask_to_write(work: Work[ReimageOutputs], volume_id: str, was_asked: bool) -> None:
    """What is refused has not begun, unless an asking before was silent: what that came to the volume says, which names
    its image when it is written, and is in error where it can't be."""
    work.before_sending()
    try:
        work.env.volumes.reimage_volume(volume_id, work.args['reimage'])
    except Unanswered:
        raise
    except KilonovaError:
        found = work.env.volumes.volume(None, volume_id)
        if not found.is_written:
            work.outputs.asked = was_asked and (found.status not in volumes.THERE or
                                                found.image_metadata.get('image_id') == work.args['reimage'])
            raise
        LOG.warning('Volume %s was refused an image, and gets one', volume_id, exc_info=True)


def _await_written(work: Work[Any], found: Volume, since: datetime.datetime) -> None:
    """Nothing is being written to it. NotReimaged: for too long."""
    if not found.is_written:
        return
    if _waited(since) >= work.env.conf.reimage_timeout_per_gb * found.size:
        raise _not_written(work, found, since)
    raise NotYet(who=f'volume {found.id}', reason=f'it is {found.status}', pause=LOOK)


def _waited(since: datetime.datetime) -> float:
    return (instances.utcnow() - since).total_seconds()


def _not_written(work: Work[Any], found: Volume, since: datetime.datetime) -> NotReimaged:
    return NotReimaged(volume_id=found.id, image_id=work.args['reimage'], seconds=_waited(since), status=found.status)


def rebuild_from_volume(work: Work[ReimageOutputs]) -> None:
    """The volume is attached to the host, which makes the guest anew from it."""
    volumes.to_host(work, work.instance_row()['host'])
    _make_anew(work)


# --- the flows -------------------------------------------------------------------------------------------------------
class _Rebuilding(Flow[OutputsT]):
    """``asks``: the first step in which the host is."""

    asks: str

    def ended_badly(self, work: Work[OutputsT]) -> None:
        """The server as it was, or ERROR where its disks have gone, or its root volume; its fault and events say
        why."""
        is_new = _is_new(work)
        at = work.instance_row()['host'] if work.position >= self.index(self.asks) else None
        is_lost = is_new or (at is not None and self.is_without_root(work))
        row = work.instance_row(fresh=True) if work.env.notify.enabled else None
        # Its ports may have the new name in DNS.
        rename = ([Operation.new(work.ctxt, 'network_changed', work.instance_uuid, {'renamed': True}, beside=True)]
                  if not is_new and 'hostname' in work.args['old']['values'] else [])

        def end(conn: engine.Connection) -> None:
            uuid = work.instance_uuid
            if not is_new:
                rebuilds.write(conn, uuid, work.args['old'])
                if rename:
                    operations.insert(conn, rename)
            if instances.transition(conn, uuid, 'rebuild.lost' if is_lost else 'rebuild.failed'):
                instances.add_fault(conn, uuid, work.fault())
            # Those that weren't written when their parts ended, well or not.
            for event, host in ((EVENT, work.env.host), (ON_HOST, at))[:1 if at is None else 2]:
                instances.add_event_once(conn, uuid, work.request_id, work.event(event, 'Error', host))
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)
        work.env.runner.wake(work.db, [each.uuid for each in rename])
        if row is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(work.ctxt, 'compute_task.rebuild_server.error', instance_uuid=work.instance_uuid,
                                 request_spec=request_spec(work), state=row['vm_state'], record=work.error)

    def is_without_root(self, work: Work[OutputsT]) -> bool:
        """Whether its guest is off, and can't be started as it was."""
        return False


class Rebuild(_Rebuilding[Outputs]):
    name, outputs, asks = 'rebuild', Outputs, 'rebuild_instance'
    steps = (
        Step('check_host', check_host, saved=False),
        Step('save_spec', save_spec, undo_save_spec),
        Step('rebuild_instance', rebuild_instance),
    )


class Reimage(_Rebuilding[ReimageOutputs]):
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
        """Its volume could not be attached to the host again."""
        server = work.instance(fresh=True)
        return any(volume.host != server.host for volume in server.volumes if volume.is_root)


FLOWS = (Rebuild(), Reimage())
