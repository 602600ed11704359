"""Who reaches whom: what is cut, hangs or refuses, asked by the broker, the databases and Placement.

    links.cut('conductor1', 'broker')
    links.mend('conductor1', 'broker')
    links.state('conductor1', 'api')            # 'open', 'cut', 'hang' or 'refuse'

Parties are processes by name, 'broker', 'placement', and the databases 'api', 'cell0', 'cell1'.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.timeline import Timeline, Waiter

OPEN, CUT, HANG, REFUSE = 'open', 'cut', 'hang', 'refuse'


class Links:
    """All are open at first."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._cut: dict[tuple[str, str], int] = {}
        self._parties: dict[str, list[str]] = {}
        self._waiting: list[Waiter] = []
        self.changed: list[Callable[[], None]] = []

    def state(self, process: str, party: str) -> str:
        """How ``process`` finds ``party`` now."""
        states = self._parties.get(party)
        if states:
            return states[-1]
        return CUT if self._cut.get((process, party)) else OPEN

    def cut(self, process: str, party: str) -> None:
        """Nothing goes from one to the other; neither is told."""
        self._cut[process, party] = self._cut.get((process, party), 0) + 1

    def mend(self, process: str, party: str) -> None:
        """One cut less."""
        self._cut[process, party] = max(0, self._cut.get((process, party), 0) - 1)
        self._tell()

    def disturb(self, party: str, state: str) -> None:
        """Hang or refuse for everybody."""
        self._parties.setdefault(party, []).append(state)
        self._tell()

    def calm(self, party: str, state: str) -> None:
        """One disturbance less."""
        self._parties[party].remove(state)
        self._tell()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set()
        for act in self.changed:
            act()

    def reach(self, process: str, party: str, patience: float) -> str:
        """Wait for ``party`` while it is cut off or hangs, ``patience`` seconds at most; its state then."""
        end = self._timeline.now + patience
        while (state := self.state(process, party)) in (CUT, HANG):
            waiter = Waiter(self._timeline)
            self._waiting.append(waiter)
            if self._timeline.now >= end or not waiter.wait(end - self._timeline.now):
                return state
        return state
