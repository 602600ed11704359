"""Finding 1.8: rows that a conductor holds count in a batch of its sweep, so it never sees what is behind them.

The simulator should see a delete whose cast was lost, and that no sweep finds.
"""
from __future__ import annotations

from typing import Any

from kilonova.conductor import runner
from kilonova.conductor.runner import URGENT_KINDS, Runner
from kilonova.db.queries import operations

BATCH = 3


def install() -> None:
    """See the module."""
    runner.SWEEP_BATCH = BATCH
    Runner._find = _find  # type: ignore[method-assign]


def _find(self: Runner, db: Any, age: float) -> int:
    with db.read() as conn:
        rows = operations.free(conn, self.owner_in(db), BATCH, age)
    free = self._without_twins(db, [row for row in rows if row['uuid'] not in self._held])
    for row in free:
        self.wake(db, [row['uuid']], urgent=row['kind'] in URGENT_KINDS or row['failed'])
    return len(free)
