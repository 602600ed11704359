"""Install a fault: a select that nobody waits for removes the allocation that the next select returned.

The select removes an allocation that it wrote even if somebody wrote it since, and also when it ends without an answer
from Placement. The simulator should report an active server without an allocation.
"""

from __future__ import annotations

import contextlib

from kilonova import errors
from kilonova.clients.placement import Allocations
from kilonova.scheduler.placement.claims import Claims
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def leave(self: Claims) -> None:
        self.give_back()

    replace(Claims, '_drop', _drop)
    replace(Claims, 'leave', leave)


def _drop(self: Claims, uuid: str, allocations: Allocations) -> None:
    held = self._placement.get_allocations(uuid)
    if held['allocations']:
        with contextlib.suppress(errors.PlacementConflict):
            self._placement.claim(uuid, {}, **self._owner, generation=held['consumer_generation'])
