"""Revert a resize: revert_dest · move_back · finish_revert · save_spec · mark_reverted. Only forward (rule 10)."""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow, Step
from kilonova.conductor.flows import move
from kilonova.conductor.work import HostGone, Work
from kilonova.db.queries import instances, migrations


def revert_dest(work: Work) -> None:
    """The destination destroys the new guest and frees the new devices; a dead one does it when it is back. One that
    may still run the guest is asked again until it answers or is forced down."""
    migration, instance, spec = move.migration(work), work.instance(), None
    try:
        work.ask(migration.dest_compute, 'revert_resize', instance=instance, migration=migration, request_spec=spec)
    except HostGone:
        second = move.second_guest(work, instance, migration.dest_compute)
        if second is not None:
            raise second from None
        work.pend(migration.dest_compute, 'revert_resize', instance=instance, migration=migration, request_spec=spec)
    work.changed()


def move_back(work: Work) -> None:
    """One POST: the server gets back what the migration holds."""
    work.env.placement.move_back(work.instance_uuid, work.args['migration_uuid'], work.compare_now)


def finish_revert(work: Work) -> None:
    """The source defines the guest from the old flavor and devices, and starts it if it ran. Without it no revert: a
    source that is down is asked again until it answers."""
    migration = move.migration(work)
    work.ask(migration.source_compute, 'finish_revert_resize', instance=work.instance(), migration=migration,
             request_spec=None)
    work.changed()


def save_spec(work: Work) -> None:
    """The stored request spec is the old flavor's again."""
    if work.args.get('request_spec'):
        move.save_spec(work, move.request_spec(work))


def mark_reverted(work: Work) -> None:
    """ACTIVE or SHUTOFF, as it was."""
    event = 'revert.active' if move.was_active(work) else 'revert.stopped'

    def end(conn: Any) -> None:
        uuid = work.instance_uuid
        instances.transition(conn, uuid, event)
        instances.update_extra(conn, uuid, {'migration_context': None})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'reverted'})
        instances.finish_action(conn, uuid, work.request_id)
    row = work.instance()
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.resize_revert.end', instance=row, moved=event, host=row.host)


class Revert(Flow):
    name = 'revert'
    forward_only = True
    steps = (
        Step('revert_dest', revert_dest),
        Step('move_back', move_back),
        Step('finish_revert', finish_revert),
        Step('save_spec', save_spec, saved=False),
        Step('mark_reverted', mark_reverted, saved=False),
    )


FLOW = Revert()
