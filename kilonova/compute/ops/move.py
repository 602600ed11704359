"""Functions for all moves. Most of them find claims and devices on this host, which is a move's source or destination.

The tracker stores each claim of a server under a name, the claim key. At the destination, the claim has the migration's
claim key. At the source, the server has the claim from before the move: its name is ``RUN``, or the claim key of an
older move that brought the server to this host. If source and destination are one host, the tracker has two claims of
the server. After a restart of the service, the claims are read from the server's migration context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import records
from kilonova.compute.host import ComputeHost
from kilonova.compute.operation import ClaimFields, HostTask, readable
from kilonova.compute.tracker import RUN, ClaimPlan, claim_key
from kilonova.states import TaskState

LOG = logging.getLogger(__name__)

# The shortest time in seconds between two saves of a migration's progress.
EVERY = 5.0


def same_host(migration: objects.Migration) -> bool:
    """Return whether source and destination of the move are the same node."""
    return (migration.source_compute, migration.source_node) == (migration.dest_compute, migration.dest_node)


def context_of(instance: objects.Instance, migration: objects.Migration) -> objects.MigrationContext | None:
    """Return the server's migration context if it belongs to this migration, otherwise None."""
    context = instance.migration_context if 'migration_context' in instance else None
    return context if context is not None and context.migration_id == migration.id else None


def is_over(op: HostTask, instance: objects.Instance, migration: objects.Migration) -> bool:
    """Return whether this move of the server has ended."""
    return context_of(instance, migration) is None and all(
        one.uuid != migration.uuid for one in records.moves(op.ctxt, op.host.name, op.host.tracker.nodename)
    )


def old_flavor(instance: objects.Instance) -> objects.Flavor:
    """Return the server's flavor before the move, even if the destination has already written the new flavor."""
    old = instance.old_flavor if 'old_flavor' in instance else None
    return old or instance.flavor


def restore_claims(
    host: ComputeHost,
    instance: objects.Instance,
    migration: objects.Migration,
    new_flavor: objects.Flavor | None = None,
) -> None:
    """Record the claims of this move on this host in the tracker, if they are missing there.

    After a restart of the compute service the tracker may not know the claims. ``new_flavor`` is the flavor at the
    destination, or None if its amounts are not known yet.
    """
    uuid, side, tracker, from_volume = instance.uuid, claim_key(migration), host.tracker, instance.is_from_volume
    known = tracker.sides(uuid)
    if migration.dest_compute != host.name:
        return
    context = context_of(instance, migration)
    if not same_host(migration):
        if not known - {side}:
            tracker.adopt(
                uuid,
                side,
                new_flavor,
                topology=context.new_numa_topology if context is not None else None,
                from_volume=from_volume,
            )
        return
    if context is None:
        return
    arrived = {device.address for device in context.new_pci_devices or ()}
    if not known - {side}:
        tracker.adopt(
            uuid,
            RUN,
            old_flavor(instance),
            {device.address for device in tracker.devices(uuid)} - arrived,
            context.old_numa_topology,
            from_volume,
        )
    tracker.adopt(uuid, side, new_flavor, arrived, context.new_numa_topology, from_volume)


def of_destination(migration: objects.Migration) -> Callable[[str], bool]:
    """Return a function that takes a claim's name and returns whether it is this move's claim at the destination.

    This claim is released when the move is undone or reverted.
    """
    side = claim_key(migration)
    return lambda name: name == side


def of_source(migration: objects.Migration) -> Callable[[str], bool]:
    """Return a function that takes the name of a claim and returns whether the server had the claim before this move.

    These are the claims that are released when the move is confirmed. They are named ``RUN``, or have the claim key of
    an older migration. The claims of this migration and of newer ones are kept.
    """
    return lambda name: name == RUN or _number(name) < migration.id


def _number(side: str) -> int:
    return int(side.rpartition('-')[2])


def clean_destination(host: ComputeHost, instance: objects.Instance, migration: objects.Migration) -> None:
    """Delete the guest and the copied disks at the destination of a move that is undone or reverted.

    Nothing is deleted if the server has another claim on this host, because the server then belongs to this host.
    """
    both = same_host(migration)
    if both or not host.tracker.sides(instance.uuid) - {claim_key(migration)}:
        host.driver.moves.cleanup_move_dest(instance, both)


def place_of(instance: objects.Instance) -> objects.InstanceNUMATopology | None:
    """Return the server's placement on its host's NUMA cells, as the server's row stores it, or None."""
    return instance.numa_topology if 'numa_topology' in instance else None


def take_place(op: HostTask, migration: objects.Migration, spec: objects.RequestSpec) -> None:
    """Set the instance's NUMA placement to the one that this host claimed for the move.

    Raises KilonovaError if ``spec`` requests a placement and none was claimed, or the other way round. Otherwise the
    guest would use CPUs and memory pages that the tracker does not count.
    """
    instance = op.instance
    instance.numa_topology = op.host.tracker.topology(instance.uuid, claim_key(migration))
    if (instance.numa_topology is None) != ('numa_topology' not in spec or spec.numa_topology is None):
        raise errors.KilonovaError(
            f'The claim of instance {instance.uuid} on the NUMA cells of this host does not match its request.'
        )


# -- claim resources at the destination of a move ----------------------------------------------------------------------
def claim(
    op: HostTask,
    order: objects.PrepResizeOrder | objects.LiveMigrationCheckOrder | objects.EvacuateOrder,
    task_state: TaskState,
    host_of_server: list[str] | None = None,
    **columns: str,
) -> list[objects.PciDevice]:
    """Claim resources at the destination for the server, with its flavor after the move. Return the PCI devices.

    ``columns`` are columns of the migration's row that are written with the claim. ``host_of_server`` is a list of
    hosts: the claim fails if the server's row names another host. If it is None, only the move's source host is
    allowed.
    """
    host, migration, spec = op.host, order.migration, order.request_spec
    requests = spec.pci_requests if 'pci_requests' in spec else None
    old = devices_before(op, migration)
    # If source and destination are one host, the server's host does not change, so no group policy is checked.
    group = op.group_of(spec) if migration.source_compute != host.name else None
    fields: ClaimFields = {
        'expect': {'host': host_of_server or migration.source_compute, 'task_state': [task_state.value]},
        'values': {},
        'group': group,
        'migration': {
            'uuid': migration.uuid,
            'dest_compute': host.name,
            'dest_node': host.tracker.nodename,
            'dest_compute_id': host.tracker.node.id,
            'dest_host': host.conf.my_ip,
            **columns,
        },
    }
    return op.claim(
        claim_key(migration),
        order.flavor,
        requests,
        spec.numa_topology if 'numa_topology' in spec else None,
        order.limits,
        lambda plan: {'migration_context': _context(op, migration, requests, old, plan)},
        **fields,
    )


def devices_before(op: HostTask, migration: objects.Migration) -> list[objects.PciDevice]:
    """Return the devices that the server holds at the source. Called at the destination."""
    tracker, instance = op.host.tracker, op.instance
    if migration.source_compute == op.host.name:
        return tracker.devices(instance.uuid)
    requests = instance.pci_requests if 'pci_requests' in instance else None
    if requests is None or not requests.requests:
        return []
    return [
        device for device in records.devices_of(op.ctxt, instance.uuid) if device.compute_node_id != tracker.node.id
    ]


def _context(
    op: HostTask,
    migration: objects.Migration,
    requests: objects.InstancePCIRequests | None,
    old: list[objects.PciDevice],
    plan: ClaimPlan,
) -> str:
    instance = op.instance
    taken = {(device.compute_node_id, device.address) for device in plan.devices}
    before = [device for device in old if (device.compute_node_id, device.address) not in taken]
    return objects.MigrationContext(
        instance_uuid=instance.uuid,
        migration_id=migration.id,
        old_numa_topology=place_of(instance),
        new_numa_topology=plan.topology,
        old_pci_devices=objects.PciDeviceList(objects=before),
        new_pci_devices=objects.PciDeviceList(objects=plan.devices),
        old_pci_requests=instance.pci_requests if 'pci_requests' in instance else None,
        new_pci_requests=None
        if requests is None
        else objects.InstancePCIRequests(instance_uuid=instance.uuid, requests=requests.requests),
        old_resources=None,
        new_resources=None,
    ).to_json()


def free(op: HostTask, migration: objects.Migration) -> None:
    """Release the move's claim at the destination. Used as an undo by the step that made the claim."""
    op.give_back(of_destination(migration), unsided=False, undo=True, undone=op.undone)


def give_up(op: HostTask, migration: objects.Migration) -> None:
    """Release the move's claim at the destination and delete copied disks, when the conductor undoes the move.

    If source and destination are one host, guest and disks belong to the source and are not deleted.
    """
    here = same_host(migration) or migration.dest_compute is None
    restore_claims(op.host, op.instance, migration)
    if not here:
        clean_destination(op.host, op.instance, migration)
    op.give_back(of_destination(migration), unsided=not here, undo=True)


def after(op: HostTask, order: objects.PrepResizeOrder | objects.EvacuateOrder) -> objects.Instance:
    """Return a copy of the server with its new flavor and the NUMA placement that this host claimed."""
    found = op.instance.replaced(numa_topology=op.host.tracker.topology(op.instance.uuid, claim_key(order.migration)))
    found.set_flavor(order.flavor)
    return found


def verdict(op: HostTask, error: Exception) -> Exception:
    """Return the error that is sent to the conductor if a step at the destination fails before it changed the server.

    A failure of this host becomes HostRejected, so that the conductor tries the next host. Other errors are returned
    unchanged.
    """
    told = (errors.KeyGone, errors.Cancelled, errors.Conflict, errors.Unanswered, errors.LiveMigrationAborted)
    if isinstance(error, (*told, errors.HostRejected)) or errors.cause_of(error) is errors.Cause.REQUEST:
        return error
    return errors.HostRejected(f'{op.host.name}: {readable(error)}')


# -- write events and the progress of a move ---------------------------------------------------------------------------
def failed(op: HostTask) -> None:
    """Write that the event of the instance action has failed, and save the reason why this host undid the step.

    With a saved reason, later calls for this step and attempt are refused. If the error is Unanswered, the conductor
    repeats the call, so no reason is saved.
    """
    op.save(undo=True, event=op.event(op.error), undone=None if isinstance(op.error, errors.Unanswered) else op.undone)


def noting(op: HostTask, migration: objects.Migration) -> Callable[[Mapping[str, int]], None]:
    """Return a function that writes the progress of a migration to its row, at most every 5 seconds.

    The function's argument is a dict from a column of the migration's row to a number of bytes. If the function is
    called again within 5 seconds, it writes nothing. It raises an error if the operation has been cancelled or another
    conductor has taken it over.
    """
    said, mark = time.monotonic(), 0

    def note(columns: Mapping[str, int]) -> None:
        nonlocal said, mark
        op.check()
        if time.monotonic() - said < EVERY:
            return
        said, mark = time.monotonic(), mark + 1
        LOG.info(
            'Migration to %s in progress: %s',
            migration.dest_compute,
            ', '.join(f'{name} {value >> 20} MiB' for name, value in columns.items()),
            instance_uuid=op.instance.uuid,
        )
        op.save(mark=mark, migration={'uuid': migration.uuid, **columns})

    return note
