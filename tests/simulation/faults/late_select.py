"""Finding 1.4: a select that nobody waits for gives back what the next one handed out.

What was found at Placement counts as the select's own, and is dropped whoever wrote it since. The simulator should see
an active server without an allocation.
"""
from __future__ import annotations

import contextlib
from typing import Any

from kilonova import errors
from kilonova.scheduler.claims import Allocations, Claims


def install() -> None:
    """See the module."""
    Claims._take_up = lambda self, uuid, choice, generation: True  # type: ignore[method-assign]
    Claims._drop = _drop  # type: ignore[method-assign]
    Claims.leave = lambda self: self.give_back()  # type: ignore[method-assign]


def _drop(self: Any, uuid: str, allocations: Allocations) -> None:
    held = self._placement.get_allocations(uuid)
    if held['allocations']:
        with contextlib.suppress(errors.PlacementConflict):
            self._placement.claim(uuid, {}, **self._owner, generation=held['consumer_generation'])
