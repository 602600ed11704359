"""Install a fault: a conductor waits without end for a database that hangs, and neglects its other databases.

No statement has a time-out. One thread renews the leases of all databases one after the other, and one sweeps them. The
simulator should report a delete in a healthy cell that no sweep finds while cell0 hangs.
"""

from __future__ import annotations

import threading
import weakref

from kilonova.conductor.leases import Leases
from kilonova.conductor.sweep import Sweep
from kilonova.db.engine import Database
from tests.simulation import stores
from tests.simulation.faults import replace


def install() -> None:
    """See the module."""
    renewing: weakref.WeakKeyDictionary[Leases, threading.Lock] = weakref.WeakKeyDictionary()
    sweeping: weakref.WeakKeyDictionary[Sweep, threading.Lock] = weakref.WeakKeyDictionary()

    def renew(self: Leases, db: Database) -> None:
        with renewing.setdefault(self, threading.Lock()):
            renew_one(self, db)

    def of(self: Sweep, db: Database, age: float) -> int:
        with sweeping.setdefault(self, threading.Lock()):
            found: int = sweep(self, db, age)
        return found

    renew_one, sweep = replace(Leases, 'renew', renew), replace(Sweep, 'of', of)
    replace(stores, 'DATABASE_PATIENCE', 1e9)
