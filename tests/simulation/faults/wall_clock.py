"""Install a fault: the deadline of a select is a time of the caller's clock.

The simulator should report creates that never end if the clocks of conductor and scheduler differ by more than a
minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kilonova.conductor.environment import Environment
from kilonova.scheduler.placement.claims import Caller
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""

    def select_destinations(self: Environment, ctxt: Any, *, return_alternates: bool = True, **request: Any) -> Any:
        request['time_left'] += time.time()
        return select(self, ctxt, return_alternates=return_alternates, **request)

    def of(cls: type[Caller], time_left: float | None, waiting: Callable[[], set[str]] | None = None) -> Caller:
        return cls(None if time_left is None else time.monotonic() + time_left - time.time(), waiting)

    select = replace(Environment, 'select_destinations', select_destinations)
    replace(Caller, 'of', classmethod(of))
