"""Finding 1.9: the time that is left for a select is a reading of the asker's clock, and waiting rows aren't swept.

The simulator should see creates that never end where two clocks differ by more than a minute, and deletes whose lost
cast isn't repeated.
"""
from __future__ import annotations

import time
from typing import Any

from kilonova.conductor.work import Environment
from kilonova.db.queries import operations
from kilonova.scheduler.claims import Asker


def install() -> None:
    """See the module."""
    select = Environment.select_destinations

    def select_destinations(self: Environment, ctxt: Any, **request: Any) -> Any:
        return select(self, ctxt, **{**request, 'time_left': time.time() + request['time_left']})

    def of(cls: type[Asker], time_left: float | None, waiting: Any = None) -> Asker:
        return cls(None if time_left is None else time.monotonic() + time_left - time.time(), waiting)
    Environment.select_destinations = select_destinations  # type: ignore[method-assign]
    Asker.of = classmethod(of)  # type: ignore[method-assign,assignment,arg-type]
    operations.stopped = lambda conn, owner, limit, age=-60.0: ([], [])
