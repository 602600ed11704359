"""What ends a move: confirm and revert of a resized server. Both only go forward (operations.md rule 10).

Confirm: confirm_source · drop_allocation · mark_confirmed. Revert: check_source · revert_dest · move_back ·
finish_revert · save_spec · mark_reverted; a source that can't take the server back refuses before anything is done.
"""
from __future__ import annotations

from collections.abc import Callable

from kilonova.accel import holder
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import accelerators, beside, network_changed, port_moves, volumes
from kilonova.conductor.flows.resize import migration, request_spec, second_guest, store_spec, was_active
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, migrations, operations
from kilonova.errors import HostRejected


# --- confirm ---------------------------------------------------------------------------------------------------------
def confirm_source(work: Work[Outputs]) -> None:
    """The source removes its files and frees the old devices; a dead source does it when it is back."""
    moved, instance = migration(work), work.instance()
    try:
        work.ask(moved.source_compute, 'confirm_resize', instance=instance, migration=moved)
    except HostGone:
        beside.pend(work, moved.source_compute, 'confirm_resize', instance=instance, migration=moved)


def drop_allocation(work: Work[Outputs]) -> None:
    """What the migration held in Placement goes; before it the accelerators that the server had."""
    server = work.instance()
    if accelerators.wanted_by(server.old_flavor):
        accelerators.drop(work, holder.before(server.uuid, server.system_metadata))
    work.env.placement.delete_allocations(work.args['migration_uuid'])


def settled(work: Work[Outputs]) -> Callable[[Connection], None]:
    """What is to be written when nothing of the move is left: one flavor, no context, a confirmed migration."""
    row = work.instance()
    bound = holder.confirmed() if holder.BEFORE in row.system_metadata else {}
    row.old_flavor = row.new_flavor = None
    flavor = row.extra_values(['flavor'])

    def write(conn: Connection) -> None:
        uuid = work.instance_uuid
        instances.update_extra(conn, uuid, {'migration_context': None, **flavor})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None, **bound})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'confirmed'})
    return write


def mark_confirmed(work: Work[Outputs]) -> None:
    """ACTIVE, or SHUTOFF when the guest is off. A server whose state was reset meanwhile keeps that."""
    row = work.instance(fresh=True)
    event = 'confirm.stopped' if row.power_state == 4 or not was_active(work) else 'confirm.active'
    settle = settled(work)
    source = migration(work).source_compute if work.env.notify.enabled else None
    begun = network_changed.looked_at(work)

    moved = False

    def end(conn: Connection) -> None:
        nonlocal moved
        moved = instances.transition(conn, work.instance_uuid, event)
        settle(conn)
        instances.finish_action(conn, work.instance_uuid, work.request_id)
        if begun:
            operations.insert(conn, begun)
    work.end(end)
    work.env.runner.wake(work.db, [each.uuid for each in begun])
    work.env.notify.emit(work.ctxt, 'instance.resize_confirm.end', instance=row, moved=event if moved else None,
                         host=source)


class Confirm(Flow[Outputs]):
    name, outputs = 'confirm', Outputs
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_confirmed', mark_confirmed),
    )


# --- revert ----------------------------------------------------------------------------------------------------------
def check_source(work: Work[Outputs]) -> None:
    """HostRejected: the source has no longer what the server held there. One that is down is asked again until it
    answers; meanwhile the server runs on at the destination."""
    moved = migration(work)
    work.ask(moved.source_compute, 'check_revert', instance=work.instance(), migration=moved)


def revert_dest(work: Work[Outputs]) -> None:
    """The destination destroys the new guest and frees the new devices; a dead one does it when it is back. One that
    may still run the guest is asked again until it answers or is forced down."""
    moved, instance = migration(work), work.instance()
    try:
        work.ask(moved.dest_compute, 'revert_resize', instance=instance, migration=moved)
    except HostGone:
        second = second_guest(work, instance, moved.dest_compute)
        if second is not None:
            raise second from None
        beside.pend(work, moved.dest_compute, 'revert_resize', instance=instance, migration=moved)
    work.changed()


def move_back(work: Work[Outputs]) -> None:
    """One POST: the server gets back what the migration holds. The accelerators of the new flavor are free before."""
    if accelerators.wanted_by(work.instance().flavor):
        accelerators.drop(work, work.args['migration_uuid'])
    work.env.placement.move_back(work.instance_uuid, work.args['migration_uuid'], work.compare_now)


def finish_revert(work: Work[Outputs]) -> None:
    """The source defines the guest from the old flavor and devices, and starts it if it ran. Without it no revert: a
    source that is down is asked again until it answers. The ports are bound and the volumes
    attached there before."""
    moved = migration(work)
    is_away = moved.source_compute != moved.dest_compute
    if is_away or port_moves.moves_here(work):
        port_moves.to_source(work, moved, work.instance().availability_zone)
    if is_away:
        volumes.to_host(work, moved.source_compute)
    work.ask(moved.source_compute, 'finish_revert_resize', instance=work.instance(), migration=moved)
    work.changed()


def save_spec(work: Work[Outputs]) -> None:
    """The stored request spec is the old flavor's again."""
    if work.args.get('request_spec'):
        store_spec(work, request_spec(work))


def mark_reverted(work: Work[Outputs]) -> None:
    """ACTIVE or SHUTOFF, as it was."""
    event = 'revert.active' if was_active(work) else 'revert.stopped'
    kept = work.instance().system_metadata
    bound = holder.reverted(kept) if kept.keys() & {holder.BOUND_TO, holder.BEFORE} else {}
    begun = [*network_changed.looked_at(work), *network_changed.held_again(work)]

    moved = False

    def end(conn: Connection) -> None:
        nonlocal moved
        uuid = work.instance_uuid
        moved = instances.transition(conn, uuid, event)
        instances.update_extra(conn, uuid, {'migration_context': None})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None, **bound})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'reverted'})
        instances.finish_action(conn, uuid, work.request_id)
        if begun:
            operations.insert(conn, begun)
    row = work.instance()
    work.end(end)
    work.env.runner.wake(work.db, [each.uuid for each in begun])
    work.env.notify.emit(work.ctxt, 'instance.resize_revert.end', instance=row, moved=event if moved else None,
                         host=row.host)


class Revert(Flow[Outputs]):
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
        """A refusal comes before anything is done. A source that is down refuses nothing, it is waited for."""
        refused = isinstance(error, HostRejected) and not isinstance(error, HostGone)
        return (refused and work.position == self.index('check_source')) or super().may_end(work, error)

    def ended_badly(self, work: Work[Outputs]) -> None:
        """Refused: the server waits for its confirm or revert as before; cancelled: a delete does all of it."""
        if work.cancelled:
            work.end()
            return

        def end(conn: Connection) -> None:
            uuid = work.instance_uuid
            instances.transition(conn, uuid, 'revert.refused')
            migrations.update(conn, work.args['migration_uuid'], {'status': 'finished'})
            instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [
                work.event('conductor_revert_resize', 'Error', work.env.host)])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)
