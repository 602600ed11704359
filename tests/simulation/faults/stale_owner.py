"""Install a fault: an owner that froze and lost its lease undoes what the new owner builds.

The next attempt is undone before the row says so. The new owner then knows nothing of the undo, and hosts can't compare
it with the row. Before messages and undos only the lease is checked, and an expired lease is renewed. The simulator
should report a server that was resized and has the allocation of its old host.
"""

from __future__ import annotations

from typing import Any

from kilonova.conductor.flow import Flow
from kilonova.conductor.work import Step, Work
from kilonova.db import engine
from kilonova.db.queries import claims, operation_leases
from kilonova.errors import HostRejected
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def compare(self: Work[Any]) -> None:
        self.check()

    def _check_undo(conn: Any, key: str) -> None:
        pass

    replace(Flow, 'next_attempt', _next_attempt)
    replace(Work, 'compare', compare)
    replace(operation_leases, 'renew_lease', _renew_lease)
    replace(claims, '_check_undo', _check_undo)


def _next_attempt(self: Flow[Any], work: Work[Any], step: Step[Any], error: HostRejected) -> bool:
    if step.again_from is None or not self.more_attempts(work):
        return False
    work.outputs.back_to = self.index(step.again_from)
    self._undo_attempt(work)
    return True


def _renew_lease(db: Any, owner: str, seconds: float) -> bool:
    leases = operation_leases.leases
    with db.write() as conn:
        return bool(
            conn.execute(
                leases.update().where(leases.c.owner == owner).values(expires=engine.db_now() + seconds)
            ).rowcount
        )
