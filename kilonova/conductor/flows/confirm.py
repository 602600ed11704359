"""Confirm a resize: confirm_source · drop_allocation · mark_confirmed. Only forward (operations.md rule 10)."""
from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow, Step
from kilonova.conductor.flows import move
from kilonova.conductor.work import HostGone, Work
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


def mark_confirmed(work: Work) -> None:
    """ACTIVE, or SHUTOFF when the guest is off."""
    row = work.instance(fresh=True)
    flavor = row.extra_values(['flavor']) if not row.old_flavor and not row.new_flavor else None
    if flavor is None:
        row.old_flavor = row.new_flavor = None
        flavor = row.extra_values(['flavor'])
    event = 'confirm.stopped' if row.power_state == 4 or not move.was_active(work) else 'confirm.active'

    def end(conn: Any) -> None:
        uuid = work.instance_uuid
        instances.transition(conn, uuid, event)
        instances.update_extra(conn, uuid, {'migration_context': None, **flavor})
        instances.set_system_metadata(conn, uuid, {'old_vm_state': None})
        migrations.update(conn, work.args['migration_uuid'], {'status': 'confirmed'})
        instances.finish_action(conn, uuid, work.request_id)
    work.end(end)


class Confirm(Flow):
    name = 'confirm'
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('mark_confirmed', mark_confirmed, saved=False),
    )


FLOW = Confirm()
