"""Rebuild: check_host · save_spec · rebuild_instance. The server stays where it is, with its devices and allocation.

The host's save is the end state. What fails before the host threw the disks away leaves the server as it was; what
fails afterwards leaves it in ERROR, and another rebuild may follow.
"""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import boot
from kilonova.conductor.flows.resize import image, request_spec, store_spec
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import claims, instances, metadata, rebuilds
from kilonova.errors import NoValidHost

# Where the host says that the disks go: its last write under the step's key.
POINT = 'rebuild.spawning'
EVENT, ON_HOST = 'rebuild_server', 'compute_rebuild_instance'


def check_host(work: Work[Outputs]) -> None:
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


def save_spec(work: Work[Outputs]) -> None:
    """The stored request spec is from now on the new image's."""
    if work.args['request_spec']:
        store_spec(work, request_spec(work))


def undo_save_spec(work: Work[Outputs]) -> None:
    """The stored request spec is the old image's again, if the server is."""
    if work.args['old_request_spec'] and not _is_new(work):
        store_spec(work, request_spec(work, 'old_request_spec'))


def rebuild_instance(work: Work[Outputs]) -> None:
    """The host makes the disks anew, and writes the end state."""
    _tell(work)
    instance = work.instance()
    with engine.silence(), work.db.read() as conn:
        # For the config drive.
        instance.metadata = metadata.get(conn, work.instance_uuid)
    work.ask(instance.host, 'rebuild_instance', order=objects.RebuildOrder(
        instance=instance, image=image(work), sealed=work.args.get('sealed'),
        preserve_ephemeral=work.args['preserve_ephemeral']))
    work.ended_by_host()


def _tell(work: Work[Outputs]) -> None:
    """The conductor's part is over when the host is asked, and so is its event."""
    with engine.silence(), work.db.write() as conn:
        instances.add_event_once(conn, work.instance_uuid, work.request_id, work.event(EVENT, host=work.env.host))
    work.env.notify.emit(work.ctxt, 'instance.rebuild_scheduled', instance=work.instance())


def _is_new(work: Work[Any]) -> bool:
    """Whether the host has thrown the old disks away. No host does so for a row that has failed."""
    flow = Rebuild()
    at = flow.index('rebuild_instance')
    with engine.silence(), work.db.read() as conn:
        return claims.was_moved(conn, claims.make_key(work.uuid, at, flow.steps[at].name, work.attempt), POINT)


class Rebuild(Flow[Outputs]):
    name, outputs = 'rebuild', Outputs
    steps = (
        Step('check_host', check_host, saved=False),
        Step('save_spec', save_spec, undo_save_spec),
        Step('rebuild_instance', rebuild_instance),
    )

    def ended_badly(self, work: Work[Outputs]) -> None:
        """The server as it was, or ERROR where its disks have gone; its fault and events say why."""
        is_new = _is_new(work)
        at = work.instance_row()['host'] if work.position == self.index('rebuild_instance') else None
        row = work.instance_row(fresh=True) if work.env.notify.enabled else None

        def end(conn: engine.Connection) -> None:
            uuid = work.instance_uuid
            if not is_new:
                rebuilds.write(conn, uuid, work.args['old'])
            if instances.transition(conn, uuid, 'rebuild.lost' if is_new else 'rebuild.failed'):
                instances.add_fault(conn, uuid, work.fault())
            # Those that weren't written when their parts ended, well or not.
            for event, host in ((EVENT, work.env.host), (ON_HOST, at))[:1 if at is None else 2]:
                instances.add_event_once(conn, uuid, work.request_id, work.event(event, 'Error', host))
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)
        if row is not None and (work.error or {}).get('class') == NoValidHost.__name__:
            work.env.notify.emit(work.ctxt, 'compute_task.rebuild_server.error', instance_uuid=work.instance_uuid,
                                 request_spec=request_spec(work), state=row['vm_state'], record=work.error)
