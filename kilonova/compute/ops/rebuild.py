"""Rebuild a server where it is: see to what can fail · say that its disks go · make them anew · save the end state.

Devices, place and allocation stay as they are. Until the state says ``rebuild_spawning`` nothing of the server was
touched; the conductor's flow goes by that.
"""
from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.endpoint import order
from kilonova.compute.operation import Operation, Reply, now, tags_found
from kilonova.compute.ops import build
from kilonova.rpc.compute import Compute
from kilonova.states import VmState

LOG = logging.getLogger(__name__)


@order(Compute.rebuild_instance)
def rebuild(op: Operation, order: objects.RebuildOrder) -> Reply:
    """The order's server from the order's image. A stopped one stays off."""
    host, instance, image = op.host, op.instance, order.image
    stopped = instance.vm_state == VmState.STOPPED
    op.begin('compute_rebuild_instance')
    with op.turn(), host.build_slots.hold(op.check), op.undoing('rebuild'):
        LOG.info('Rebuilding instance', instance_uuid=instance.uuid)
        op.undo(_failed, op)
        # 1. What can fail, and leaves the server as it is.
        devices = host.devices_of(instance)
        secrets = build.opened(op, order.sealed)
        op.notify('instance.exists')
        op.notify('instance.rebuild.start', image_name=image.get('name') or '')
        with host.tracker.at_work(instance.uuid, 'rebuild'):
            host.driver.guests.prepare_rebuild(instance, image, devices)
            # 2. From here on there is no way back.
            op.check()
            op.save(transition='rebuild.spawning', expect={'host': host.name})
            host.driver.power.power_off(instance, *host.shutdown_wait(instance))
            host.driver.guests.rebuild(
                instance, image, pci_devices=devices, power_on=not stopped, admin_password=secrets.admin_password,
                files=secrets.files, preserve_ephemeral=order.preserve_ephemeral)
        # 3. The end state.
        values = {'power_state': host.driver.guests.get_info(instance), 'launched_at': now()}
        done = 'rebuild.stopped' if stopped else 'rebuild.active'
        op.save(transition=done, expect={'host': host.name}, values=values, extra=tags_found(instance), end=True,
                event=op.event())
    op.notify('instance.rebuild.end', moved=done, values=values, image_name=image.get('name') or '')
    return {'power_state': values['power_state']}


def _failed(op: Operation) -> None:
    """The action says so; the server's state is the flow's. What was silent is asked again under the same key."""
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        return
    op.notify('instance.rebuild.error', fault=op.error)
    op.save(undo=True, event=op.event(op.error))
