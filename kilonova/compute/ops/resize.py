"""The steps of a resize or cold migration, in the order in which the conductor's flow calls the hosts.

The order is ``prep_resize`` at the destination, ``resize_instance`` at the source, ``finish_resize`` at the
destination. Each step has an undo. ``confirm_revert`` has the steps to confirm and revert. ``move`` defines which
claims and devices belong to which end of a move.
"""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of, was_active
from kilonova.compute.operation import Extra, HostTask, Reply, StepCheck, tags_found
from kilonova.compute.ops import build, move
from kilonova.compute.tracker import claim_key
from kilonova.rpc.compute import Compute
from kilonova.states import TaskState
from kilonova.virt.parts.moves import Progress

LOG = logging.getLogger(__name__)


def _told_failed(op: HostTask) -> None:
    op.notify('instance.resize.error', fault=op.error)
    move.failed(op)


# -- 1. the destination claims -----------------------------------------------------------------------------------------
@operation_method(Compute.prep_resize, checks=StepCheck.WRITE, verdict=move.verdict)
def prep_resize(op: HostTask, order: objects.PrepResizeOrder) -> Reply:
    """Claim for the new flavor, and return {'disk': where the source must put the disk}.

    The devices are those that Placement allocated for the new flavor's requests. The migration context stores the
    devices of both ends. Raises HostRejected if this host can't take the server; an alternate may.
    """
    host, instance, migration = op.host, op.instance, order.migration
    op.begin('compute_prep_resize')
    with op.exclusive(), op.undoing('prep_resize'):
        op.notify('instance.exists')
        op.notify('instance.resize_prep.start', new_flavor=order.flavor)
        op.undo(_prep_failed, op, order.flavor)
        _check_host(op, migration)
        disk = host.driver.moves.prepare_move()
        devices = move.claim(op, order, TaskState.RESIZE_PREP)
        # Registered after the claim: a refused claim took nothing, and what is held under this claim key may be a
        # running guest's.
        op.undo(move.free, op, migration)
        op.check()
        host.driver.guests.check(move.after(op, order), image_of(instance, order.image))
        host.check_claimed(op.ctxt, instance, devices)
        # Wait here, while the guest still runs at the source.
        host.await_accelerators(instance, order.flavor, migration.uuid, op.check)
        if migration.source_compute != host.name:
            _fetch_base(op, order)
            op.check()
        LOG.info('Migrating', instance_uuid=instance.uuid)
        op.save(event=op.event())
    op.notify('instance.resize_prep.end', new_flavor=order.flavor)
    return {'disk': disk}


def _check_host(op: HostTask, migration: objects.Migration) -> None:
    """Raise HostRejected if a cold migration to the server's own host is not possible with this driver."""
    if (
        migration.migration_type == 'migration'
        and migration.source_compute == op.host.name
        and not op.host.driver.capabilities.supports_migrate_to_same_host
    ):
        raise errors.HostRejected(errors.UnableToMigrateToSelf(instance_id=op.instance.uuid, host=op.host.name).message)


def _fetch_base(op: HostTask, order: objects.PrepResizeOrder) -> None:
    """Fetch the server's image while the guest still runs. If that fails, the source transfers it with the disks."""
    try:
        op.host.driver.disks.fetch_base(op.instance, image_of(op.instance, order.image))
    except (errors.KilonovaError, OSError) as error:
        LOG.warning(
            'Could not fetch the image of the server; it is copied together with the disks: %s',
            error,
            instance_uuid=op.instance.uuid,
        )


def _prep_failed(op: HostTask, flavor: objects.Flavor) -> None:
    """Write the failed event of the action, and also send the notification of the preparation's end, as Nova does."""
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        # Another conductor has taken over the operation, or the call is sent again. Nothing has failed yet.
        return
    move.failed(op)
    op.notify('instance.resize.error', fault=op.error)
    op.notify('instance.resize_prep.end', new_flavor=flavor)


@operation_method(Compute.undo_prep_resize, checks=StepCheck.UNDO, forward=True)
def undo_prep_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``prep_resize`` for the flow: release the claim and delete what has arrived of the disk.

    If source and destination are one host, the guest and disk are the source's and stay.
    """
    with op.exclusive():
        move.give_up(op, migration)
    return {}


# -- 2. the source transfers the disks ---------------------------------------------------------------------------------
def _progress(op: HostTask, migration: objects.Migration) -> Progress:
    """Return a function that writes the progress of the disk transfer to the migration's row.

    It raises an error, which ends the transfer, if the operation has been cancelled or taken over.
    """
    note = move.noting(op, migration)
    return lambda done, total: note({'disk_total': total, 'disk_processed': done, 'disk_remaining': total - done})


@operation_method(Compute.resize_instance)
def resize_instance(op: HostTask, order: objects.ResizeOrder) -> Reply:
    """Power the guest off, keep its disks, transfer a copy, and make the destination the server's host.

    Return the ``disk_info`` for ``finish_resize``.
    """
    host, instance, migration, disk = op.host, op.instance, order.migration, order.disk
    op.begin('compute_resize_instance')
    if disk is None:
        raise errors.ResizeError(reason='the destination did not return where to copy the disk to')
    with op.exclusive(), op.undoing('resize_instance'):
        op.notify('instance.resize.start')
        op.undo(_told_failed, op)
        op.undo(_put_back, op, instance, migration, order.image)
        op.undo(host.driver.moves.discard_copy, instance, disk)
        timeout, retry = host.shutdown_wait(instance, order.clean_shutdown)
        with host.tracker.at_work(instance.uuid, 'move'):
            info = host.driver.moves.migrate_disk_and_power_off(
                instance, disk, order.flavor, timeout, retry, _progress(op, migration)
            )
        op.check()
        values = {'host': migration.dest_compute, 'node': migration.dest_node, 'compute_id': migration.dest_compute_id}
        op.save(
            transition='resize.migrated',
            expect={'host': host.name},
            values=values,
            migration={'uuid': migration.uuid, 'status': 'post-migrating'},
            event=op.event(),
        )
    op.notify('instance.resize.end', moved='resize.migrated', values=values)
    return info


def _put_back(
    op: HostTask, instance: objects.Instance, migration: objects.Migration, image: dict[str, Any] | None = None
) -> None:
    """Restore the guest as it was before ``resize_instance``. A guest that was not changed yet keeps running.

    A guest whose device has left the host stays off.
    """
    move.restore_claims(op.host, instance, migration)
    devices, power_on = op.host.tracker.devices_without(instance.uuid, claim_key(migration)), was_active(instance)
    try:
        op.host.check_devices(instance, devices)
        # The move has not ended, so the server's metadata still names the accelerators of this host.
        devices = devices + op.host.accelerators_of(instance)
    except (errors.DevicesMissing, errors.DevicesFailed) as error:
        LOG.error('The guest is not started: %s', error, instance_uuid=instance.uuid)
        power_on = False
    op.host.driver.moves.finish_revert_migration(
        instance,
        image_of(instance, image),
        devices,
        power_on,
        plugged=op.host.ports.plugged(instance, op.check, goes_on=True),
    )


@operation_method(Compute.undo_resize_instance, checks=StepCheck.UNDO, forward=True)
def undo_resize_instance(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``resize_instance`` for the flow: make the source the server's host again, with disk, devices and power.

    A server that was deleted while this host could not be reached is destroyed instead. Nothing is done for a server
    that was evacuated meanwhile.
    """
    with op.exclusive():
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None:
            build.destroy(op)
            return {}
        if fresh.host != op.host.name and move.is_over(op, fresh, migration):
            # The server has been evacuated since. This host deleted what it had of it when its compute service started.
            return {}
        # Use the server as it was sent: if the move has ended meanwhile, its row no longer lists the devices of the
        # destination.
        move.restore_claims(op.host, op.instance, migration)
        values = {
            'host': migration.source_compute,
            'node': migration.source_node,
            'compute_id': op.host.tracker.node.id,
        }
        extra = _become_old(fresh, migration)
        if extra is not None:
            # Also undo what the destination wrote, in case the destination can't undo it itself.
            values.update(fresh.flavor_columns())
        _put_back(op, fresh, migration)
        values['power_state'] = op.host.driver.guests.get_info(fresh)
        op.save(
            undo=True,
            values=values,
            extra={**(extra or {}), **tags_found(fresh)},
            expect={'host': [migration.source_compute, migration.dest_compute]},
        )
    return {}


# -- 3. the destination builds the guest -------------------------------------------------------------------------------
@operation_method(Compute.finish_resize)
def finish_resize(op: HostTask, order: objects.FinishResizeOrder) -> Reply:
    """Create the guest with the new flavor (of the request spec) and the devices that ``prep_resize`` claimed here.

    It is started if it ran before the move.
    """
    host, instance, migration = op.host, op.instance, order.migration
    op.begin('compute_finish_resize')
    power_on, side = was_active(instance), claim_key(migration)
    with op.exclusive(), op.undoing('finish_resize'):
        extra = _become_new(op, migration, order.request_spec)
        devices = host.tracker.devices(instance.uuid, side)
        host.check_devices(instance, devices)
        accelerators = host.accelerators.devices(instance.flavor, migration.uuid)
        host.check_present(instance, accelerators)
        devices = devices + accelerators
        op.notify('instance.resize_finish.start', moved='resize.finishing')
        op.undo(_told_failed, op)
        op.undo(host.driver.moves.cleanup_move_dest, instance, move.same_host(migration))
        host.driver.moves.finish_migration(
            instance,
            image_of(instance, order.image),
            devices,
            power_on,
            order.disk_info,
            plugged=host.ports.plugged(instance, op.check),
        )
        op.check()
        power_state = host.driver.guests.get_info(instance)
        with host.tracker.writing(op.ctxt):
            plan = host.tracker.plan_allocate(instance.uuid, side)
            # The usage now counts one running task less.
            op.save(
                plan,
                transition='resize.finishing',
                usage=host.tracker.usage(plan),
                expect={'host': host.name},
                extra={**extra, **tags_found(instance)},
                event=op.event(),
                values={**instance.flavor_columns(), 'power_state': power_state},
            )
    return {'power_state': power_state}


def _become_new(op: HostTask, migration: objects.Migration, spec: objects.RequestSpec) -> Extra:
    """Change the instance object to the server after the move, and return the changed columns of instance_extra."""
    instance, new, old = op.instance, spec.flavor, move.old_flavor(op.instance)
    move.restore_claims(op.host, instance, migration, new)
    instance.set_flavor(new)
    instance.old_flavor, instance.new_flavor = old, new
    instance.pci_requests = spec.pci_requests if 'pci_requests' in spec else None
    move.take_place(op, migration, spec)
    return instance.extra_values({'flavor', 'pci_requests', 'numa_topology'})


def _become_old(fresh: objects.Instance, migration: objects.Migration) -> Extra | None:
    """Change the instance object back to the server before the move, and return the changed columns of instance_extra.

    Return None if the server is not in this move, or if the destination has written nothing yet.
    """
    context = move.context_of(fresh, migration)
    return fresh.go_back(context) if context is not None and fresh.old_flavor is not None else None


@operation_method(Compute.undo_finish_resize, checks=StepCheck.UNDO, forward=True)
def undo_finish_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``finish_resize`` for the flow: delete the guest and its copied disks, and restore the old flavor's columns.

    ``undo_prep_resize`` releases the claim.
    """
    with op.exclusive():
        move.clean_destination(op.host, op.instance, migration)
        fresh = records.instance(op.ctxt, op.instance.uuid)
        extra = _become_old(fresh, migration) if fresh is not None else None
        if fresh is not None and extra is not None:
            op.save(
                undo=True,
                values=fresh.flavor_columns(),
                extra=extra,
                expect={'instance_type_id': [migration.new_instance_type_id]},
            )
    return {}
