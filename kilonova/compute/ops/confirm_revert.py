"""Confirm or revert a resize or cold migration. Except ``check_revert``, the steps are repeated until they succeed.

Confirm: the source deletes the disks and guest that it kept, and frees the old devices. Revert: the source checks that
it can take the server back. Then the destination deletes the new guest and releases its claims. Finally, the source
restores the server.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.accel import holder
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of, metadata, must_run_after_move
from kilonova.compute.operation import Extra, HostTask, Reply, tags_found
from kilonova.compute.ops import move
from kilonova.compute.tracker import claim_key
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@operation_method(Compute.confirm_resize, forward=True)
def confirm_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Delete the guest and disks that the source kept of the server, and free the old devices on the source.

    If source and destination are one host, the guest stays untouched. The conductor writes the server's state after the
    confirmation and sends the notification of the end.
    """
    both = move.same_host(migration)
    op.begin('compute_confirm_resize')
    with op.exclusive():
        op.notify('instance.resize_confirm.start')
        move.restore_claims(op.host, op.instance, migration, op.instance.flavor)
        op.host.driver.moves.confirm_migration(op.instance, both)
        # On one host, a missing migration context means that an earlier call freed the resources: free nothing again.
        if not both or move.context_of(op.instance, migration) is not None:
            op.give_back(move.of_source(migration), event=op.event())
    return {}


@operation_method(Compute.check_revert)
def check_revert(op: HostTask, migration: objects.Migration) -> Reply:
    """Check that this host, the source, can take the server back. Nothing is changed.

    Raises HostRejected if this host no longer has all the devices that the server held on it.
    """
    with op.exclusive():
        move.restore_claims(op.host, op.instance, migration)
        _check_devices(op, *_old_devices(op, migration)[:2])
    return {}


@operation_method(Compute.revert_resize, forward=True)
def revert_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Delete the new guest, the copied disks and the new claims at the destination."""
    op.begin('compute_revert_resize')
    with op.exclusive():
        op.notify('instance.exists')
        op.notify('instance.resize_revert.start')
        move.restore_claims(op.host, op.instance, migration)
        move.clean_destination(op.host, op.instance, migration)
        op.give_back(move.of_destination(migration), unsided=not move.same_host(migration), event=op.event())
    return {}


@operation_method(Compute.finish_revert_resize, forward=True)
def finish_revert_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Restore the server at the source with the kept disks, the old flavor and the old devices.

    The guest is started if it ran before the move and its devices are usable.
    """
    host, instance = op.host, op.instance
    op.begin('compute_finish_revert_resize')
    power_on, state = must_run_after_move(instance), metadata(instance).get('old_vm_state') or 'active'
    with op.exclusive():
        move.restore_claims(host, instance, migration)
        devices, accelerators, extra = _old_devices(op, migration)
        try:
            _check_devices(op, devices, accelerators)
        except errors.DevicesFailed as error:
            # The destination has deleted its guest already, so the server returns to the source with its guest off.
            LOG.error('The guest is not started: %s', error, instance_uuid=instance.uuid)
            host.devices_failed(op.ctxt, instance.uuid, error)
            power_on = False
        LOG.info("Updating instance to original state: '%s'", state, instance_uuid=instance.uuid)
        host.driver.moves.finish_revert_migration(
            instance,
            image_of(instance),
            devices + accelerators,
            power_on,
            plugged=host.ports.plugged(instance, op.check, goes_on=True),
        )
        op.save(
            extra={**extra, **tags_found(instance)},
            event=op.event(),
            values={
                **instance.flavor_columns(),
                'host': migration.source_compute,
                'node': migration.source_node,
                'compute_id': host.tracker.node.id,
                'power_state': host.driver.guests.get_info(instance),
            },
        )
    return {}


def _check_devices(op: HostTask, devices: list[objects.PciDevice], accelerators: list[objects.PciDevice]) -> None:
    """Raise HostRejected or KilonovaError if this host can't give the server the devices that it held here."""
    op.host.check_number(op.instance, devices)
    op.host.check_present(op.instance, devices + accelerators)


def _old_devices(
    op: HostTask, migration: objects.Migration
) -> tuple[list[objects.PciDevice], list[objects.PciDevice], Extra]:
    """Give ``op.instance`` the flavor, PCI requests and NUMA placement that it had before the move.

    Return three values: the PCI devices that the server held on this host before the move, its accelerators on this
    host, and the columns of instance_extra to write.
    """
    devices = op.host.tracker.devices_without(op.instance.uuid, claim_key(migration))
    extra = op.instance.go_back(move.context_of(op.instance, migration))
    accelerators = op.host.accelerators.devices(
        op.instance.flavor, holder.before(op.instance.uuid, metadata(op.instance))
    )
    return devices, accelerators, extra
