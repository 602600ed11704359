"""``HostLiveness``, which decides whether a host that doesn't report is down.

Each conductor process has one object:

    liveness = HostLiveness(service_down_time=60)
    liveness.look(db)                     # periodically: read the reports of a cell's hosts
    liveness.silence                      # True if no host of a cell reports: check the message queue
    liveness.cut_off()                    # after the check of the message queue has failed
    liveness.is_down(db, 'gpu1')          # True if the host is down; runs one SQL statement
    liveness.was_down(db, 'gpu1')         # the result of the last check, without an SQL statement
    liveness.unsure(db, asked)            # hosts that count as down and may report again at any moment

Hosts report through the message queue and a conductor. After an outage of the queue, of the conductors or of the
database, the reports of all hosts stop at the same time, and start again one after the other. Therefore a host counts
as down only in one of these cases:

- An operator has forced the host's service down.
- The host had stopped reporting before the other hosts stopped.
- Other hosts have reported for a whole service_down_time, in which this host could have reported, too.
- No host at all has reported for twice service_down_time. During this time the conductor was never cut off from the
  message queue or the database, and was never stopped. (While no host reports, the conductor sends messages to itself
  through the queue.)

Times are those of this process's monotonic clock. The database returns ages, not times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kilonova.db import engine
from kilonova.db.engine import Database
from kilonova.db.queries import services


@dataclass
class _Cell:
    """State of the reports of the hosts of one cell.

    Attributes:
        since: Time since which reports of hosts have arrived without a gap; None while no reports arrive.
        before: Time of the newest report before the last gap.
        looked: Time of the last check, which reads the ages of the reports.
        deaf: End of the last period without checks. There are no checks while the database does not answer, and while
            this process is stopped or not yet started.
        doubtful: Whether the last check found hosts that didn't report, but that do not count as down yet.
        cleared: Time when ``doubtful`` became False.

    Times are by the monotonic clock.
    """

    since: float | None
    before: float
    looked: float
    deaf: float = float('-inf')
    doubtful: bool = False
    cleared: float = float('-inf')


class HostLiveness:
    """Decides which hosts are down, from the ages of their reports.

    There is one object for each conductor process. ``service_down_time`` is the option of this name, in seconds.
    """

    def __init__(self, service_down_time: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._down_time, self._clock = service_down_time, clock
        # If no host of a cell reports for this number of seconds, there is a gap. Hosts that are up report more often.
        self._gap = service_down_time / 2
        # Seconds between two checks. The shortest gap is three times as long, so that no gap in the reports is missed.
        self.period = service_down_time / 6
        self._cells: dict[str, _Cell] = {}
        self._down: dict[str, set[str]] = {}
        self._cut_off = float('-inf')
        self._lock = threading.Lock()

    def cut_off(self) -> None:
        """Record that this conductor could not use the message queue until now.

        If a host did not report in that time, this does not count as a sign that the host is down.
        """
        self._cut_off = self._clock()

    @property
    def silence(self) -> bool:
        """Whether there is a cell in which no host had reported recently at the last check.

        This may mean that the hosts are up but can't report, because messaging is interrupted.
        """
        with self._lock:
            return any(cell.since is None for cell in self._cells.values())

    def look(self, db: Database) -> None:
        """Read whether the hosts of a cell report, and note which ones are down.

        Runs two SQL statements.
        """
        with db.read() as conn:
            newest = services.newest_report(conn)
            quiet = services.quiet_hosts(conn, self._down_time)
        if newest is not None:
            self._note(db.url, newest)
        waited_for = {heard.host for heard in self._waited_for(db.url, quiet)}
        with self._lock:
            self._down[db.url] = {heard.host for heard in quiet} - waited_for

    def is_down(self, db: Database, host: str) -> bool:
        """Return whether a host is down. Conductors do not call a host that is down.

        A host is down if its service is forced down or deleted, or if the host didn't report although it could have
        reported. Runs one SQL statement.
        """
        with db.read() as conn:
            heard = services.report_of(conn, host)
        if heard is None or heard.forced_down:
            return self._noted(db, host, True)
        cell = self._note(db.url, heard.newest)
        down = heard.age > self._down_time and self._given_up(cell, heard.age, heard.newest)
        return self._noted(db, host, down)

    def is_fenced(self, db: Database, host: str) -> bool:
        """Return whether an operator has declared that no guest runs on the host.

        Operators declare this by forcing down or deleting the host's compute service. Raises Unanswered if the database
        does not answer.
        """
        with engine.silence(), db.read() as conn:
            heard = services.report_of(conn, host)
        return heard is None or heard.forced_down

    def was_down(self, db: Database, host: str) -> bool:
        """Return whether the host was down when it was last checked. Runs no SQL statement."""
        with self._lock:
            return host in self._down.get(db.url, ())

    def known_down(self, db: Database, host: str) -> bool:
        """Return whether a host is down, with few SQL statements. Call this before a message is sent to the host.

        Runs an SQL statement only if the last check found the host down.
        """
        return self.was_down(db, host) and self.is_down(db, host)

    def _noted(self, db: Database, host: str, down: bool) -> bool:
        with self._lock:
            known = self._down.setdefault(db.url, set())
            (known.add if down else known.discard)(host)
        return down

    def now(self) -> float:
        """Return the time of the monotonic clock. Read it before a call to the scheduler, and pass it to ``unsure``."""
        return self._clock()

    def unsure(self, db: Database, asked: float = float('inf')) -> list[str]:
        """Return the hosts that count as down for the scheduler, but may report again at any moment.

        If the result is not empty, the scheduler should be called again later, because one of these hosts may fit.
        ``asked`` is the time, by ``now``, of the call to the scheduler. Hosts that have begun to report again since
        then may be missing in the scheduler's reply. If there were such hosts and none is left, the result has
        one text instead of host names, so that it is not empty.
        """
        with db.read() as conn:
            quiet = services.quiet_hosts(conn, self._down_time)
        reporting = [heard for heard in quiet if not heard.forced_down]
        if reporting:
            self._note(db.url, reporting[0].newest)
        unsure = [heard.host for heard in self._waited_for(db.url, quiet) if not heard.disabled]
        with self._lock:
            cell = self._cells.get(db.url)
            if not unsure and cell is not None and cell.cleared >= asked:
                return ['hosts that report again now']
        return unsure

    def _waited_for(self, key: str, quiet: list[services.Heard]) -> list[services.Heard]:
        """Return the hosts of a cell that have not reported recently and that do not count as down.

        ``quiet`` are all hosts of the cell without a recent report. ``key`` is the URL of the cell's database.
        """
        cell = self._cells.get(key)
        if cell is None:
            return []
        found = [
            heard for heard in quiet if not heard.forced_down and not self._given_up(cell, heard.age, heard.newest)
        ]
        # Disabled hosts are left out, because the scheduler gives them no servers, whether they report or not.
        unsure = any(not heard.disabled for heard in found)
        with self._lock:
            if cell.doubtful and not unsure:
                cell.cleared = self._clock()
            cell.doubtful = unsure
        return found

    def _note(self, key: str, newest_age: float) -> _Cell:
        now = self._clock()
        newest = now - newest_age
        with self._lock:
            cell = self._cells.get(key)
            unheard = cell is not None and now - cell.looked > self._gap
            if cell is None:
                # At the first check of a cell, the time before the check never counts as an outage.
                # If no host has reported recently, ``deaf=now`` gives hosts time to report before they count as down.
                # After a power failure, for example, hosts and this process may start at the same time.
                cell = self._cells[key] = (
                    _Cell(now, newest, now) if newest_age <= self._gap else _Cell(None, newest, now, deaf=now)
                )
            elif newest_age > self._gap:
                if cell.since is not None:
                    cell.since, cell.before = None, newest
            elif cell.since is None:
                cell.since = now
            elif unheard:
                # This process made no checks for a while, and hosts may have been unable to report in that time.
                # The time without checks counts as a gap in the reports, which began at the last check and ends now.
                cell.since, cell.before = now, cell.looked
            if unheard:
                cell.deaf = now
            cell.looked = now
            return cell

    def _given_up(self, cell: _Cell, age: float, newest_age: float) -> bool:
        now = self._clock()
        if now - age < cell.before - self._down_time:
            return True
        if cell.since is not None:
            return now - cell.since > self._down_time
        return newest_age > 2 * self._down_time and now - max(self._cut_off, cell.deaf) > 2 * self._down_time
