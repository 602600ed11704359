"""Flows that shelve a server (shelve_instance, mark_shelved) and offload it from its host.

The steps of an offload are shelve_offload_instance, drop_allocation and mark_offloaded.

The disk of a shelved server is stored as an image, and its guest is off. The server keeps its host, disks, devices and
allocation until it is offloaded. The offload is an operation of its own. Its steps are retried and never undone,
because from its first step on the image is the only copy of the disk. The shelve starts the offload at once if
[DEFAULT]shelved_offload_time is 0, or if the server boots from a volume. Such a server needs no image, and has no disk
on the host that must be kept.
"""

from __future__ import annotations

from typing import Any

from kilonova.accel import holder
from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.network import port_moves
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db.arguments.releases import ImageRelease
from kilonova.db.arguments.servers import ShelveArguments, ShelveOffloadArguments
from kilonova.db.queries import instances
from kilonova.db.queries.operations import OperationRow
from kilonova.errors import Cancelled
from kilonova.rpc.compute import Compute
from kilonova.rpc.interface import VersionCapError
from kilonova.states import PowerState

# Keys of a shelved server's system metadata: the time of the shelve, the id of its image, and its host at that time.
AT, IMAGE, HOST = 'shelved_at', 'shelved_image_id', 'shelved_host'


def forgotten() -> dict[str, str | None]:
    """Return a dict from each system metadata key that a shelve stores to None.

    If an update of the system metadata gets this dict, it deletes these keys.
    """
    return {AT: None, IMAGE: None, HOST: None}


def release_of_image(work: Work[Any], image_id: str) -> OperationRow:
    """Return an operation row for the deletion of an image (a pending release, which a conductor runs later).

    The caller inserts the row in the transaction after which the image is no longer needed, and not earlier.
    """
    return OperationRow.new(work.ctxt, 'release', work.instance_uuid, ImageRelease(image_id=image_id), beside=True)


# --- shelve ----------------------------------------------------------------------------------------------------------
def shelve_instance(work: Work[Outputs]) -> None:
    """Ask the host to stop the guest and, unless the disk is a volume, to upload its disk."""
    work.call_host(
        work.instance_row()['host'],
        Compute.shelve_instance,
        instance=work.instance(),
        image_id=work.arguments(ShelveArguments).image_id,
    )
    work.changed()


def undo_shelve_instance(work: Work[Outputs]) -> None:
    """Ask the host to delete its copy of the disk, and to start the guest again if it ran before. Delete the image."""
    releases.undo_image(work, Compute.undo_shelve_instance)


def mark_shelved(work: Work[Outputs]) -> None:
    """Set the server's state to SHELVED, or start the offload if the server is to be offloaded at once."""
    row, image_id = work.instance(), work.arguments(ShelveArguments).image_id
    rows = []
    if work.env.conf.shelved_offload_time == 0 or image_id is None:
        rows.append(
            OperationRow.new(work.ctxt, 'shelve_offload', work.instance_uuid, ShelveOffloadArguments(shelving=True))
        )
    event = 'shelve.offload' if rows else 'shelve.done'
    stale = row.system_metadata.get(IMAGE)
    if stale and stale != image_id:
        # Delete the image of an earlier shelve. It still exists if the server was reset or restored after that shelve.
        rows.append(release_of_image(work, stale))

    Ending(
        event=event,
        required=True,
        system_metadata={AT: instances.utcnow().isoformat(), IMAGE: image_id, HOST: row.host},
        operations=rows,
        finish=event == 'shelve.done',
    ).end(work)
    work.env.notify.emit(work.ctxt, 'instance.shelve.end', instance=row, moved=event, host=row.host)
    work.env.runner.wake(work.db, [row.uuid for row in rows])


class Shelve(OneStep):
    """The operation that shelves a server.

    A failure leaves the server as it was before. The memory of a paused or suspended guest may be lost, in which case
    the guest is off.
    """

    name, failed, action_event = 'shelve', 'shelve.failed', 'compute_shelve_instance'
    steps = (
        Step('shelve_instance', shelve_instance, undo_shelve_instance),
        Step('mark_shelved', mark_shelved),
    )


# --- shelve offload --------------------------------------------------------------------------------------------------
def shelve_offload_instance(work: Work[Outputs]) -> None:
    """Ask the host to destroy the guest and its disks and to free the server's devices.

    If the host is down, an operation row is added (a pending release). A conductor calls the host when it is up again.
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

    An earlier step has freed the server's devices in the database. Therefore the devices are free when Placement
    gives the resources of the deleted allocation to another server.
    """
    server = work.instance()
    port_moves.off_host(work)
    volumes.off_host(work)
    if accelerators.wanted_by(server.flavor):
        accelerators.drop(work, holder.of(server.uuid, server.system_metadata))
    work.env.placement.drop(work.instance_uuid, work.compare_now)


def mark_offloaded(work: Work[Outputs]) -> None:
    """Set the server's state to SHELVED_OFFLOADED, without a host."""
    row = work.instance()
    values = {'host': None, 'node': None, 'compute_id': None, 'power_state': int(PowerState.SHUTDOWN)}
    is_shelve = work.arguments(ShelveOffloadArguments).shelving
    events = [] if is_shelve else [work.event('compute_shelve_offload_instance', host=row.host)]
    moved = Ending(event='shelve_offload.done', values=values, events=events).end(work)
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
        """Return whether the operation ends with this error instead of being retried.

        An offload ends if it was cancelled, or if the host's release is too old for the call, because the host has then
        changed nothing.
        """
        return isinstance(error, (Cancelled, VersionCapError))

    def ended_badly(self, work: Work[Outputs]) -> None:
        """End an offload that was cancelled by a delete, or for which the host's release is too old.

        After a cancel only the operation row is deleted, because the waiting delete releases all resources of the
        server. In the other case the server has the state SHELVED, as before.
        """
        if work.cancelled:
            work.end()
            return
        events = [work.event('compute_shelve_offload_instance', 'Error')]
        Ending(event='shelve_offload.failed', fault=True, events=events, failed=True).end(work)


FLOWS = (Shelve(), ShelveOffload())
