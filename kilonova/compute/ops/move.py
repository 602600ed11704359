"""What the steps of a move share: which things here belong to which end of it.

At the destination everything is held under the migration's side. At the source it is what the server had before: under
``RUN`` or under the side of the older move that brought it here. On one host both ends are here; after a restart the
migration context tells them apart.
"""
from __future__ import annotations

from collections.abc import Callable

from kilonova import objects
from kilonova.compute.host import Host
from kilonova.compute.tracker import RUN, side_of


def same_host(migration: objects.Migration) -> bool:
    """Whether source and destination are one node."""
    return (migration.source_compute, migration.source_node) == (migration.dest_compute, migration.dest_node)


def context_of(instance: objects.Instance, migration: objects.Migration) -> objects.MigrationContext | None:
    """The server's migration context if it is this migration's."""
    context = instance.migration_context if 'migration_context' in instance else None
    return context if context is not None and context.migration_id == migration.id else None


def old_flavor(instance: objects.Instance) -> objects.Flavor:
    """The flavor before the move, whether or not the destination has already written the new one."""
    old = instance.old_flavor if 'old_flavor' in instance else None
    return old or instance.flavor


def learn(host: Host, instance: objects.Instance, migration: objects.Migration,
          new_flavor: objects.Flavor | None = None) -> None:
    """See to it that the ledger knows both ends of this move that are here (a restarted compute may not)."""
    uuid, side, tracker = instance.uuid, side_of(migration), host.tracker
    known = tracker.sides(uuid)
    if migration.dest_compute != host.name:
        return
    context = context_of(instance, migration)
    if not same_host(migration):
        if not known - {side}:
            tracker.adopt(uuid, side, new_flavor, topology=context.new_numa_topology if context is not None else None)
        return
    if context is None:
        return
    arrived = {device.address for device in context.new_pci_devices or ()}
    if not known - {side}:
        tracker.adopt(uuid, RUN, old_flavor(instance), {device.address for device in tracker.devices(uuid)} - arrived,
                      context.old_numa_topology)
    tracker.adopt(uuid, side, new_flavor, arrived, context.new_numa_topology)


def of_destination(migration: objects.Migration) -> Callable[[str], bool]:
    """Sides that leave when this move is undone or reverted."""
    side = side_of(migration)
    return lambda name: name == side


def of_source(migration: objects.Migration) -> Callable[[str], bool]:
    """Sides that leave when this move is confirmed: home, and older moves; a newer move's things stay."""
    return lambda name: name == RUN or _number(name) < migration.id


def _number(side: str) -> int:
    return int(side.rpartition('-')[2])


def clean_destination(host: Host, instance: objects.Instance, migration: objects.Migration) -> None:
    """At the destination, where this move is undone or reverted: guest and copy of the disks go, unless the server
    holds something else here, which then is its home."""
    both = same_host(migration)
    if both or not host.tracker.sides(instance.uuid) - {side_of(migration)}:
        host.driver.moves.cleanup_move_dest(instance, both)


def place_of(instance: objects.Instance) -> objects.InstanceNUMATopology | None:
    """Where on its host's NUMA cells a server is, by its row."""
    return instance.numa_topology if 'numa_topology' in instance else None
