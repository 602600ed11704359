"""The leases of this conductor process: one in each database says that its rows there are being worked on.

    leases = Leases('ctl1', 30, lost=lambda owner: None)
    leases.renew(db)                    # takes it, and renews it from then on
    owner = leases.owner_in(db)
    leases.check(db, owner)             # before each step: LeaseLost when this process may start none

A lease that ran out is never renewed: the process goes on as another owner, and drops what it held (operations.md
rule 6).
"""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from oslo_utils import uuidutils

from kilonova.db.engine import Database
from kilonova.db.queries import operation_leases
from kilonova.errors import LeaseLost

LOG = logging.getLogger(__name__)


@dataclass
class Lease:
    """This process in one database. ``owner`` changes when the lease ran out; ``renewed``: when the last renewal was
    sent, by the monotonic clock, None while there is no lease."""

    db: Database
    owner: str
    renewed: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Leases:
    """``host``: what a lease says of its process (``process.describe``). ``seconds``: how long one lasts.
    ``lost(owner)`` is called when one ran out."""

    def __init__(self, host: str, seconds: float, lost: Callable[[str], None]) -> None:
        self.host, self._seconds, self._lost = host, seconds, lost
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def owner_in(self, db: Database) -> str:
        """The owner that this process is in a database now."""
        return self._of(db).owner

    def check(self, db: Database, owner: str) -> None:
        """LeaseLost when ``owner`` is no owner of this process any more. A process that couldn't renew for two thirds
        of the lease starts no step (rule 6)."""
        lease = self._of(db)
        if lease.owner == owner and (lease.renewed is None
                                     or time.monotonic() - lease.renewed > self._seconds * 2 / 3):
            try:
                self._renew(lease)
            except Exception as error:
                raise LeaseLost(operation=f'of {owner}: {error}') from error
        if lease.owner != owner:
            raise LeaseLost(operation=f'of {owner}')

    def renew(self, db: Database) -> None:
        """Renew the lease, or take one. Never raises: the next renewal comes soon."""
        try:
            self._renew(self._of(db))
        except Exception as error:  # noqa: BLE001 - what one database comes to must not end the thread
            LOG.warning('lease in %s not renewed: %s', db.name, error)

    def drop(self) -> None:
        """Give all rows free: the process ends."""
        for lease in list(self._leases.values()):
            try:
                operation_leases.drop_lease(lease.db, lease.owner)
            except Exception as error:  # noqa: BLE001 - as above
                LOG.warning('lease in %s not given back: %s', lease.db.name, error)

    def _of(self, db: Database) -> Lease:
        with self._lock:
            return self._leases.setdefault(db.url, Lease(db, uuidutils.generate_uuid()))

    def _renew(self, lease: Lease) -> None:
        """Renew the lease; where it ran out this process is another owner from now on."""
        with lease.lock:
            before = time.monotonic()
            if lease.renewed is not None:
                if operation_leases.renew_lease(lease.db, lease.owner, self._seconds):
                    lease.renewed = before
                    return
                LOG.warning('The lease in %s ran out: its operations are dropped, this process is a new owner',
                            lease.db.name)
                lost, lease.owner, lease.renewed = lease.owner, uuidutils.generate_uuid(), None
                self._lost(lost)
            before = time.monotonic()
            operation_leases.begin_lease(lease.db, lease.owner, self.host, self._seconds)
            lease.renewed = before
