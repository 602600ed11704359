"""Revert: the source is asked whether it can, the destination gives back what the move brought, the source is home
again. Only forward."""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.compute import claims
from kilonova.compute.dispatch import order
from kilonova.compute.host import Host, image_of, metadata, was_active
from kilonova.compute.keys import Work
from kilonova.compute.ops import move
from kilonova.compute.tracker import side_of
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.check_revert)
def check(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
          migration: objects.Migration) -> dict[str, Any]:
    """HostRejected: this host has no longer all the devices that the server held here. Changes nothing."""
    with host.turn(work, instance.uuid):
        move.learn(host, instance, migration)
        _devices(host, instance, migration)
    return {}


@order(Compute.revert_resize, forward=True)
def destination(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
                migration: objects.Migration) -> dict[str, Any]:
    """The new guest, the copy of the disks and the new devices go."""
    event, both = host.event('compute_revert_resize'), move.same_host(migration)
    with host.turn(work, instance.uuid):
        host.notify.emit(ctxt, 'instance.exists', instance=instance)
        host.notify.emit(ctxt, 'instance.resize_revert.start', instance=instance)
        move.learn(host, instance, migration)
        if both or not host.tracker.sides(instance.uuid) - {side_of(migration)}:
            host.driver.cleanup_move_dest(instance, both)
        claims.give_back(host, work, ctxt, instance.uuid, move.of_destination(migration), unsided=not both,
                         event=event.success())
    return {}


@order(Compute.finish_revert_resize, forward=True)
def source(host: Host, work: Work, ctxt: Any, instance: objects.Instance,
           migration: objects.Migration) -> dict[str, Any]:
    """The kept disks, the old flavor, the old devices; started if it ran before the move."""
    event = host.event('compute_finish_revert_resize')
    power_on, state = was_active(instance), metadata(instance).get('old_vm_state') or 'active'
    with host.turn(work, instance.uuid):
        move.learn(host, instance, migration)
        devices, extra = _devices(host, instance, migration)
        LOG.info("Updating instance to original state: '%s'", state, instance_uuid=instance.uuid)
        host.driver.finish_revert_migration(ctxt, instance, image_of(instance), devices, power_on)
        claims.tell(host, work, ctxt, instance.uuid, extra=extra, event=event.success(), values={
            **instance.flavor_columns(), 'host': migration.source_compute, 'node': migration.source_node,
            'compute_id': host.tracker.node.id, 'power_state': host.driver.get_info(instance)})
    return {}


def _devices(host: Host, instance: objects.Instance,
             migration: objects.Migration) -> tuple[list[objects.PciDevice], dict[str, Any]]:
    """What the server held here before the move, and what is to be written of it; ``instance`` is as it was then."""
    devices = host.tracker.devices_without(instance.uuid, side_of(migration))
    extra = instance.go_back(move.context_of(instance, migration))
    move.check_devices(host, instance, devices)
    return devices, extra
