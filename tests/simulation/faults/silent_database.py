"""Finding 1.6: a database that hangs is waited for without end, and holds up what looks after the others.

No statement has a time-out; leases of all databases are renewed, and their rows swept, one after the other. The
simulator should see a delete in a healthy cell that no sweep finds while cell0 hangs.
"""
from __future__ import annotations

import threading
import weakref
from typing import Any

from kilonova.conductor.runner import Runner
from tests.simulation import stores


def install() -> None:
    """See the module."""
    stores.DATABASE_PATIENCE = 1e9
    locks: weakref.WeakKeyDictionary[Runner, threading.Lock] = weakref.WeakKeyDictionary()
    begin, sweep = Runner._begin, Runner._sweep

    def alone(self: Runner, act: Any, *args: Any) -> Any:
        with locks.setdefault(self, threading.Lock()):
            return act(self, *args)
    Runner._begin = lambda self, db: alone(self, begin, db)  # type: ignore[method-assign]
    Runner._sweep = lambda self, db, age: alone(self, sweep, db, age)  # type: ignore[method-assign]
