"""Shelve a server: stop its guest and upload its root disk, unless it is a volume. Shelve offload deletes the guest.

A paused or suspended guest is stopped only after its disk is copied. Such a guest does not write to the disk, and it
can be left as it was if the copy fails.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of
from kilonova.compute.operation import HostTask, Reply, StepCheck, tags_found
from kilonova.compute.ops import snapshot
from kilonova.rpc.compute import Compute
from kilonova.states import ENDING, PowerState, VmState

LOG = logging.getLogger(__name__)

# States in which a guest's memory is kept although the guest does not run.
HELD = (VmState.PAUSED, VmState.SUSPENDED)


@operation_method(Compute.shelve_instance)
def shelve(op: HostTask, image_id: str | None) -> Reply:
    """Stop the guest and upload its root disk as the data of image ``image_id``.

    ``image_id`` is None if the root disk is a volume, which stays. The conductor writes the server's state after the
    shelve, and undoes this step if it fails.
    """
    host, instance = op.host, op.instance
    op.begin('compute_shelve_instance')
    with host.snapshot_slots.hold(op.check), op.exclusive(), host.tracker.at_work(instance.uuid, 'snapshot'):
        op.notify('instance.exists')
        op.notify('instance.shelve.start')
        if image_id is not None:
            op.save(transition='shelve.copying', expect={'host': host.name})
        if instance.vm_state not in HELD:
            host.driver.power.power_off(instance, *host.shutdown_wait(instance))
        if image_id is not None:
            snapshot.send(op, image_id, 'shelve.uploading')
        host.driver.power.power_off(instance)
        power_state = host.driver.guests.get_info(instance)
        op.save(expect={'host': host.name}, values={'power_state': power_state}, event=op.event())
    return {'image_id': image_id, 'power_state': power_state}


@operation_method(Compute.undo_shelve_instance, checks=StepCheck.UNDO, forward=True)
def undo_shelve(op: HostTask, image_id: str | None) -> Reply:
    """Undo ``shelve``: delete the copied disk and start the guest again if its server is to run.

    A guest that was paused or suspended before the shelve, and is off now, stays off.
    """
    host = op.host
    with op.exclusive():
        if image_id is not None:
            host.driver.snapshots.forget_snapshot(op.instance, image_id)
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None or fresh.host != host.name or fresh.task_state in ENDING:
            return {}
        power_state = host.driver.guests.get_info(fresh)
        if power_state != PowerState.SHUTDOWN:
            return {}
        if fresh.vm_state in HELD:
            LOG.warning('The guest was %s and is off: its memory is lost', fresh.vm_state, instance_uuid=fresh.uuid)
            op.save(
                undo=True, transition='shelve.stopped', expect={'host': host.name}, values={'power_state': power_state}
            )
        elif fresh.vm_state == VmState.ACTIVE:
            start_again(op, fresh)
    return {}


def start_again(op: HostTask, instance: objects.Instance) -> None:
    """Start a guest that is off, as a part of an undo, and save its power state."""
    op.host.driver.power.power_on(instance, image_of(instance), op.host.devices_of(instance))
    op.save(
        undo=True,
        expect={'host': op.host.name},
        extra=tags_found(instance),
        values={'power_state': op.host.driver.guests.get_info(instance)},
    )


@operation_method(Compute.shelve_offload_instance, forward=True)
def offload(op: HostTask) -> Reply:
    """Delete the server's guest and files on this host and release the resources. The conductor writes the state."""
    with op.exclusive():
        op.notify('instance.shelve_offload.start')
        op.host.driver.guests.destroy(op.instance)
        op.give_back(undo=True)
    return {}
