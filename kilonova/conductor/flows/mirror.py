"""Bring Placement up to date about a host and an aggregate, where the API's own try didn't. Only forward."""
from __future__ import annotations

from kilonova.clients import aggregates
from kilonova.conductor.environment import silence
from kilonova.conductor.flow import Flow
from kilonova.conductor.work import Step, Work


def mirror(work: Work) -> None:
    """What the API database says of the two counts, whatever was changed when the row was written."""
    with silence():
        aggregates.bring_up_to_date(work.env.placement, work.env.api, work.env.cells, work.args['aggregate'],
                                    work.args['host'])


class Mirror(Flow):
    name = aggregates.KIND
    forward_only = True
    steps = (Step('mirror', mirror, saved=False),)


FLOW = Mirror()
