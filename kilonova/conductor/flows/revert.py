"""Revert a resize: check_source · revert_dest · move_back · finish_revert · save_spec · mark_reverted. Only forward
(rule 10); a source that can't take the server back refuses before anything is done."""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import move
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.queries import instances, migrations
from kilonova.errors import HostRejected


def check_source(work: Work) -> None:
    """HostRejected: the source has no longer what the server held there. One that is down is asked again until it
    answers; meanwhile the server runs on at the destination."""
    migration = move.migration(work)
    work.ask(migration.source_compute, 'check_revert', instance=work.instance(), migration=migration)


def revert_dest(work: Work) -> None:
    """The destination destroys the new guest and frees the new devices; a dead one does it when it is back. One that
    may still run the guest is asked again until it answers or is forced down."""
    migration, instance = move.migration(work), work.instance()
    try:
        work.ask(migration.dest_compute, 'revert_resize', instance=instance, migration=migration)
    except HostGone:
        second = move.second_guest(work, instance, migration.dest_compute)
        if second is not None:
            raise second from None
        work.pend(migration.dest_compute, 'revert_resize', instance=instance, migration=migration)
    work.changed()


def move_back(work: Work) -> None:
    """One POST: the server gets back what the migration holds."""
    work.env.placement.move_back(work.instance_uuid, work.args['migration_uuid'], work.compare_now)


def finish_revert(work: Work) -> None:
    """The source defines the guest from the old flavor and devices, and starts it if it ran. Without it no revert: a
    source that is down is asked again until it answers."""
    migration = move.migration(work)
    work.ask(migration.source_compute, 'finish_revert_resize', instance=work.instance(), migration=migration)
    work.changed()


def save_spec(work: Work) -> None:
    """The stored request spec is the old flavor's again."""
    if work.args.get('request_spec'):
        move.save_spec(work, move.request_spec(work))


def mark_reverted(work: Work) -> None:
    """ACTIVE or SHUTOFF, as it was."""
    event = 'revert.active' if move.was_active(work) else 'revert.stopped'

    moved = False

    def end(conn: Any) -> None:
        nonlocal moved
        uuid = work.instance_uuid
        moved = instances.transition(conn, uuid, event)
        instances.update_extra(conn, uuid, {'migration_context': None})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'reverted'})
        instances.finish_action(conn, uuid, work.request_id)
    row = work.instance()
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.resize_revert.end', instance=row, moved=event if moved else None,
                         host=row.host)


class Revert(Flow):
    name = 'revert'
    forward_only = True
    steps = (
        Step('check_source', check_source),
        Step('revert_dest', revert_dest),
        Step('move_back', move_back),
        Step('finish_revert', finish_revert),
        Step('save_spec', save_spec, saved=False),
        Step('mark_reverted', mark_reverted, saved=False),
    )

    def may_end(self, work: Work, error: Exception) -> bool:
        """A refusal comes before anything is done. A source that is down refuses nothing, it is waited for."""
        refused = isinstance(error, HostRejected) and not isinstance(error, HostGone)
        return (refused and work.position == self.index('check_source')) or super().may_end(work, error)

    def ended_badly(self, work: Work) -> None:
        """Refused: the server waits for its confirm or revert as before; cancelled: a delete does all of it."""
        if work.cancelled:
            work.end()
            return

        def end(conn: Any) -> None:
            uuid = work.instance_uuid
            instances.transition(conn, uuid, 'revert.refused')
            migrations.update(conn, work.args['migration_uuid'], {'status': 'finished'})
            instances.add_fault(conn, uuid, work.fault())
            instances.add_events(conn, uuid, work.request_id, [
                move.stored_event(work, 'conductor_revert_resize', 'Error')])
            instances.finish_action(conn, uuid, work.request_id, 'Error')
        work.end(end)


FLOW = Revert()
