"""Make an image of a server: say so · copy · send · save the end. Each save is the key check of what follows.

The image exists already and waits for its data. Whatever fails is undone here (the guest goes on, the copy goes); the
image itself is the flow's. A silent image service is no failure: the copy is kept for the next try.
"""
from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute import claims
from kilonova.compute.dispatch import Check, order
from kilonova.compute.host import Host
from kilonova.compute.keys import Work
from kilonova.rpc.compute import Compute

LOG = logging.getLogger(__name__)


@order(Compute.snapshot_instance, checks=Check.WRITE)
def run(host: Host, work: Work, ctxt: Any, instance: objects.Instance, image_id: str) -> dict[str, Any]:
    """The root disk of ``instance`` becomes the data of image ``image_id``; the server's end state is saved here."""
    event, uuid = host.event('compute_snapshot_instance'), instance.uuid

    def say(transition: str, **fields: Any) -> None:
        claims.tell(host, work, ctxt, uuid, transition=transition, expect={'host': host.name}, **fields)

    with host.snapshot_slots.hold(work), host.turn(work, uuid), host.tracker.at_work(uuid, 'snapshot'):
        host.notify.emit(ctxt, 'instance.snapshot.start', instance=instance, snapshot_image_id=image_id)
        say('snapshot.copying')
        LOG.info('Beginning snapshot process', instance_uuid=uuid)
        try:
            host.driver.snapshot(ctxt, instance, image_id, work.check, lambda: say('snapshot.uploading'))
        except errors.Unanswered:
            raise
        except Exception:
            _forget(host, instance, image_id)
            raise
        say('snapshot.done', end=True, event=event.success())
        host.notify.emit(ctxt, 'instance.snapshot.end', instance=instance, moved='snapshot.done',
                         snapshot_image_id=image_id)
        LOG.info('Snapshot image upload complete', instance_uuid=uuid)
    return {'image_id': image_id}


def _forget(host: Host, instance: objects.Instance, image_id: str) -> None:
    """The flow's undo does it again: what fails here isn't lost."""
    try:
        host.driver.forget_snapshot(instance, image_id)
    except Exception:
        LOG.exception('What is left of snapshot %s could not be removed', image_id, instance_uuid=instance.uuid)


@order(Compute.undo_snapshot_instance, checks=Check.UNDO, forward=True)
def undo(host: Host, work: Work, ctxt: Any, instance: objects.Instance, image_id: str) -> dict[str, Any]:
    """The flow's undo: safe when nothing was begun."""
    with host.turn(work, instance.uuid):
        host.driver.forget_snapshot(instance, image_id)
    return {}
