"""Rebuild a server on its host: prepare, save that the disks are deleted, create new disks, save the end state.

Devices, NUMA placement and allocation stay as they are. The server is not changed before its state is
``rebuild_spawning``. The conductor's flow relies on this. If the server boots from a volume that gets new content, the
flow first calls ``stop_to_reimage``, which stops the guest.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.operation import HostTask, Reply, StepCheck, now, tags_found
from kilonova.compute.ops import build, shelve
from kilonova.rpc.compute import Compute
from kilonova.states import ENDING, PowerState, VmState

LOG = logging.getLogger(__name__)


@operation_method(Compute.rebuild_instance)
def rebuild(op: HostTask, order: objects.RebuildOrder) -> Reply:
    """Rebuild the server with the image that the order names. The guest of a stopped server stays off."""
    host, instance, image = op.host, op.instance, order.image
    stopped = instance.vm_state == VmState.STOPPED
    op.begin('compute_rebuild_instance')
    with op.exclusive(), host.build_slots.hold(op.check), op.undoing('rebuild'):
        LOG.info('Rebuilding instance', instance_uuid=instance.uuid)
        op.undo(_failed, op)
        # 1. Prepare the rebuild. If this fails, the server stays as it was.
        devices = host.devices_of(instance)
        secrets = build.opened(op, order.sealed)
        op.notify('instance.exists')
        op.notify('instance.rebuild.start', image_name=image.get('name') or '')
        with host.tracker.at_work(instance.uuid, 'rebuild'):
            host.driver.guests.prepare_rebuild(instance, image, devices)
            # 2. The server is changed from here on, and the rebuild can't be undone.
            op.check()
            op.save(transition='rebuild.spawning', expect={'host': host.name})
            host.driver.power.power_off(instance, *host.shutdown_wait(instance))
            host.driver.guests.rebuild(
                instance,
                image,
                pci_devices=devices,
                power_on=not stopped,
                admin_password=secrets.admin_password,
                files=secrets.files,
                preserve_ephemeral=order.preserve_ephemeral,
            )
        # 3. Save the end state.
        values = {'power_state': host.driver.guests.get_info(instance), 'launched_at': now()}
        done = 'rebuild.stopped' if stopped else 'rebuild.active'
        op.save(
            transition=done,
            expect={'host': host.name},
            values=values,
            extra=tags_found(instance),
            end=True,
            event=op.event(),
        )
    op.notify('instance.rebuild.end', moved=done, values=values, image_name=image.get('name') or '')
    return {'power_state': values['power_state']}


def _failed(op: HostTask) -> None:
    """Write that the event of the instance action has failed. The conductor writes the server's state.

    If the error is Unanswered, nothing is written, because the conductor repeats the call.
    """
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        return
    op.notify('instance.rebuild.error', fault=op.error)
    op.save(undo=True, event=op.event(op.error))


@operation_method(Compute.stop_to_reimage)
def stop_to_reimage(op: HostTask, order: objects.RebuildOrder) -> Reply:
    """Stop the guest and disconnect its boot volume from this host, so that the volume can get new content.

    Before that, decrypt the secrets, check the devices and prepare the rebuild. If one of these steps fails, the guest
    still runs.
    """
    host, instance = op.host, op.instance
    with op.exclusive():
        build.opened(op, order.sealed)
        host.driver.guests.prepare_rebuild(instance, order.image, host.devices_of(instance))
        op.check()
        host.driver.power.power_off(instance, *host.shutdown_wait(instance))
        for volume in instance.volumes:
            if volume.is_root and volume.host == host.name:
                host.driver.volumes.disconnect(instance, volume)
        power_state = host.driver.guests.get_info(instance)
        op.save(expect={'host': host.name}, values={'power_state': power_state})
    return {'power_state': power_state}


@operation_method(Compute.undo_stop_to_reimage, checks=StepCheck.UNDO, forward=True)
def undo_stop_to_reimage(op: HostTask) -> Reply:
    """Undo ``stop_to_reimage``: start the guest again if its server is to run.

    The guest is started only if its boot volume is attached to this host.
    """
    host = op.host
    with op.exclusive():
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None or fresh.host != host.name or fresh.task_state in ENDING or fresh.vm_state != VmState.ACTIVE:
            return {}
        if host.driver.guests.get_info(fresh) == PowerState.SHUTDOWN and all(
            volume.host == host.name for volume in fresh.volumes if volume.is_root
        ):
            shelve.start_again(op, fresh)
    return {}
