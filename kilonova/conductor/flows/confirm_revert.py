"""Flows that confirm or revert a resize or cold migration. No step is undone: a failed step is retried.

The steps of a confirm are confirm_source, drop_allocation and mark_confirmed. The steps of a revert are check_source,
revert_dest, move_back, finish_revert, save_spec and mark_reverted. A source that can't take the server back refuses in
check_source, before anything is changed. See rule 10 of operations.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kilonova.accel import holder
from kilonova.conductor.ending import Ending
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, releases
from kilonova.conductor.flows.moving import had_guest, migration, store_spec, will_have_guest
from kilonova.conductor.flows.network import network_changed, port_moves
from kilonova.conductor.flows.volume import volumes
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostDown, Step, Work
from kilonova.db.arguments.base import MigrationArguments
from kilonova.db.arguments.moves import RevertArguments
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, migrations, operations
from kilonova.errors import HostRejected
from kilonova.rpc.compute import Compute
from kilonova.states import PowerState


# --- confirm ---------------------------------------------------------------------------------------------------------
def confirm_source(work: Work[Outputs]) -> None:
    """Ask the source to delete the server's files and to free the devices that the server had before the move.

    If the source is down, an operation row is added (a pending release). A conductor calls the source when it is up
    again.
    """
    moved, instance = migration(work), work.instance()
    try:
        work.call_host(moved.source_compute, Compute.confirm_resize, instance=instance, migration=moved)
    except HostDown:
        releases.add_pending_release(
            work, moved.source_compute, Compute.confirm_resize, instance=instance, migration=moved
        )


def drop_allocation(work: Work[Outputs]) -> None:
    """Release the accelerators that the server had before the move, and delete the migration's allocation."""
    server = work.instance()
    if accelerators.wanted_by(server.old_flavor):
        accelerators.drop(work, holder.before(server.uuid, server.system_metadata))
    work.env.placement.delete_allocations(work.arguments(MigrationArguments).migration_uuid)


def settled(work: Work[Outputs]) -> Ending:
    """Return the changes that delete the values of a move from the server's row.

    They delete the old and the new flavor and the migration context, and set the migration's status to confirmed.
    """
    row = work.instance()
    bound = holder.confirmed() if holder.BEFORE in row.system_metadata else {}
    row.old_flavor = row.new_flavor = None
    flavor = row.extra_values(['flavor'])
    return Ending(
        extra={'migration_context': None, **flavor},
        system_metadata={'old_vm_state': None, **bound},
        migration='confirmed',
    )


def _insert(rows: list[operations.OperationRow]) -> Callable[[Connection], None]:
    """Return a function ``write(conn)`` that inserts the operation rows, if there are any."""
    return lambda conn: operations.insert(conn, rows) if rows else None


def mark_confirmed(work: Work[Outputs]) -> None:
    """Set the server's state to ACTIVE, or to SHUTOFF if the guest is off, and end the operation.

    If an administrator has reset the server's state in the meantime, the server keeps that state.
    """
    row = work.instance(fresh=True)
    event = 'confirm.stopped' if row.power_state == PowerState.SHUTDOWN or not had_guest(work) else 'confirm.active'
    ending = settled(work)
    source = migration(work).source_compute if work.env.notify.enabled else None
    begun = network_changed.port_refresh_operations(work)
    moved = replace(ending, event=event, after=_insert(begun)).end(work)
    work.env.runner.wake(work.db, [each.uuid for each in begun])
    work.env.notify.emit(
        work.ctxt, 'instance.resize_confirm.end', instance=row, moved=event if moved else None, host=source
    )


class Confirm(Flow[Outputs]):
    """The operation that confirms a resize or cold migration."""

    name, outputs = 'confirm', Outputs
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_confirmed', mark_confirmed),
    )


# --- revert ----------------------------------------------------------------------------------------------------------
def check_source(work: Work[Outputs]) -> None:
    """Ask the source to check that it can take the server back.

    Raises HostRejected if the source no longer has the devices that the server held before the move. While the source
    is down, the step is retried, and the server continues to run on the destination.
    """
    moved = migration(work)
    work.call_host(moved.source_compute, Compute.check_revert, instance=work.instance(), migration=moved)


def revert_dest(work: Work[Outputs]) -> None:
    """Ask the destination to destroy the new guest and to free the new devices.

    If the destination is down and may still run the guest, the step is retried until the destination answers or an
    operator forces it down. If the destination is down and can't run the guest, an operation row is added (a pending
    release), and a conductor calls the destination when it is up again.
    """
    moved, instance = migration(work), work.instance()
    try:
        work.call_host(moved.dest_compute, Compute.revert_resize, instance=instance, migration=moved)
    except HostDown:
        releases.check_no_guest(work, moved.dest_compute, lambda: will_have_guest(work, instance))
        releases.add_pending_release(
            work, moved.dest_compute, Compute.revert_resize, instance=instance, migration=moved
        )
    work.changed()


def move_back(work: Work[Outputs]) -> None:
    """Release the accelerators of the new flavor, and give the server the allocation that the migration holds.

    The allocation on the source is moved from the migration to the server by one POST request to Placement.
    """
    uuid = work.arguments(RevertArguments).migration_uuid
    if accelerators.wanted_by(work.instance().flavor):
        accelerators.drop(work, uuid)
    work.env.placement.move_back(work.instance_uuid, uuid, work.compare_now)


def finish_revert(work: Work[Outputs]) -> None:
    """Bind the ports and attach the volumes to the source. Ask the source to define the guest again.

    The guest gets its old flavor and its old devices. The source starts the guest if the guest ran before the move.
    While the source is down, the step is retried, because the server can't be reverted without the source.
    """
    moved = migration(work)
    is_away = moved.source_compute != moved.dest_compute
    if is_away or port_moves.moves_here(work):
        port_moves.to_source(work, moved, work.instance().availability_zone)
    if is_away:
        volumes.to_host(work, moved.source_compute)
    work.call_host(moved.source_compute, Compute.finish_revert_resize, instance=work.instance(), migration=moved)
    work.changed()


def save_spec(work: Work[Outputs]) -> None:
    """Store the request spec of the old flavor again."""
    if spec := work.arguments(RevertArguments).request_spec:
        store_spec(work, work.request_spec(spec))


def mark_reverted(work: Work[Outputs]) -> None:
    """Set the server's state to ACTIVE or SHUTOFF, as it was before the move, and end the operation."""
    event = 'revert.active' if had_guest(work) else 'revert.stopped'
    kept = work.instance().system_metadata
    bound = holder.reverted(kept) if kept.keys() & {holder.BOUND_TO, holder.BEFORE} else {}
    begun = [*network_changed.port_refresh_operations(work), *network_changed.surplus_release_operations(work)]
    row = work.instance()
    moved = Ending(
        event=event,
        extra={'migration_context': None},
        system_metadata={'old_vm_state': None, **bound},
        migration='reverted',
        after=_insert(begun),
    ).end(work)
    work.env.runner.wake(work.db, [each.uuid for each in begun])
    work.env.notify.emit(
        work.ctxt, 'instance.resize_revert.end', instance=row, moved=event if moved else None, host=row.host
    )


class Revert(Flow[Outputs]):
    """The operation that reverts a resize or cold migration."""

    name, outputs = 'revert', Outputs
    forward_only = True
    steps = (
        Step('check_source', check_source),
        Step('revert_dest', revert_dest),
        Step('move_back', move_back),
        Step('finish_revert', finish_revert),
        Step('save_spec', save_spec, saved=False),
        Step('mark_reverted', mark_reverted),
    )

    def may_end(self, work: Work[Outputs], error: Exception) -> bool:
        """Return whether the operation ends with this error instead of being retried.

        A revert ends if the source refuses the server in ``check_source``, before anything is changed, or if the
        operation was cancelled. A source that is down has not refused, so the step is retried.
        """
        refused = isinstance(error, HostRejected) and not isinstance(error, HostDown)
        return (refused and work.position == self.index('check_source')) or super().may_end(work, error)

    def ended_badly(self, work: Work[Outputs]) -> None:
        """End a revert that the source refused or that was cancelled by a delete.

        After a refusal the server waits to be confirmed or reverted, as before the revert. After a cancel only the
        operation row is deleted, because the waiting delete releases all resources of the server.
        """
        if work.cancelled:
            work.end()
            return

        def end(conn: Connection) -> None:
            uuid = work.instance_uuid
            instances.transition(conn, uuid, 'revert.refused')
            migrations.update(conn, work.arguments(RevertArguments).migration_uuid, {'status': 'finished'})
            instances.add_fault(conn, uuid, work.fault())
            instances.add_events(
                conn, uuid, work.request_id, [work.event('conductor_revert_resize', 'Error', work.env.host)]
            )
            instances.finish_action(conn, uuid, work.request_id, 'Error')

        work.end(end)
