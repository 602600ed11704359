"""``HostLiveness``, which decides whether a host that doesn't report is down.

Each conductor process has one object:

    liveness = HostLiveness(service_down_time=60)
    liveness.look(db)                     # periodically: read the reports of a cell's hosts
    liveness.silence                      # True if no host of some cell reports: the caller checks the message queue
    liveness.cut_off()                    # the caller found that this conductor can't use the message queue
    liveness.is_down(db, 'gpu1')          # True if the host is down; runs one SQL statement
    liveness.was_down(db, 'gpu1')         # the result of the last check, without an SQL statement
    liveness.unsure(db, asked)            # hosts whose reports are missing, perhaps because of an outage

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
    """A record of when the hosts of one cell reported. A gap is a time in which no host of the cell reported.

    Attributes:
        since: Time when reports began to arrive after the last gap; None during a gap.
        before: Time of the last report before the last gap.
        looked: Time of the last check. A check reads the ages of the hosts' reports from the database.
        deaf: Time when checks began again after this process could not check the hosts, because the database did not
            answer or the process did not run.
        doubtful: Whether the last check found hosts that didn't report recently, but that do not count as down yet.
        cleared: Time when ``doubtful`` became False.

    All times are by the monotonic clock of this process.
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
        # Seconds between two checks. A gap lasts at least three times as long, so a check happens during each gap.
        self.period = service_down_time / 6
        self._cells: dict[str, _Cell] = {}
        self._down: dict[str, set[str]] = {}
        self._cut_off = float('-inf')
        self._lock = threading.Lock()

    def cut_off(self) -> None:
        """Record that a check has just found that this conductor can't use the message queue.

        If no host reports, the hosts count as down only after the queue has worked for twice service_down_time.
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

        A host is down if its service is forced down or deleted, or if the host has not reported for service_down_time
        and no outage of the message queue, the conductors or the database explains this. Runs one SQL statement.
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

        Return False at once if the last periodic check (``look``) found the host up. Otherwise read the host's last
        report again, with one SQL statement.
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
        """Return the hosts that the scheduler left out since they did not report, but that may be up.

        If the result is not empty, the caller calls the scheduler again later, because one of these hosts may fit.
        ``asked`` is when the caller called the scheduler, by the clock of ``now()``. If there were such hosts then and
        none is left, for example since they report again, the result has one text instead of host names.
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
        """Return those of the hosts ``quiet`` that do not count as down yet.

        ``quiet`` are the hosts of a cell without a recent report. A host does not count as down while an outage may be
        the reason why its reports are missing. ``key`` is the URL of the cell's database.
        """
        cell = self._cells.get(key)
        if cell is None:
            return []
        found = [
            heard for heard in quiet if not heard.forced_down and not self._given_up(cell, heard.age, heard.newest)
        ]
        # The cell is doubtful only if one of the found hosts is enabled. The scheduler chooses no disabled hosts.
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
                # First check of a cell: if a host has reported recently, reports count as arriving since now.
                # If no host has reported recently, all hosts get time to report before they count as down (``deaf``).
                # After a power failure, for example, this process may start earlier than the hosts.
                cell = self._cells[key] = (
                    _Cell(now, newest, now) if newest_age <= self._gap else _Cell(None, newest, now, deaf=now)
                )
            elif newest_age > self._gap:
                if cell.since is not None:
                    cell.since, cell.before = None, newest
            elif cell.since is None:
                cell.since = now
            elif unheard:
                # This process made no checks for a while, and there may have been an outage in that time.
                # The time since the last check counts as a gap, after which all hosts have time to report.
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
