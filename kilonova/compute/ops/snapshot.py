"""Make an image of a server: say so · copy · send · save the end. Each save is the key check of what follows.

The image exists already and waits for its data. Whatever fails is undone here (the guest goes on, the copy goes); the
image itself is the flow's. A silent image service is no failure: the copy is kept for the next try.
"""
from __future__ import annotations

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.endpoint import order
from kilonova.compute.operation import Check, Operation, Reply
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.snapshot_instance, checks=Check.WRITE)
def snapshot(op: Operation, image_id: str) -> Reply:
    """The root disk of the server becomes the data of image ``image_id``; the server's end state is saved here."""
    op.begin('compute_snapshot_instance')
    return _image(op, image_id, 'snapshot.copying', end=True)


@order(Compute.backup_instance, checks=Check.WRITE)
def backup(op: Operation, image_id: str) -> Reply:
    """The same; the end state is the flow's, as the older backups that are too many are."""
    op.begin('compute_backup_instance')
    return _image(op, image_id, 'backup.copying', end=False)


def _image(op: Operation, image_id: str, copying: str, end: bool) -> Reply:
    host, instance = op.host, op.instance
    here = {'host': host.name}
    with host.snapshot_slots.hold(op.check), op.turn(), host.tracker.at_work(instance.uuid, 'snapshot'):
        op.notify('instance.snapshot.start', snapshot_image_id=image_id)
        op.save(transition=copying, expect=here)
        send(op, image_id, 'snapshot.uploading')
        if end:
            op.save(transition='snapshot.done', expect=here, end=True, event=op.event())
            op.notify('instance.snapshot.end', moved='snapshot.done', snapshot_image_id=image_id)
        else:
            op.save(expect=here, event=op.event())
    return {'image_id': image_id}


def send(op: Operation, image_id: str, uploading: str) -> None:
    """Copy the root disk and send it; ``uploading``: the event by which the server moves between the two."""
    instance = op.instance
    LOG.info('Beginning snapshot process', instance_uuid=instance.uuid)
    try:
        op.host.driver.snapshots.snapshot(instance, image_id, op.check, lambda: op.save(
            transition=uploading, expect={'host': op.host.name}))
    except errors.Unanswered:
        raise
    except Exception:
        _forget(op, image_id)
        raise
    LOG.info('Snapshot image upload complete', instance_uuid=instance.uuid)


def _forget(op: Operation, image_id: str) -> None:
    """The flow's undo does it again: what fails here isn't lost."""
    try:
        op.host.driver.snapshots.forget_snapshot(op.instance, image_id)
    except Exception:
        LOG.exception('What is left of snapshot %s could not be removed', image_id, instance_uuid=op.instance.uuid)


@order(Compute.undo_snapshot_instance, checks=Check.UNDO, forward=True)
def undo_snapshot(op: Operation, image_id: str) -> Reply:
    """The flow's undo: safe when nothing was begun."""
    with op.turn():
        op.host.driver.snapshots.forget_snapshot(op.instance, image_id)
    return {}
