"""What providers have left: Placement's answer, less what this select and its neighbours take meanwhile.

    neighbours = Neighbours()                              # one a process
    since = neighbours.now()                               # before Placement is asked
    room = Room(found['provider_summaries'], neighbours, since)
    room.fits(request); room.take(request)

Threads of one scheduler that choose at the same time all see the same free devices. So each tells the others what it
claims: what was claimed since Placement answered doesn't fit any more, what is being claimed is tried last.
"""
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# An allocation request: {'allocations': {provider: {'resources': {class: amount}}}, 'mappings': {group: [provider]}}.
Request = dict[str, Any]
# After this many seconds no select can be under way that asked Placement before a claim ended.
FORGET_AFTER = 120.0


@dataclass(eq=False)
class _Claim:
    uses: Counter
    ended: float | None = None


class Neighbours:
    """The claims of all selects of this process."""

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._lock = threading.Lock()

    @staticmethod
    def now() -> float:
        return time.monotonic()

    @contextmanager
    def claiming(self, request: Request) -> Iterator[_Claim]:
        """Around the claim of a request. One that raises is forgotten, else it counts as made: see ``failed``."""
        claim = _Claim(uses(request))
        with self._lock:
            self._claims.append(claim)
        try:
            yield claim
        except BaseException:
            self.failed(claim)
            raise
        with self._lock:
            claim.ended = self.now()
            oldest = claim.ended - FORGET_AFTER
            self._claims = [one for one in self._claims if one.ended is None or one.ended > oldest]

    def failed(self, claim: _Claim) -> None:
        """The claim was refused."""
        with self._lock:
            self._claims = [one for one in self._claims if one is not claim]

    def since(self, asked: float) -> tuple[Counter, Counter]:
        """What was claimed after ``asked``, and what is being claimed now: {(provider, class): amount}."""
        made: Counter = Counter()
        under_way: Counter = Counter()
        with self._lock:
            for claim in self._claims:
                if claim.ended is None:
                    under_way.update(claim.uses)
                elif claim.ended > asked:
                    made.update(claim.uses)
        return made, under_way


class Room:
    """One select's view."""

    def __init__(self, summaries: dict[str, Any], neighbours: Neighbours | None = None, asked: float = 0.0) -> None:
        """``summaries``: provider_summaries of GET /allocation_candidates."""
        self._free = {(rp, name): amounts['capacity'] - amounts['used'] for rp, summary in summaries.items()
                      for name, amounts in summary['resources'].items()}
        self._neighbours, self._asked = neighbours, asked
        self._taken: Counter = Counter()

    def fits(self, request: Request) -> bool:
        """Whether nothing in it is known to be gone."""
        made, _ = self._others()
        return self._has(uses(request), made)

    def contested(self, request: Request) -> bool:
        """Whether somebody else is just claiming what would then be gone."""
        made, under_way = self._others()
        return not self._has(uses(request), made + under_way)

    def take(self, request: Request) -> None:
        """This select gave it away itself."""
        self._taken.update(uses(request))

    def times(self, provider: str, resources: dict[str, int], base: Request, most: int) -> int:
        """How often, up to ``most``, the provider can give these beside what ``base`` takes of it."""
        taken = uses(base)
        return min(most, *((self._free.get((provider, name), most * amount) - taken[provider, name]) // amount
                           for name, amount in resources.items()))

    def _others(self) -> tuple[Counter, Counter]:
        if self._neighbours is None:
            return Counter(), Counter()
        made, under_way = self._neighbours.since(self._asked)
        # What this select took itself is among them.
        return made - self._taken, under_way

    def _has(self, wanted: Counter, others: Counter) -> bool:
        return all(key not in self._free or self._free[key] - self._taken[key] - others[key] >= amount
                   for key, amount in wanted.items())


def uses(request: Request) -> Counter:
    """{(provider, class): amount} of an allocation request."""
    return Counter({(rp, name): amount for rp, given in request['allocations'].items()
                    for name, amount in given['resources'].items()})
