"""The steps of a live migration, in the order in which the conductor calls the hosts.

The order is ``check_source`` at the source, ``check_destination`` and ``prepare`` at the destination, ``migrate`` at
the source, ``arrive`` at the destination, and ``leave`` at the source. If the operation is undone, the conductor calls
``abort`` at the source, ``rollback`` at the destination, then ``abort`` again at the source.

``move`` defines which claims and devices belong to the source and which to the destination. A guest that has moved is
not moved back. If the operation is undone after the guest has moved, ``rollback`` finds the guest at the destination
and keeps it on that host.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.endpoint import operation_method, query_method
from kilonova.compute.host import ComputeHost, image_of
from kilonova.compute.operation import HostTask, Reply, SaveFields, StepCheck
from kilonova.compute.ops import move
from kilonova.compute.tracker import RUN, claim_key
from kilonova.context import RequestContext
from kilonova.pci.device import MDEV
from kilonova.pci.ports import requests_of_ports
from kilonova.rpc.compute import Compute
from kilonova.states import TaskState
from kilonova.virt.parts.live_migrations import LiveDevice, LiveGuest, LiveTold

LOG = logging.getLogger(__name__)

# Values of ``mark``, which distinguishes saves with the same operation key: equal saves are written only once.
# QUEUED and RUNNING are for saves of the migration's status. Saves of its progress have the marks 1, 2, 3….
QUEUED, RUNNING = -1, -2


# -- step 1: both hosts check whether the guest can be moved -----------------------------------------------------------
@operation_method(Compute.check_can_live_migrate_source)
def check_source(op: HostTask) -> Reply:
    """Return the guest's properties that a destination compares (``LiveGuest``), and its accelerators.

    Raises GuestFailed if the guest is off.
    """
    op.begin('compute_check_can_live_migrate_source')
    with op.exclusive(), op.undoing('check_source'):
        op.undo(move.failed, op)
        guest = op.host.driver.live_migrations.describe(op.instance)
        accelerators = [_described(one) for one in _identified(op, op.host.accelerators_of(op.instance))]
        op.save(event=op.event())
    return {**guest, 'accelerators': accelerators}


@operation_method(Compute.check_can_live_migrate_destination, checks=StepCheck.WRITE, verdict=move.verdict)
def check_destination(op: HostTask, order: objects.LiveMigrationCheckOrder) -> Reply:
    """Check that the guest can run on this host, the destination, and claim resources for it.

    Return a ``PlacedOffer``: how the guest is transferred, and its placement on this host. Raises HostRejected if this
    host can't take the guest; an alternate host may.
    """
    live = op.host.driver.live_migrations
    op.begin('compute_check_can_live_migrate_destination')
    with op.exclusive(), op.undoing('check_destination'):
        op.undo(move.failed, op)
        offer = live.offer(op.instance, order.guest, order.block, order.over_commit)
        devices = move.claim(op, order, TaskState.MIGRATING, status='preparing')
        # Register this undo only after the claim. If the claim is refused, there is nothing to free.
        op.undo(move.free, op, order.migration)
        op.host.check_claimed(op.ctxt, op.instance, devices)
        accelerators = _identified(
            op, op.host.await_accelerators(op.instance, op.instance.flavor, order.migration.uuid, op.check)
        )
        move.take_place(op, order.migration, order.request_spec)
        place = live.place(op.instance, image_of(op.instance))
        hostdevs = _counterparts(
            _taken_along(move.devices_before(op, order.migration), op.instance.pci_requests),
            _taken_along(devices, order.request_spec.pci_requests),
        )
        hostdevs |= _counterparts(_accelerators_before(order.guest), accelerators)
        op.check()
        op.save(event=op.event())
    return {**offer, 'place': place, 'hostdevs': hostdevs}


def _counterparts(before: list[objects.PciDevice], here: list[objects.PciDevice]) -> dict[str, str]:
    """Return {address of a device at the source: address of the device of this host that replaces it}.

    ``before`` are the guest's devices at the source, ``here`` the devices that this host, the destination, claimed.
    Raises MigrationPreCheckError unless each device has a counterpart with the same properties.
    """
    left, found = list(here), {}
    for device in before:
        like = next((one for one in left if _seen(one) == _seen(device)), None)
        if like is None:
            raise errors.MigrationPreCheckError(
                reason=f'this host claimed no device like {device.address} of the source '
                f'({", ".join(filter(None, _seen(device)))})'
            )
        left.remove(like)
        found[device.address] = like.address
    if left:
        raise errors.MigrationPreCheckError(
            reason=f'this host claimed {", ".join(one.address for one in left)}, but the guest has no such device'
        )
    return found


def _taken_along(
    devices: list[objects.PciDevice], requests: objects.InstancePCIRequests | None
) -> list[objects.PciDevice]:
    """Return the devices that move with the guest. These are all devices except those that are used by ports.

    Ports are detached from the guest before it moves.
    """
    of_ports = {request.request_id for request in requests_of_ports(requests)}
    return [device for device in devices if device.request_id not in of_ports]


def _claimed(op: HostTask, migration: objects.Migration) -> list[objects.PciDevice]:
    return op.host.tracker.devices(op.instance.uuid, claim_key(migration))


def _identified(op: HostTask, accelerators: list[objects.PciDevice]) -> list[objects.PciDevice]:
    """Return the accelerators, each with the vendor id and product id of its PCI function.

    Raises MigrationPreCheckError if an accelerator can't move while the guest runs, or if this host lacks its PCI
    function.
    """
    for device in accelerators:
        if device.dev_type != MDEV:
            raise errors.MigrationPreCheckError(
                reason=f'the accelerator {device.address} is a PCI function of its host and cannot be migrated live'
            )
    known = op.host.driver.devices.ids_of(device.parent_addr for device in accelerators)
    for device in accelerators:
        if device.parent_addr not in known:
            raise errors.MigrationPreCheckError(
                reason=f'the accelerator {device.address} is on {device.parent_addr}, which does not exist on its host'
            )
        device.vendor_id, device.product_id = known[device.parent_addr]
    return accelerators


def _described(accelerator: objects.PciDevice) -> LiveDevice:
    return {
        'address': accelerator.address,
        'vendor_id': accelerator.vendor_id,
        'product_id': accelerator.product_id,
        'mdev_type': accelerator.extra_info['mdev_type'],
    }


def _accelerators_before(guest: LiveGuest) -> list[objects.PciDevice]:
    """Return the accelerators that the guest has at the source.

    The result is empty for a source host of the previous release. Its message has no list of accelerators, because it
    refuses to migrate a guest with accelerators.
    """
    return [
        objects.PciDevice(
            address=one['address'],
            dev_type=MDEV,
            vendor_id=one['vendor_id'],
            product_id=one['product_id'],
            extra_info={'mdev_type': one['mdev_type']},
        )
        for one in guest.get('accelerators', ())
    ]


def _seen(device: objects.PciDevice) -> tuple[str | None, ...]:
    """Return the properties that a device and its replacement at the destination must have in common."""
    return device.dev_type, device.vendor_id, device.product_id, device.extra_info.get('mdev_type')


# -- step 2: the destination prepares for the guest --------------------------------------------------------------------
@operation_method(Compute.pre_live_migration, verdict=move.verdict)
def prepare(op: HostTask, order: objects.LiveMigrationOrder) -> Reply:
    """Create empty disks and mediated devices, and connect the server's volumes, at the destination.

    Return {'volumes': how the guest finds each volume on this host}. If this step fails, ``rollback`` deletes the
    disks, the volume connections and the claim.
    """
    op.begin('compute_pre_live_migration')
    with op.exclusive(), op.undoing('prepare'):
        op.undo(move.failed, op)
        op.notify('instance.live_migration_pre.start')
        devices = _claimed(op, order.migration) + op.host.accelerators.devices(op.instance.flavor, order.migration.uuid)
        volumes = op.host.driver.live_migrations.prepare(op.instance, order.guest, order.offer, devices)
        op.save(event=op.event())
    op.notify('instance.live_migration_pre.end')
    return {'volumes': volumes}


# -- step 3: the source migrates the guest -----------------------------------------------------------------------------
@operation_method(Compute.live_migration)
def migrate(op: HostTask, order: objects.LiveMigrationOrder) -> Reply:
    """Migrate the guest from the source to the destination.

    If the conductor sends the call again after this process was restarted, wait for the migration that already runs.
    """
    host, migration = op.host, order.migration
    op.begin('compute_live_migration')

    def say(mark: int, status: str) -> None:
        op.save(mark=mark, migration={'uuid': migration.uuid, 'status': status})

    with op.exclusive(), op.undoing('live_migration'):
        op.undo(move.failed, op)
        with host.live_migration_slots.hold(op.check, lambda: say(QUEUED, 'queued')):
            op.check()
            say(RUNNING, 'running')
            with host.tracker.at_work(op.instance.uuid, 'move'):
                host.driver.live_migrations.migrate(op.instance, order.offer, _told(op, migration))
        op.notify('instance.live_migration_post.start')
        op.save(event=op.event(), migration={'uuid': migration.uuid, 'status': 'post-migrating'})
    return {}


def _told(op: HostTask, migration: objects.Migration) -> LiveTold:
    note = move.noting(op, migration)
    return lambda progress: note({name: int(value) for name, value in progress.items()})  # type: ignore[call-overload]


@query_method(Compute.live_migration_force_complete)
def force_complete(host: ComputeHost, ctxt: RequestContext, instance: objects.Instance) -> None:
    """Force the running migration to complete.

    The step ``migrate`` is still running when this is called, and it handles the migration's end.

    Raises MigrationError if the guest is not being migrated.
    """
    host.notify.emit(ctxt, 'instance.live_migration_force_complete.start', instance=instance)
    host.driver.live_migrations.force_complete(instance)
    host.notify.emit(ctxt, 'instance.live_migration_force_complete.end', instance=instance)


# -- step 4: the destination becomes the server's host -----------------------------------------------------------------
@operation_method(Compute.post_live_migration_at_destination)
def arrive(op: HostTask, migration: objects.Migration) -> Reply:
    """Make this host, the destination, the server's host. The conductor writes the server's state after the move."""
    op.begin('compute_post_live_migration_at_destination')
    with op.exclusive():
        op.notify('instance.live_migration_post_dest.start')
        _receive(op, migration, {'event': op.event()})
    op.notify('instance.live_migration_post_dest.end', values={'host': op.host.name, 'node': op.host.tracker.nodename})
    return {}


def _receive(op: HostTask, migration: objects.Migration, fields: SaveFields) -> None:
    host, uuid = op.host, op.instance.uuid
    move.restore_claims(host, op.instance, migration, op.instance.flavor)
    host.driver.live_migrations.receive(op.instance)
    with host.tracker.writing(op.ctxt):
        # After a restart of this service, the tracker may have the claim as ``RUN``, not under the migration's key.
        side = claim_key(migration)
        plan = host.tracker.plan_allocate(uuid, side if side in host.tracker.sides(uuid) else RUN)
        # Save the node's usage, which no longer counts this migration as a running task.
        fields['usage'] = host.tracker.usage(plan)
        fields['expect'] = {'host': [migration.source_compute, host.name]}
        fields['values'] = {'host': host.name, 'node': host.tracker.nodename, 'compute_id': host.tracker.node.id}
        op.save(plan, **fields)


# -- step 5: the source cleans up --------------------------------------------------------------------------------------
@operation_method(Compute.post_live_migration, forward=True)
def leave(op: HostTask, order: objects.LiveMigrationOrder) -> Reply:
    """Delete the guest's domain, disks, volume connections and claim at the source, after the guest has moved."""
    with op.exclusive():
        op.host.driver.live_migrations.leave(op.instance, order.offer)
        op.give_back(move.of_source(order.migration))
    op.notify('instance.live_migration_post.end')
    return {}


# -- undo of a live migration on both hosts ----------------------------------------------------------------------------
@operation_method(Compute.undo_live_migration, checks=StepCheck.UNDO, forward=True)
def abort(op: HostTask, order: objects.LiveMigrationUndo) -> Reply:
    """Abort the running migration of the guest at the source, if there is one.

    Return {'active': bool, 'switched': bool}. ``active`` is True if the guest is active on this host. ``switched`` is
    True if the migration was switched to post-copy: the guest runs at the destination, and cannot return to the source.
    """
    live = op.host.driver.live_migrations
    with op.exclusive():
        if not order.resume:
            op.notify('instance.live_migration_rollback.start')
        if order.aborted:
            op.notify('instance.live_migration_abort.start')
        active = live.abort(op.instance)
        if order.aborted:
            op.notify('instance.live_migration_abort.end')
        if order.resume:
            live.go_on(op.instance)
            op.notify('instance.live_migration_rollback.end')
        switched = live.has_switched(op.instance)
    return {'active': active, 'switched': switched}


@operation_method(Compute.rollback_live_migration_at_destination, checks=StepCheck.UNDO, forward=True)
def rollback(op: HostTask, order: objects.LiveMigrationUndo) -> Reply:
    """Delete the guest's incomplete domain and disks and its claim at the destination, and return {'arrived': False}.

    If the guest has left the source or has arrived completely, keep it and return {'arrived': True}. This holds even if
    the guest is off now.
    """
    migration, gone = order.migration, order.gone
    with op.exclusive():
        if gone is not False and _is_here(op, migration, gone):
            LOG.warning(
                'The guest arrived on this host before its migration was undone, and stays on this host',
                instance_uuid=op.instance.uuid,
            )
            _receive(op, migration, {'undo': True})
            return {'arrived': True}
        op.notify('instance.live_migration_rollback_dest.start')
        move.give_up(op, migration)
    op.notify('instance.live_migration_rollback_dest.end')
    return {'arrived': False}


def _is_here(op: HostTask, migration: objects.Migration, gone: bool | None) -> bool:
    if migration.dest_compute != op.host.name or records.instance(op.ctxt, op.instance.uuid) is None:
        return False
    return gone is True or op.host.driver.live_migrations.has_arrived(op.instance)
