"""The steps of a resize or cold migration, in the order in which the conductor's flow calls the hosts.

The order is ``prep_resize`` at the destination, ``resize_instance`` at the source, ``finish_resize`` at the
destination. Each of these steps has an undo. ``confirm_revert`` has the steps to confirm and revert. ``move`` defines
which claims and devices belong to the source or destination of a move.
"""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method
from kilonova.compute.host import image_of, must_run_after_move
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


# -- step 1: the destination claims resources --------------------------------------------------------------------------
@operation_method(Compute.prep_resize, checks=StepCheck.WRITE, verdict=move.verdict)
def prep_resize(op: HostTask, order: objects.PrepResizeOrder) -> Reply:
    """Claim resources and devices for the new flavor, and return {'disk': where the source must put the disk}.

    The claimed devices are the ones that Placement allocated for the new flavor's requests. The migration context
    stores the devices of source and destination. Raises HostRejected if this host can't take the server; an alternate
    host may.
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
        # Register this undo after the claim: after a refused claim, it could free a claim of an earlier attempt.
        op.undo(move.free, op, migration)
        op.check()
        host.driver.guests.check(move.after(op, order), image_of(instance, order.image))
        host.check_claimed(op.ctxt, instance, devices)
        # Wait here until the accelerators are bound: the guest still runs at the source, so it has no downtime.
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
    """Fetch the server's image to the destination while the guest still runs.

    If this fails, the source copies the image with the disks.
    """
    try:
        op.host.driver.disks.fetch_base(op.instance, image_of(op.instance, order.image))
    except (errors.KilonovaError, OSError) as error:
        LOG.warning(
            'Could not fetch the image of the server; the source host will copy the image with the disks: %s',
            error,
            instance_uuid=op.instance.uuid,
        )


def _prep_failed(op: HostTask, flavor: objects.Flavor) -> None:
    """Write that the event of the instance action has failed, and send the notifications that Nova sends."""
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        # The step has not failed: after KeyGone another conductor runs the operation.
        # After Unanswered the step has not failed either: the conductor sends the call again.
        return
    move.failed(op)
    op.notify('instance.resize.error', fault=op.error)
    op.notify('instance.resize_prep.end', new_flavor=flavor)


@operation_method(Compute.undo_prep_resize, checks=StepCheck.UNDO, forward=True)
def undo_prep_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``prep_resize``: release the claim and delete the copied disk.

    If source and destination are one host, guest and disk belong to the source and are not deleted.
    """
    with op.exclusive():
        move.give_up(op, migration)
    return {}


# -- step 2: the source transfers the disks ----------------------------------------------------------------------------
def _progress(op: HostTask, migration: objects.Migration) -> Progress:
    """Return a function that writes the progress of the disk transfer to the migration's row.

    The function raises an error, which ends the transfer, if the operation was cancelled or taken over by another
    conductor.
    """
    note = move.noting(op, migration)
    return lambda done, total: note({'disk_total': total, 'disk_processed': done, 'disk_remaining': total - done})


@operation_method(Compute.resize_instance)
def resize_instance(op: HostTask, order: objects.ResizeOrder) -> Reply:
    """Power the guest off, copy its disks to the destination, and make the destination the server's host.

    The source keeps the disks. Return the ``disk_info`` for ``finish_resize``.
    """
    host, instance, migration, disk = op.host, op.instance, order.migration, order.disk
    op.begin('compute_resize_instance')
    if disk is None:
        raise errors.ResizeError(reason='the destination did not return where to copy the disk to')
    with op.exclusive(), op.undoing('resize_instance'):
        op.notify('instance.resize.start')
        op.undo(_told_failed, op)
        op.undo(_put_back_if_here, op, instance, migration, order.image)
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


def _put_back_if_here(
    op: HostTask, instance: objects.Instance, migration: objects.Migration, image: dict[str, Any]
) -> None:
    """Restore the guest as it was before ``resize_instance``, unless the server was deleted or evacuated meanwhile.

    The guest of an evacuated server runs on another host. What is left on this host is deleted by the conductor's undo
    or by ``compute.evacuated``.
    """
    fresh = records.instance(op.ctxt, instance.uuid)
    if fresh is None or _was_evacuated(op, fresh, migration):
        LOG.warning('The guest is not restored: the server is no longer on this host', instance_uuid=instance.uuid)
        return
    _put_back(op, instance, migration, image)


def _was_evacuated(op: HostTask, fresh: objects.Instance, migration: objects.Migration) -> bool:
    """Return whether the server, whose row is ``fresh``, was evacuated from this host after ``resize_instance``."""
    return fresh.host != op.host.name and move.is_over(op, fresh, migration)


def _put_back(
    op: HostTask, instance: objects.Instance, migration: objects.Migration, image: dict[str, Any] | None = None
) -> None:
    """Restore the guest as it was before ``resize_instance``. A guest that was not changed yet keeps running.

    If one of its devices has left the host or can't be used, the guest stays off.
    """
    move.restore_claims(op.host, instance, migration)
    devices, power_on = (
        op.host.tracker.devices_without(instance.uuid, claim_key(migration)),
        must_run_after_move(instance),
    )
    try:
        # Add the accelerators at the source: the system metadata names them until the move has ended.
        devices = op.host.devices_of(instance, devices)
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
    """Undo ``resize_instance``: make the source the server's host again and restore the guest.

    If the server was deleted while this host could not be reached, its guest and disks are deleted instead. Nothing is
    done if the server was evacuated in the meantime.
    """
    with op.exclusive():
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None:
            build.destroy(op)
            return {}
        if _was_evacuated(op, fresh, migration):
            # This host deleted the guest and disks when it started again.
            return {}
        # Use the instance that the conductor sent: its current row may no longer list the destination's devices.
        move.restore_claims(op.host, op.instance, migration)
        values = {
            'host': migration.source_compute,
            'node': migration.source_node,
            'compute_id': op.host.tracker.node.id,
        }
        extra = _become_old(fresh, migration)
        if extra is not None:
            # Restore the old flavor here, on the source, too: the destination, which also restores it, may be down.
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


# -- step 3: the destination builds the guest --------------------------------------------------------------------------
@operation_method(Compute.finish_resize)
def finish_resize(op: HostTask, order: objects.FinishResizeOrder) -> Reply:
    """Create the guest with the new flavor (of the request spec) and the devices that ``prep_resize`` claimed here.

    The guest is started if it ran before the move.
    """
    host, instance, migration = op.host, op.instance, order.migration
    op.begin('compute_finish_resize')
    power_on, side = must_run_after_move(instance), claim_key(migration)
    with op.exclusive(), op.undoing('finish_resize'):
        extra = _become_new(op, migration, order.request_spec)
        devices = host.tracker.devices(instance.uuid, side)
        host.check_number(instance, devices)
        devices = devices + host.accelerators.devices(instance.flavor, migration.uuid)
        host.check_present(instance, devices)
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
            # Save the node's usage, which no longer counts this resize as a running task.
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
    """Give the instance object the flavor, PCI requests and NUMA placement that the server has after the resize.

    ``spec`` is the request spec with the new flavor. Return the columns of instance_extra to write.
    """
    instance, new, old = op.instance, spec.flavor, move.old_flavor(op.instance)
    move.restore_claims(op.host, instance, migration, new)
    instance.set_flavor(new)
    instance.old_flavor, instance.new_flavor = old, new
    instance.pci_requests = spec.pci_requests if 'pci_requests' in spec else None
    move.take_place(op, migration, spec)
    return instance.extra_values({'flavor', 'pci_requests', 'numa_topology'})


def _become_old(fresh: objects.Instance, migration: objects.Migration) -> Extra | None:
    """Give ``fresh``, the server as just read, the flavor, PCI requests and NUMA placement from before the move.

    Return the columns of instance_extra to write. Return None if the server's migration context is not of this
    migration, or if the destination has not written the new flavor yet.
    """
    context = move.context_of(fresh, migration)
    return fresh.go_back(context) if context is not None and fresh.old_flavor is not None else None


@operation_method(Compute.undo_finish_resize, checks=StepCheck.UNDO, forward=True)
def undo_finish_resize(op: HostTask, migration: objects.Migration) -> Reply:
    """Undo ``finish_resize``: delete the guest and its copied disks, and write the old flavor to the server's row.

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
