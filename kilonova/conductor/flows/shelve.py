"""Flows that shelve a server (shelve_instance, mark_shelved) and offload it from its host.

The steps of an offload are shelve_offload_instance, drop_allocation and mark_offloaded.

The disk of a shelved server is in an image and its guest is off. The server keeps host, disks, devices and allocation
until it is offloaded. The offload is an operation of its own, and only goes forward, because from its first step on the
image is the only copy of the disk. The transaction that ends the shelve starts it at once if
[DEFAULT]shelved_offload_time is 0, or if the server boots from a volume: then no image is needed, and nothing on the
host is worth keeping.
"""

from __future__ import annotations

from typing import Any

from kilonova.accel import holder
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Cancelled
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError
from kilonova.states import PowerState

# Keys of a shelved server's system metadata: the time, its image, and the host on which it was shelved.
AT, IMAGE, HOST = 'shelved_at', 'shelved_image_id', 'shelved_host'


def forgotten() -> dict[str, str | None]:
    """Return the changes of system metadata for a server that is no longer shelved."""
    return {AT: None, IMAGE: None, HOST: None}


def release_of_image(work: Work[Any], image_id: str) -> OperationRow:
    """Return an operation that deletes an image.

    Its row must not be inserted before the image is no longer needed.
    """
    return OperationRow.new(work.ctxt, 'release', work.instance_uuid, {'image_id': image_id}, beside=True)


# --- shelve ----------------------------------------------------------------------------------------------------------
def shelve_instance(work: Work[Outputs]) -> None:
    """Have the host stop the guest and upload its disk, unless the disk is a volume."""
    work.call_host(
        work.instance_row()['host'], Compute.shelve_instance, instance=work.instance(), image_id=work.args['image_id']
    )
    work.changed()


def undo_shelve_instance(work: Work[Outputs]) -> None:
    """Have the host start the guest again if it ran, and delete the host's copy and the image."""
    releases.undo_image(work, Compute.undo_shelve_instance)


def mark_shelved(work: Work[Outputs]) -> None:
    """Write the end state SHELVED, or start the offload."""
    row = work.instance()
    rows = []
    if work.env.conf.shelved_offload_time == 0 or work.args['image_id'] is None:
        rows.append(OperationRow.new(work.ctxt, 'shelve_offload', work.instance_uuid, {'shelving': True}))
    event = 'shelve.offload' if rows else 'shelve.done'
    stale = row.system_metadata.get(IMAGE)
    if stale and stale != work.args['image_id']:
        # The server was reset or restored, and never unshelved.
        rows.append(release_of_image(work, stale))

    def end(conn: Connection) -> None:
        uuid = work.instance_uuid
        if not instances.transition(conn, uuid, event):
            raise instances.refuse(conn, uuid, event)
        instances.set_system_metadata(
            conn, uuid, {AT: instances.utcnow().isoformat(), IMAGE: work.args['image_id'], HOST: row.host}
        )
        if rows:
            operations.insert(conn, rows)
        if event == 'shelve.done':
            instances.finish_action(conn, uuid, work.request_id)

    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.shelve.end', instance=row, moved=event, host=row.host)
    work.env.runner.wake(work.db, [row.uuid for row in rows])


class Shelve(OneStep):
    """The operation that shelves a server.

    A failure leaves the server as it was. The memory of a paused or suspended guest may be lost; then the guest is off.
    """

    name, failed, action_event = 'shelve', 'shelve.failed', 'compute_shelve_instance'
    steps = (
        Step('shelve_instance', shelve_instance, undo_shelve_instance),
        Step('mark_shelved', mark_shelved),
    )


# --- shelve offload --------------------------------------------------------------------------------------------------
def shelve_offload_instance(work: Work[Outputs]) -> None:
    """Have the host destroy the guest and its disks and free the devices.

    A pending release does it if the host is down.
    """
    instance = work.instance()
    if instance.host is None:
        return
    try:
        work.call_host(instance.host, Compute.shelve_offload_instance, instance=instance)
    except HostDown:
        releases.add_pending_release(work, instance.host, Compute.shelve_offload_instance, instance=instance)


def drop_allocation(work: Work[Outputs]) -> None:
    """Unbind the ports, detach the volumes, release the accelerators, and delete the server's allocation.

    Its devices are free in the database by now, so the allocation may be deleted.
    """
    server = work.instance()
    port_moves.off_host(work)
    volumes.off_host(work)
    if accelerators.wanted_by(server.flavor):
        accelerators.drop(work, holder.of(server.uuid, server.system_metadata))
    work.env.placement.drop(work.instance_uuid, work.compare_now)


def mark_offloaded(work: Work[Outputs]) -> None:
    """Write the end state SHELVED_OFFLOADED, in which the server is on no host."""
    row = work.instance()
    values = {'host': None, 'node': None, 'compute_id': None, 'power_state': int(PowerState.SHUTDOWN)}
    moved = False

    def end(conn: Connection) -> None:
        nonlocal moved
        uuid = work.instance_uuid
        moved = instances.transition(conn, uuid, 'shelve_offload.done', values)
        if not work.args.get('shelving'):
            instances.add_events(
                conn, uuid, work.request_id, [work.event('compute_shelve_offload_instance', host=row.host)]
            )
        instances.finish_action(conn, uuid, work.request_id)

    work.end(end)
    work.env.notify.emit(
        work.ctxt,
        'instance.shelve_offload.end',
        instance=row,
        host=row.host,
        moved='shelve_offload.done' if moved else None,
        values=values,
    )


class ShelveOffload(Flow[Outputs]):
    """The operation that offloads a shelved server from its host."""

    name, outputs = 'shelve_offload', Outputs
    forward_only = True
    steps = (
        Step('shelve_offload_instance', shelve_offload_instance),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_offloaded', mark_offloaded),
    )

    def may_end(self, work: Work[Outputs], error: Exception) -> bool:
        """Return whether the operation ends with this error.

        It ends if it was cancelled, or if the host's release is too old for the call, because then nothing was done.
        """
        return isinstance(error, (Cancelled, VersionCapError))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """End an offload that was cancelled or refused.

        After a cancel the waiting delete does the rest. After a refusal the server is SHELVED as before.
        """
        if work.cancelled:
            work.end()
            return

        def end(conn: Connection) -> None:
            uuid = work.instance_uuid
            if instances.transition(conn, uuid, 'shelve_offload.failed'):
                instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [work.event('compute_shelve_offload_instance', 'Error')])
            instances.finish_action(conn, uuid, work.request_id, 'Error')

        work.end(end)


FLOWS = (Shelve(), ShelveOffload())
