"""Confirm a resize: confirm_source · drop_allocation · mark_confirmed. Only forward (operations.md rule 10)."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import move
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db.queries import instances, migrations


def confirm_source(work: Work) -> None:
    """The source removes its files and frees the old devices; a dead source does it when it is back."""
    migration, instance = move.migration(work), work.instance()
    try:
        work.ask(migration.source_compute, 'confirm_resize', instance=instance, migration=migration)
    except HostGone:
        work.pend(migration.source_compute, 'confirm_resize', instance=instance, migration=migration)


def drop_allocation(work: Work) -> None:
    """What the migration held in Placement goes."""
    work.env.placement.delete_allocations(work.args['migration_uuid'])


def settled(work: Work) -> Callable[[Any], None]:
    """What is to be written when nothing of the move is left: one flavor, no context, a confirmed migration."""
    row = work.instance()
    row.old_flavor = row.new_flavor = None
    flavor = row.extra_values(['flavor'])

    def write(conn: Any) -> None:
        uuid = work.instance_uuid
        instances.update_extra(conn, uuid, {'migration_context': None, **flavor})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'confirmed'})
    return write


def mark_confirmed(work: Work) -> None:
    """ACTIVE, or SHUTOFF when the guest is off. A server whose state was reset meanwhile keeps that."""
    row = work.instance(fresh=True)
    event = 'confirm.stopped' if row.power_state == 4 or not move.was_active(work) else 'confirm.active'
    settle = settled(work)
    source = move.migration(work).source_compute if work.env.notify.enabled else None

    moved = False

    def end(conn: Any) -> None:
        nonlocal moved
        moved = instances.transition(conn, work.instance_uuid, event)
        settle(conn)
        instances.finish_action(conn, work.instance_uuid, work.request_id)
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.resize_confirm.end', instance=row, moved=event if moved else None,
                         host=source)


class Confirm(Flow):
    name = 'confirm'
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_confirmed', mark_confirmed, saved=False),
    )


FLOW = Confirm()
