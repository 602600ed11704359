"""Backup: backup_instance · mark_backed_up. An image of the server; the oldest of its type go afterwards.

That is a row which the transaction writes that ends the backup: a rotation that fails is tried again, and fails none.
"""
from __future__ import annotations

from kilonova.conductor.flows import beside
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db.engine import Connection
from kilonova.db.queries import instances, operations
from kilonova.db.queries.operations import Operation


def backup_instance(work: Work[Outputs]) -> None:
    """The host copies the root disk and sends it."""
    work.ask(work.instance_row()['host'], 'backup_instance', instance=work.instance(),
             image_id=work.args['image_id'])
    work.changed()


def undo_backup_instance(work: Work[Outputs]) -> None:
    """The guest goes on, the host's copy goes, the image goes."""
    beside.undo_image(work, 'undo_snapshot_instance')


def mark_backed_up(work: Work[Outputs]) -> None:
    """The server is at rest, and the older backups are to be looked at."""
    row = work.instance()
    rotation = Operation.new(work.ctxt, 'release', work.instance_uuid, {
        name: work.args[name] for name in ('image_id', 'backup_type', 'rotation')}, beside=True)

    def end(conn: Connection) -> None:
        uuid = work.instance_uuid
        if not instances.transition(conn, uuid, 'snapshot.done'):
            raise instances.refuse(conn, uuid, 'snapshot.done')
        operations.insert(conn, [rotation])
        instances.finish_action(conn, uuid, work.request_id)
    work.end(end)
    work.env.notify.emit(work.ctxt, 'instance.snapshot.end', instance=row, moved='snapshot.done', host=row.host,
                         snapshot_image_id=work.args['image_id'])
    work.env.runner.wake(work.db, [rotation.uuid])


class Backup(OneStep):
    """A failure leaves the server and its older backups as they were."""

    name, failed, action_event = 'backup', 'snapshot.failed', 'compute_backup_instance'
    steps = (
        Step('backup_instance', backup_instance, undo_backup_instance),
        Step('mark_backed_up', mark_backed_up),
    )
