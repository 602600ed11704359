"""Whether a host that doesn't report is down, or no host could report.

    hearing = Hearing(service_down_time=60)
    hearing.look(db)                     # from time to time
    hearing.silence                      # True: is it the queue? If so: hearing.cut_off()
    hearing.is_down(db, 'gpu1')          # True: asking it makes no sense any more
    hearing.was_down(db, 'gpu1')         # the same by the last look, without a statement
    hearing.unsure(db, asked)            # hosts that count as down and may be back at any moment

Hosts report through the message queue and a conductor: when one of these (or the database) was away, all of them stop
at the same time, and come back one after the other. So a host counts as down only

- when it had fallen silent before the others did, or
- when others have been heard for a whole service_down_time, in which it could have reported, too, or
- when no host at all was heard for twice that time, in which this conductor itself was never cut off from the message
  queue (while no host is heard, it sends itself messages over the queue) or from the database, and has run all along,

and when an operator has forced it down. Times are this process's own; the database gives ages, not times.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kilonova.db.engine import Database
from kilonova.db.queries import services


@dataclass
class _Cell:
    """``since``: when reports of this cell began to come in without a gap, None while none come; ``before``: the
    newest report before the last gap; ``looked``: the last look; ``deaf``: the end of the last time without looks, as
    the database was away, this process stood still or wasn't there; ``doubtful``: whether hosts were in doubt at the
    last look; ``cleared``: when that ended."""

    since: float | None
    before: float
    looked: float
    deaf: float = float('-inf')
    doubtful: bool = False
    cleared: float = float('-inf')


class Hearing:
    """One a conductor process."""

    def __init__(self, service_down_time: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._down_time, self._clock = service_down_time, clock
        # Hosts report at least twice in service_down_time: a gap of half of it is more than a late report.
        self._gap = service_down_time / 2
        # Seconds between two looks: several within a gap, so that none is missed.
        self.period = service_down_time / 6
        self._cells: dict[str, _Cell] = {}
        self._down: dict[str, set[str]] = {}
        self._cut_off = float('-inf')
        self._lock = threading.Lock()

    def cut_off(self) -> None:
        """This conductor was cut off: that hosts weren't heard until now doesn't mean that they are down."""
        self._cut_off = self._clock()

    @property
    def silence(self) -> bool:
        """Whether no host of some cell was heard at the last look: it may be that none could be."""
        with self._lock:
            return any(cell.since is None for cell in self._cells.values())

    def look(self, db: Database) -> None:
        """Two statements: whether hosts of this cell are heard, and which ones are down."""
        with db.read() as conn:
            newest = services.newest_report(conn)
            quiet = services.quiet_hosts(conn, self._down_time)
        if newest is not None:
            self._note(db.url, newest)
        waited_for = {heard.host for heard in self._waited_for(db.url, quiet)}
        with self._lock:
            self._down[db.url] = {heard.host for heard in quiet} - waited_for

    def is_down(self, db: Database, host: str) -> bool:
        """Whether to give up asking a host: forced down, deleted, or silent while it could have reported."""
        with db.read() as conn:
            heard = services.report_of(conn, host)
        if heard is None or heard.forced_down:
            return self._noted(db, host, True)
        cell = self._note(db.url, heard.newest)
        down = heard.age > self._down_time and self._given_up(cell, heard.age, heard.newest)
        return self._noted(db, host, down)

    def is_fenced(self, db: Database, host: str) -> bool:
        """Whether an operator said that nothing runs there: the service is forced down, or deleted."""
        with db.read() as conn:
            heard = services.report_of(conn, host)
        return heard is None or heard.forced_down

    def was_down(self, db: Database, host: str) -> bool:
        """Whether a host was down at the last check: ``look``, or ``is_down`` of this host."""
        with self._lock:
            return host in self._down.get(db.url, ())

    def known_down(self, db: Database, host: str) -> bool:
        """Whether a host is down, asked before it is sent anything. Costs a statement only where the last look found it
        down."""
        return self.was_down(db, host) and self.is_down(db, host)

    def _noted(self, db: Database, host: str, down: bool) -> bool:
        with self._lock:
            known = self._down.setdefault(db.url, set())
            (known.add if down else known.discard)(host)
        return down

    def now(self) -> float:
        """This process's clock, for ``unsure``."""
        return self._clock()

    def unsure(self, db: Database, asked: float = float('inf')) -> list[str]:
        """Hosts that get no servers as they count as down, but aren't given up: they may be back at any moment.

        ``asked``: when the scheduler was asked. Where the doubt ended since then, whoever was in doubt may have counted
        as down in its answer: what stands for them is given back once more.
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
                return ['hosts that are heard again']
        return unsure

    def _waited_for(self, key: str, quiet: list[services.Heard]) -> list[services.Heard]:
        """Those of the quiet hosts of a cell that aren't given up."""
        cell = self._cells.get(key)
        if cell is None:
            return []
        found = [heard for heard in quiet
                 if not heard.forced_down and not self._given_up(cell, heard.age, heard.newest)]
        # Disabled hosts get no servers, whether they are heard or not.
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
                # Who was here before us may have been away, and hosts may be starting with us (a power cut).
                cell = self._cells[key] = _Cell(now, newest, now) if newest_age <= self._gap \
                    else _Cell(None, newest, now, deaf=now)
            elif newest_age > self._gap:
                if cell.since is not None:
                    cell.since, cell.before = None, newest
            elif cell.since is None:
                cell.since = now
            elif unheard:
                # Nobody looked: there may have been a gap.
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
