"""Soft delete: confirm_source · drop_allocation · settle_move · soft_delete_instance. And restore.

A soft delete only goes forward, like a delete. A server whose move waits for an answer is confirmed first: what comes
back one day is the server as it was last seen. It keeps host, disks, devices and allocation until it is reclaimed.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor.environment import silence
from kilonova.conductor.flow import Flow
from kilonova.conductor.flows import confirm
from kilonova.conductor.flows.power import OneStep
from kilonova.conductor.work import HostGone, Step, Work
from kilonova.db import engine
from kilonova.db.queries import instances


def _moved(work: Work) -> bool:
    return bool(work.args.get('migration_uuid'))


def confirm_source(work: Work) -> None:
    """What the source kept of the server goes."""
    if _moved(work):
        confirm.confirm_source(work)


def drop_allocation(work: Work) -> None:
    """What the migration held in Placement goes."""
    if _moved(work):
        confirm.drop_allocation(work)


def settle_move(work: Work) -> None:
    """One flavor, no migration context, the migration confirmed."""
    if _moved(work):
        work.changed()
        with silence():
            _write(work)
        work.changed()


@engine.retried
def _write(work: Work) -> None:
    settle = confirm.settled(work)
    with work.db.write() as conn:
        settle(conn)


def soft_delete_instance(work: Work) -> None:
    """The host powers the guest off and writes the end state. For a host that is down it is written here: when it is
    back it finds a guest that is to be off."""
    host = work.instance_row()['host']
    try:
        if host is None:
            raise HostGone(host='of the server')
        work.ask(host, 'soft_delete_instance', instance=work.instance())
    except HostGone:
        row = work.instance()
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.start', instance=row, host=host)
        moved = False

        def end(conn: Any) -> None:
            nonlocal moved
            moved = instances.transition(conn, work.instance_uuid, 'soft_delete.done')
            instances.finish_action(conn, work.instance_uuid, work.request_id)
        work.end(end)
        work.env.notify.emit(work.ctxt, 'instance.soft_delete.end', instance=row, host=host,
                             moved='soft_delete.done' if moved else None)
    else:
        work.ended_by_host()


class SoftDelete(Flow):
    name = 'soft_delete'
    forward_only = True
    steps = (
        Step('confirm_source', confirm_source, saved=_moved),
        Step('drop_allocation', drop_allocation, saved=False),
        Step('settle_move', settle_move),
        Step('soft_delete_instance', soft_delete_instance, saved=False),
    )

    def ended_badly(self, work: Work) -> None:
        """A delete waits behind it: that takes the server as it is."""
        work.end(lambda conn: instances.finish_action(conn, work.instance_uuid, work.request_id, 'Error'))


def restore_instance(work: Work) -> None:
    """The host starts the guest and writes the end state."""
    work.ask(work.instance_row()['host'], 'restore_instance', instance=work.instance())
    work.ended_by_host()


class Restore(OneStep):
    """A failure leaves the server soft-deleted."""

    name, failed, action_event = 'restore', 'restore.failed', 'compute_restore_instance'
    steps = (Step('restore_instance', restore_instance, saved=False),)


FLOW, RESTORE = SoftDelete(), Restore()
