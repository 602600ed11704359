"""Make an image of a server: copy the root disk of the server and upload the copy to the image service.

Before the copy, before the upload and after the upload, the host saves its progress in the server's row, for example
the new task state. Each save checks that the operation still runs. The image record exists already, without data. If
the copy or the upload fails, this host lets the guest continue and deletes the copy, and the conductor changes the
image record. If the image service does not answer, the host keeps the copy for the next try.
"""

from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.endpoint import operation_method
from kilonova.compute.operation import HostTask, Reply, StepCheck
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@operation_method(Compute.snapshot_instance, checks=StepCheck.WRITE)
def snapshot(op: HostTask, image_id: str) -> Reply:
    """Upload the server's root disk as the data of image ``image_id``, and save the server's end state."""
    op.begin('compute_snapshot_instance')
    return _image(op, image_id, 'snapshot.copying', end=True)


@operation_method(Compute.backup_instance, checks=StepCheck.WRITE)
def backup(op: HostTask, image_id: str) -> Reply:
    """Upload the server's root disk as the data of image ``image_id``, for a backup.

    The conductor then writes the server's state and deletes the oldest backups if there are too many.
    """
    op.begin('compute_backup_instance')
    return _image(op, image_id, 'backup.copying', end=False)


def _image(op: HostTask, image_id: str, copying: str, end: bool) -> Reply:
    host, instance = op.host, op.instance
    here = {'host': host.name}
    with host.snapshot_slots.hold(op.check), op.exclusive(), host.tracker.at_work(instance.uuid, 'snapshot'):
        op.notify('instance.snapshot.start', snapshot_image_id=image_id)
        op.save(transition=copying, expect=here)
        send(op, image_id, 'snapshot.uploading')
        if end:
            op.save(transition='snapshot.done', expect=here, end=True, event=op.event())
            op.notify('instance.snapshot.end', moved='snapshot.done', snapshot_image_id=image_id)
        else:
            op.save(expect=here, event=op.event())
    return {'image_id': image_id}


def send(op: HostTask, image_id: str, uploading: str) -> None:
    """Copy the root disk and upload the copy to the image service.

    ``uploading`` is the name of the state transition to save after the copy and before the upload, for example
    'snapshot.uploading'.
    """
    instance = op.instance
    LOG.info('Beginning snapshot process', instance_uuid=instance.uuid)
    try:
        op.host.driver.snapshots.snapshot(
            instance, image_id, op.check, lambda: op.save(transition=uploading, expect={'host': op.host.name})
        )
    except errors.Unanswered:
        raise
    except Exception:
        _forget(op, image_id)
        raise
    LOG.info('Snapshot image upload complete', instance_uuid=instance.uuid)


def _forget(op: HostTask, image_id: str) -> None:
    """Delete the copied disk. An error is only logged, because the conductor's undo of this step deletes it again."""
    try:
        op.host.driver.snapshots.forget_snapshot(op.instance, image_id)
    except Exception:
        LOG.exception('Could not remove the files of snapshot %s', image_id, instance_uuid=op.instance.uuid)


@operation_method(Compute.undo_snapshot_instance, checks=StepCheck.UNDO, forward=True)
def undo_snapshot(op: HostTask, image_id: str) -> Reply:
    """Undo ``snapshot`` or ``backup``: delete the copied disk. It is safe to call it even if no disk was copied."""
    with op.exclusive():
        op.host.driver.snapshots.forget_snapshot(op.instance, image_id)
    return {}
