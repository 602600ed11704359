"""Finding 1.6: a database that hangs is waited for without end, and holds up what looks after the others.

No statement has a time-out; leases of all databases are renewed one after the other, and so are their rows swept. The
simulator should see a delete in a healthy cell that no sweep finds while cell0 hangs.
"""
from __future__ import annotations

import threading
import weakref
from typing import Any

from kilonova.conductor.runner import Runner
from tests.simulation import stores
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    renewing: weakref.WeakKeyDictionary[Runner, threading.Lock] = weakref.WeakKeyDictionary()
    sweeping: weakref.WeakKeyDictionary[Runner, threading.Lock] = weakref.WeakKeyDictionary()

    def _begin(self: Runner, db: Any) -> None:
        with renewing.setdefault(self, threading.Lock()):
            begin(self, db)

    def _sweep(self: Runner, db: Any, age: float) -> int:
        with sweeping.setdefault(self, threading.Lock()):
            found: int = sweep(self, db, age)
        return found
    begin, sweep = replace(Runner, '_begin', _begin), replace(Runner, '_sweep', _sweep)
    replace(stores, 'DATABASE_PATIENCE', 1e9)
