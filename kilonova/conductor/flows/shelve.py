"""Shelve: shelve_instance · mark_shelved. Shelve offload: shelve_offload_instance · drop_allocation · mark_offloaded.

A shelved server has its disk in an image and its guest off, and keeps host, disks, devices and allocation until it is
offloaded. That is an operation of its own, which only goes forward: from its first step on there is no other disk than
the image. With [DEFAULT]shelved_offload_time = 0 the transaction that ends the shelve begins it, and always where the
server boots from a volume: that needs no image, and nothing of it is worth keeping on the host.
"""
from __future__ import annotations

from typing import Any

from kilonova.accel import holder
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, beside, port_moves, volumes
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import Operation
from kilonova.errors import Cancelled
from kilonova.rpc.interface import VersionCapError
from kilonova.states import PowerState

# In a shelved server's system metadata: when, its image, the host that it was shelved on.
AT, IMAGE, HOST = 'shelved_at', 'shelved_image_id', 'shelved_host'


def forgotten() -> dict[str, str | None]:
    """The changes of system metadata of a server that isn't shelved any more."""
    return {AT: None, IMAGE: None, HOST: None}


def release_of_image(work: Work[Any], image_id: str) -> Operation:
    """A row for an image that nobody needs any more once it is written."""
    return Operation.new(work.ctxt, 'release', work.instance_uuid, {'image_id': image_id}, beside=True)


# --- shelve ----------------------------------------------------------------------------------------------------------
def shelve_instance(work: Work[Outputs]) -> None:
    """The host stops the guest and sends its disk, unless that is a volume."""
    work.ask(work.instance_row()['host'], 'shelve_instance', instance=work.instance(),
             image_id=work.args['image_id'])
    work.changed()


def undo_shelve_instance(work: Work[Outputs]) -> None:
    """The guest runs again if it did, the host's copy and the image go."""
    beside.undo_image(work, 'undo_shelve_instance')


def mark_shelved(work: Work[Outputs]) -> None:
    """SHELVED, or on the way off its host already."""
    row = work.instance()
    rows = []
    if work.env.conf.shelved_offload_time == 0 or work.args['image_id'] is None:
        rows.append(Operation.new(work.ctxt, 'shelve_offload', work.instance_uuid, {'shelving': True}))
    event = 'shelve.offload' if rows else 'shelve.done'
    stale = row.system_metadata.get(IMAGE)
    if stale and stale != work.args['image_id']:
        # It was reset or restored, never unshelved.
        rows.append(release_of_image(work, stale))

    def end(conn: Connection) -> None:
        uuid = work.instance_uuid
        if not instances.transition(conn, uuid, event):
            raise instances.refuse(conn, uuid, event)
        instances.set_system_metadata(conn, uuid, {
            AT: instances.utcnow().isoformat(), IMAGE: work.args['image_id'], HOST: row.host})
        if rows:
            operations.insert(conn, rows)
        if event == 'shelve.done':
            instances.finish_action(conn, uuid, work.request_id)
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.shelve.end', instance=row, moved=event, host=row.host)
    work.env.runner.wake(work.db, [row.uuid for row in rows])


class Shelve(OneStep):
    """A failure leaves the server as it was; the memory of a paused or suspended guest may be lost, then it is off."""

    name, failed, action_event = 'shelve', 'shelve.failed', 'compute_shelve_instance'
    steps = (
        Step('shelve_instance', shelve_instance, undo_shelve_instance),
        Step('mark_shelved', mark_shelved),
    )


# --- shelve offload --------------------------------------------------------------------------------------------------
def shelve_offload_instance(work: Work[Outputs]) -> None:
    """The host destroys guest and disks and frees the devices; a dead one does it when it is back."""
    instance = work.instance()
    if instance.host is None:
        return
    try:
        work.ask(instance.host, 'shelve_offload_instance', instance=instance)
    except HostGone:
        beside.pend(work, instance.host, 'shelve_offload_instance', instance=instance)


def drop_allocation(work: Work[Outputs]) -> None:
    """What the server held in Placement goes: its devices are free in the database. So do its accelerators. Its
    ports are bound to no host, and its volumes attached to none."""
    server = work.instance()
    port_moves.off_host(work)
    volumes.off_host(work)
    if accelerators.wanted_by(server.flavor):
        accelerators.drop(work, holder.of(server.uuid, server.system_metadata))
    work.env.placement.drop(work.instance_uuid, work.compare_now)


def mark_offloaded(work: Work[Outputs]) -> None:
    """SHELVED_OFFLOADED, on no host."""
    row = work.instance()
    values = {'host': None, 'node': None, 'compute_id': None, 'power_state': int(PowerState.SHUTDOWN)}
    moved = False

    def end(conn: Connection) -> None:
        nonlocal moved
        uuid = work.instance_uuid
        moved = instances.transition(conn, uuid, 'shelve_offload.done', values)
        if not work.args.get('shelving'):
            instances.add_events(conn, uuid, work.request_id, [
                work.event('compute_shelve_offload_instance', host=row.host)])
        instances.finish_action(conn, uuid, work.request_id)
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.shelve_offload.end', instance=row, host=row.host,
                         moved='shelve_offload.done' if moved else None, values=values)


class ShelveOffload(Flow[Outputs]):
    name, outputs = 'shelve_offload', Outputs
    forward_only = True
    steps = (
        Step('shelve_offload_instance', shelve_offload_instance),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_offloaded', mark_offloaded),
    )

    def may_end(self, work: Work[Outputs], error: Exception) -> bool:
        """Also where the host is too old to be asked: nothing was done then."""
        return isinstance(error, (Cancelled, VersionCapError))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """A delete waits behind it, which does all of it; or the server is SHELVED as before."""
        if work.cancelled:
            work.end()
            return

        def end(conn: Connection) -> None:
            uuid = work.instance_uuid
            if instances.transition(conn, uuid, 'shelve_offload.failed'):
                instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [
                work.event('compute_shelve_offload_instance', 'Error')])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)


FLOWS = (Shelve(), ShelveOffload())
