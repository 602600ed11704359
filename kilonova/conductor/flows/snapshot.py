"""Make an image of a server: one step on its host, which sends the data and writes the end state.

The API made the image (queued, without data). An operation that fails or is cancelled takes it away again.
"""
from __future__ import annotations

import logging

from kilonova.conductor.flows.power import OneStep
from kilonova.conductor.work import Step, Work
from kilonova.errors import Unanswered

LOG = logging.getLogger(__name__)


def snapshot_instance(work: Work) -> None:
    """The host copies the root disk and sends it. A silent image service is asked again, like any other."""
    work.ask(work.instance_row()['host'], 'snapshot_instance', instance=work.instance(),
             image_id=work.args['image_id'])
    work.ended_by_host()


def undo_snapshot_instance(work: Work) -> None:
    """The guest goes on, the host's copy goes, the image goes."""
    host = work.instance_row(fresh=True)['host']
    if host is not None:
        work.ask_to_undo(host, 'undo_snapshot_instance', instance=work.instance(), image_id=work.args['image_id'])
    try:
        work.env.drop_image(work.args['image_id'])
    except Unanswered as error:
        LOG.info('Image %s is deleted later: %s', work.args['image_id'], error)
        _drop_later(work)


def _drop_later(work: Work) -> None:
    """By a release row of its own: nobody waits for the image service to unwind a server, least of all a delete."""
    image_id = work.args['image_id']
    work.add_release({'image_id': image_id}, ('image_id',))


class Snapshot(OneStep):
    name, failed, action_event = 'snapshot', 'snapshot.failed', 'compute_snapshot_instance'
    steps = (Step('snapshot_instance', snapshot_instance, undo_snapshot_instance, saved=False),)


FLOW = Snapshot()
