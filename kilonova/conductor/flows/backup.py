"""Flow of a backup: backup_instance, mark_backed_up.

The flow creates an image of the server. Its last transaction adds a second operation, which deletes the oldest backups
of the same backup type. If a deletion fails, only the second operation is retried, because the backup has already
succeeded.
"""

from __future__ import annotations

from kilonova.conductor.ending import Ending
from kilonova.conductor.flows import releases
from kilonova.conductor.flows.one_step import OneStep
from kilonova.conductor.row import Outputs
from kilonova.conductor.work import Step, Work
from kilonova.db.arguments.releases import BackupsRelease
from kilonova.db.arguments.servers import BackupArguments
from kilonova.db.queries.operations import OperationRow
from kilonova.rpc.compute import Compute


def backup_instance(work: Work[Outputs]) -> None:
    """Ask the server's host to copy the root disk and to upload the copy as an image."""
    work.call_host(
        work.instance_row()['host'],
        Compute.backup_instance,
        instance=work.instance(),
        image_id=work.arguments(BackupArguments).image_id,
    )
    work.changed()


def undo_backup_instance(work: Work[Outputs]) -> None:
    """Ask the host to resume the guest and to delete the copy of the root disk. Delete the image."""
    releases.undo_image(work, Compute.undo_snapshot_instance)


def mark_backed_up(work: Work[Outputs]) -> None:
    """Write the server's state after the backup, and add the operation that deletes old backups."""
    row, args = work.instance(), work.arguments(BackupArguments)
    rotation = OperationRow.new(
        work.ctxt,
        'release',
        work.instance_uuid,
        BackupsRelease(image_id=args.image_id, backup_type=args.backup_type, rotation=args.rotation),
        beside=True,
    )
    Ending(event='snapshot.done', required=True, operations=[rotation]).end(work)
    work.env.notify.emit(
        work.ctxt,
        'instance.snapshot.end',
        instance=row,
        moved='snapshot.done',
        host=row.host,
        snapshot_image_id=args.image_id,
    )
    work.env.runner.wake(work.db, [rotation.uuid])


class Backup(OneStep):
    """The operation that creates a backup of a server.

    A failure leaves the server and its older backups unchanged.
    """

    name, failed, action_event = 'backup', 'snapshot.failed', 'compute_backup_instance'
    steps = (
        Step('backup_instance', backup_instance, undo_backup_instance),
        Step('mark_backed_up', mark_backed_up),
    )
