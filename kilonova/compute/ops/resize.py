"""Resize and cold migrate, in the order in which the conductor's flow calls the hosts: ``prep_resize`` at the
destination, ``resize_instance`` at the source, ``finish_resize`` at the destination; with each its undo.

Confirm and revert are in ``confirm_revert``; which things here belong to which end of a move says ``move``.
"""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import order
from kilonova.compute.host import image_of, was_active
from kilonova.compute.operation import Check, Extra, Operation, Reply, tags_found
from kilonova.compute.ops import build, move
from kilonova.compute.tracker import side_of
from kilonova.rpc.compute import Compute
from kilonova.states import TaskState
from kilonova.virt.parts.moves import Progress

LOG = logging.getLogger(__name__)

def _told_failed(op: Operation) -> None:
    op.notify('instance.resize.error', fault=op.error)
    move.failed(op)


# -- 1. the destination claims -----------------------------------------------------------------------------------------
@order(Compute.prep_resize, checks=Check.WRITE, verdict=move.verdict)
def prep_resize(op: Operation, order: objects.PrepResizeOrder) -> Reply:
    """Claim for the new flavor: {'disk': where the source shall put the disk}. HostRejected: an alternate may take it.

    The devices are those that Placement allocated for the new flavor's requests; the migration context keeps both ends.
    """
    host, instance, migration = op.host, op.instance, order.migration
    op.begin('compute_prep_resize')
    with op.turn(), op.undoing('prep_resize'):
        op.notify('instance.exists')
        op.notify('instance.resize_prep.start', new_flavor=order.flavor)
        op.undo(_prep_failed, op, order.flavor)
        _check_host(op, migration)
        disk = host.driver.moves.prepare_move()
        devices = move.claim(op, order, TaskState.RESIZE_PREP)
        # Only now: a claim that was refused took nothing, and what there is under this side may be a running guest's.
        op.undo(move.free, op, migration)
        op.check()
        host.driver.guests.check(move.after(op, order), image_of(instance, order.image))
        host.check_claimed(op.ctxt, instance, devices)
        # While the guest still runs at the source.
        host.await_accelerators(instance, order.flavor, migration.uuid, op.check)
        if migration.source_compute != host.name:
            _fetch_base(op, order)
            op.check()
        LOG.info('Migrating', instance_uuid=instance.uuid)
        op.save(event=op.event())
    op.notify('instance.resize_prep.end', new_flavor=order.flavor)
    return {'disk': disk}


def _check_host(op: Operation, migration: objects.Migration) -> None:
    """A cold migration to the host where the server is moves nothing; this driver says whether it can."""
    if (migration.migration_type == 'migration' and migration.source_compute == op.host.name
            and not op.host.driver.capabilities.supports_migrate_to_same_host):
        raise errors.HostRejected(errors.UnableToMigrateToSelf(
            instance_id=op.instance.uuid, host=op.host.name).message)


def _fetch_base(op: Operation, order: objects.PrepResizeOrder) -> None:
    """While the guest still runs. What can't be fetched the source carries."""
    try:
        op.host.driver.disks.fetch_base(op.instance, image_of(op.instance, order.image))
    except (errors.KilonovaError, OSError) as error:
        LOG.warning('The image of the server is carried with its disks, as it can not be fetched: %s', error,
                    instance_uuid=op.instance.uuid)


def _prep_failed(op: Operation, flavor: objects.Flavor) -> None:
    """The action says so, and the end of the preparation is told even so, as the field has it."""
    if isinstance(op.error, (errors.KeyGone, errors.Unanswered)):
        # The operation goes on elsewhere, or asks again: nothing has failed yet.
        return
    move.failed(op)
    op.notify('instance.resize.error', fault=op.error)
    op.notify('instance.resize_prep.end', new_flavor=flavor)


@order(Compute.undo_prep_resize, checks=Check.UNDO, forward=True)
def undo_prep_resize(op: Operation, migration: objects.Migration) -> Reply:
    """Give the claim back, and what had arrived of the disk. On one host guest and disk are the source's: untouched."""
    with op.turn():
        move.give_up(op, migration)
    return {}


# -- 2. the source carries the disks -----------------------------------------------------------------------------------
def _progress(op: Operation, migration: objects.Migration) -> Progress:
    """Keeps the migration's row up to date while disks go, and ends that when the operation was cancelled or lost."""
    note = move.noting(op, migration)
    return lambda done, total: note({'disk_total': total, 'disk_processed': done, 'disk_remaining': total - done})


@order(Compute.resize_instance)
def resize_instance(op: Operation, order: objects.ResizeOrder) -> Reply:
    """Power off, keep the disks, carry a copy; then the server is the destination's. The ``disk_info`` for
    ``finish_resize``."""
    host, instance, migration, disk = op.host, op.instance, order.migration, order.disk
    op.begin('compute_resize_instance')
    if disk is None:
        raise errors.ResizeError(reason='the destination did not say where the disk shall go')
    with op.turn(), op.undoing('resize_instance'):
        op.notify('instance.resize.start')
        op.undo(_told_failed, op)
        op.undo(_put_back, op, instance, migration, order.image)
        op.undo(host.driver.moves.discard_copy, instance, disk)
        timeout, retry = host.shutdown_wait(instance, order.clean_shutdown)
        with host.tracker.at_work(instance.uuid, 'move'):
            info = host.driver.moves.migrate_disk_and_power_off(instance, disk, order.flavor, timeout, retry,
                                                                _progress(op, migration))
        op.check()
        values = {'host': migration.dest_compute, 'node': migration.dest_node, 'compute_id': migration.dest_compute_id}
        op.save(transition='resize.migrated', expect={'host': host.name}, values=values,
                migration={'uuid': migration.uuid, 'status': 'post-migrating'}, event=op.event())
    op.notify('instance.resize.end', moved='resize.migrated', values=values)
    return info


def _put_back(op: Operation, instance: objects.Instance, migration: objects.Migration,
              image: dict[str, Any] | None = None) -> None:
    """The guest as it was: a guest that wasn't touched yet keeps running. One whose device left the host stays off."""
    move.learn(op.host, instance, migration)
    devices, power_on = op.host.tracker.devices_without(instance.uuid, side_of(migration)), was_active(instance)
    try:
        op.host.check_devices(instance, devices)
        # The move has not ended: the server's entry still names those here.
        devices = devices + op.host.accelerators_of(instance)
    except (errors.DevicesMissing, errors.DevicesFailed) as error:
        LOG.error('The guest is not started: %s', error, instance_uuid=instance.uuid)
        power_on = False
    op.host.driver.moves.finish_revert_migration(
        instance, image_of(instance, image), devices, power_on,
        plugged=op.host.ports.plugged(instance, op.check, goes_on=True))


@order(Compute.undo_resize_instance, checks=Check.UNDO, forward=True)
def undo_resize_instance(op: Operation, migration: objects.Migration) -> Reply:
    """The server is the source's again: disk, devices, power state, and its columns in the database.

    A server that was deleted while this host was away is destroyed instead; of one that was evacuated meanwhile
    nothing is here any more.
    """
    with op.turn():
        fresh = records.instance(op.ctxt, op.instance.uuid)
        if fresh is None:
            build.destroy(op)
            return {}
        if fresh.host != op.host.name and move.is_over(op, fresh, migration):
            # It was evacuated since: what this host had of it went when its compute started.
            return {}
        # The order's: of a move that has ended meanwhile the server's row says no more which devices were to come.
        move.learn(op.host, op.instance, migration)
        values = {'host': migration.source_compute, 'node': migration.source_node,
                  'compute_id': op.host.tracker.node.id}
        extra = _become_old(fresh, migration)
        if extra is not None:
            # What the destination wrote goes too, should it be unable to take that back itself.
            values.update(fresh.flavor_columns())
        _put_back(op, fresh, migration)
        values['power_state'] = op.host.driver.guests.get_info(fresh)
        op.save(undo=True, values=values, extra={**(extra or {}), **tags_found(fresh)},
                expect={'host': [migration.source_compute, migration.dest_compute]})
    return {}


# -- 3. the destination builds the guest -------------------------------------------------------------------------------
@order(Compute.finish_resize)
def finish_resize(op: Operation, order: objects.FinishResizeOrder) -> Reply:
    """The domain of the new flavor, which is the request spec's, with the devices that ``prep_resize`` claimed here;
    started if it ran before."""
    host, instance, migration = op.host, op.instance, order.migration
    op.begin('compute_finish_resize')
    power_on, side = was_active(instance), side_of(migration)
    with op.turn(), op.undoing('finish_resize'):
        extra = _become_new(op, migration, order.request_spec)
        devices = host.tracker.devices(instance.uuid, side)
        host.check_devices(instance, devices)
        accelerators = host.accelerators.devices(instance.flavor, migration.uuid)
        host.check_present(instance, accelerators)
        devices = devices + accelerators
        op.notify('instance.resize_finish.start', moved='resize.finishing')
        op.undo(_told_failed, op)
        op.undo(host.driver.moves.cleanup_move_dest, instance, move.same_host(migration))
        host.driver.moves.finish_migration(instance, image_of(instance, order.image), devices, power_on,
                                           order.disk_info, plugged=host.ports.plugged(instance, op.check))
        op.check()
        power_state = host.driver.guests.get_info(instance)
        with host.tracker.writing(op.ctxt):
            plan = host.tracker.plan_allocate(instance.uuid, side)
            # Less work under way.
            op.save(plan, transition='resize.finishing', usage=host.tracker.usage(plan), expect={'host': host.name},
                    extra={**extra, **tags_found(instance)}, event=op.event(),
                    values={**instance.flavor_columns(), 'power_state': power_state})
    return {'power_state': power_state}


def _become_new(op: Operation, migration: objects.Migration, spec: objects.RequestSpec) -> Extra:
    """Make the object the server after the move; the instance_extra columns that say so."""
    instance, new, old = op.instance, spec.flavor, move.old_flavor(op.instance)
    move.learn(op.host, instance, migration, new)
    instance.set_flavor(new)
    instance.old_flavor, instance.new_flavor = old, new
    instance.pci_requests = spec.pci_requests if 'pci_requests' in spec else None
    move.take_place(op, migration, spec)
    return instance.extra_values({'flavor', 'pci_requests', 'numa_topology'})


def _become_old(fresh: objects.Instance, migration: objects.Migration) -> Extra | None:
    """The same back again; None: the server isn't in this move, or the destination wrote nothing yet."""
    context = move.context_of(fresh, migration)
    return fresh.go_back(context) if context is not None and fresh.old_flavor is not None else None


@order(Compute.undo_finish_resize, checks=Check.UNDO, forward=True)
def undo_finish_resize(op: Operation, migration: objects.Migration) -> Reply:
    """The guest and the copy of its disks go, the columns say the old flavor. The claim is ``undo_prep_resize``'s."""
    with op.turn():
        move.clean_destination(op.host, op.instance, migration)
        fresh = records.instance(op.ctxt, op.instance.uuid)
        extra = _become_old(fresh, migration) if fresh is not None else None
        if fresh is not None and extra is not None:
            op.save(undo=True, values=fresh.flavor_columns(), extra=extra,
                    expect={'instance_type_id': [migration.new_instance_type_id]})
    return {}
