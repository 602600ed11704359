"""Finding 1.2: an owner that stood still undoes what the new owner builds.

The next attempt is undone before that is written, nothing is compared before messages and undos, and hosts undo
whatever they are told to. The simulator
should see servers without an allocation, or guests that are destroyed.
"""
from __future__ import annotations

import dataclasses
from typing import Any

from kilonova.compute.upcalls import Upcalls
from kilonova.conductor.flow import Flow, Step
from kilonova.conductor.flows import boot
from kilonova.conductor.work import Work
from kilonova.db.queries import claims
from kilonova.errors import HostRejected


def install() -> None:
    """See the module."""
    Work.compare = Work.compare_now = lambda self: None  # type: ignore[method-assign]
    Work.check = lambda self: None  # type: ignore[method-assign]
    asked = Upcalls.check_key

    def check_key(self: Upcalls, ctxt: Any, key: str, host: str, undo: bool = False) -> Any:
        return None if undo else asked(self, ctxt, key, host)
    Upcalls.check_key = check_key  # type: ignore[method-assign]
    claims._check_attempt = lambda conn, key: None
    Flow.next_attempt = _next_attempt  # type: ignore[method-assign]
    boot.FLOW.__class__.steps = tuple(
        dataclasses.replace(step, undo=_drop) if step.name == 'claim' else step for step in boot.FLOW.steps)


def _drop(work: Work) -> None:
    work.env.placement.drop(work.instance_uuid, lambda: None)


def _next_attempt(self: Flow, work: Work, step: Step, error: HostRejected) -> bool:
    if step.again_from is None or not self.more_attempts(work):
        return False
    work.outputs['back_to'] = self.index(step.again_from)
    self._undo_attempt(work)
    return True
