"""The class ``Leases`` manages the leases of this conductor process.

A lease is a row in a database. The lease permits the process to own operation rows in the same database. The process
has one lease in each database.

    leases = Leases('ctl1', 30, lost=lambda owner: None)
    leases.renew(db)                    # takes a lease, and renews it at later calls
    owner = leases.owner_in(db)
    leases.check(db, owner)             # called before each step; raises LeaseLost if the lease is not valid

An expired lease is never renewed. Instead, the process takes a new lease with a new owner id, and stops the operations
that it owned under the old id (operations.md, rule 6).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from oslo_log import log as logging
from oslo_utils import uuidutils

from kilonova.db.engine import Database
from kilonova.db.queries import operation_leases
from kilonova.errors import LeaseLost

LOG = logging.getLogger(__name__)


@dataclass
class ConductorLease:
    """The lease of this process in one database.

    Attributes:
        db: The database.
        owner: Id under which this process owns operation rows in the database. A new id is made when the lease has
            expired.
        renewed: Time by the monotonic clock when the last successful renewal was sent; None while there is no lease.
        lock: Lock that is held during a renewal.
    """

    db: Database
    owner: str
    renewed: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Leases:
    """The leases of this process in all databases.

    ``host`` is the text in each lease that describes this process (``process.describe``). A lease is valid for
    ``seconds`` seconds after its last renewal. ``lost(owner)`` is called when the lease of ``owner`` has expired.
    """

    def __init__(self, host: str, seconds: float, lost: Callable[[str], None]) -> None:
        self.host, self._seconds, self._lost = host, seconds, lost
        self._leases: dict[str, ConductorLease] = {}
        self._lock = threading.Lock()

    def owner_in(self, db: Database) -> str:
        """Return the owner id under which this process owns operation rows in a database now."""
        return self._of(db).owner

    def check(self, db: Database, owner: str) -> None:
        """Raise LeaseLost if the lease of ``owner`` (an id of this process) has expired or can't be renewed.

        The lease is renewed only if two thirds of its duration have passed since the last renewal (operations.md, rule
        6).
        """
        lease = self._of(db)
        if lease.owner == owner and (lease.renewed is None or time.monotonic() - lease.renewed > self._seconds * 2 / 3):
            try:
                self._renew(lease)
            except Exception as error:
                raise LeaseLost(f'The lease of owner {owner} could not be renewed: {error}') from error
        if lease.owner != owner:
            raise LeaseLost(f'The lease of owner {owner} has expired.')

    def renew(self, db: Database) -> None:
        """Renew the lease of this process in a database, or take a new lease if there is none or it has expired.

        Never raises, because the next call tries again soon.
        """
        try:
            self._renew(self._of(db))
        except Exception as error:  # noqa: BLE001 - an error must not end the thread that renews the leases
            LOG.warning('Could not renew the lease in database %s; this is tried again: %s', db.name, error)

    def drop(self) -> None:
        """Give up all operation rows of this process and delete its leases, because the process ends.

        Other conductors can then take the rows at once.
        """
        for lease in list(self._leases.values()):
            try:
                operation_leases.drop_lease(lease.db, lease.owner)
            except Exception as error:  # noqa: BLE001 - the leases in the other databases are still to be deleted
                LOG.warning(
                    'Could not delete the lease in database %s, where it stays valid until it expires: %s',
                    lease.db.name,
                    error,
                )

    def _of(self, db: Database) -> ConductorLease:
        with self._lock:
            return self._leases.setdefault(db.url, ConductorLease(db, uuidutils.generate_uuid()))

    def _renew(self, lease: ConductorLease) -> None:
        """Renew the lease. Take a lease if there is none. If the lease has expired, take one with a new owner id."""
        with lease.lock:
            before = time.monotonic()
            if lease.renewed is not None:
                if operation_leases.renew_lease(lease.db, lease.owner, self._seconds):
                    lease.renewed = before
                    return
                LOG.warning(
                    'The lease of this process in database %s expired; other conductors take over its operations, and '
                    'this process continues with a new lease',
                    lease.db.name,
                )
                lost, lease.owner, lease.renewed = lease.owner, uuidutils.generate_uuid(), None
                self._lost(lost)
            before = time.monotonic()
            operation_leases.begin_lease(lease.db, lease.owner, self.host, self._seconds)
            lease.renewed = before
