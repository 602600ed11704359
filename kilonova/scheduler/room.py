"""What providers have left: Placement's answer, less what this select and its neighbours take meanwhile.

    neighbours = Neighbours()                              # one a process
    since = neighbours.now()                               # before Placement is asked
    room = Room(found['provider_summaries'], neighbours, since)
    room.fits(request); room.take(request)

Threads of one scheduler that choose at the same time all see the same free devices. So each tells the others what it
claims: what was claimed since Placement answered doesn't fit any more, and what is being claimed is waited for. Without
that fifty selects for eight devices sent 168 claims that could only fail; several schedulers still meet in Placement.
"""
from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kilonova.scheduler.query import Group

# An allocation request: {'allocations': {provider: {'resources': {class: amount}}}, 'mappings': {group: [provider]}}.
Request = dict[str, Any]
# After this many seconds no select can be under way that asked Placement before a claim ended.
FORGET_AFTER = 120.0
# How long a claim waits for another one that may take the same away; then Placement decides.
WAIT = 10.0


@dataclass(eq=False)
class _Claim:
    uses: Counter
    ended: float | None = None


class Neighbours:
    """The claims of all selects of this process."""

    def __init__(self) -> None:
        self._claims: list[_Claim] = []
        self._ended = threading.Condition()

    @staticmethod
    def now() -> float:
        return time.monotonic()

    @contextmanager
    def claiming(self, request: Request, room: Room) -> Iterator[_Claim | None]:
        """Around the claim of a request; None: what ran at the same time left no room for it.

        A claim that raises is forgotten, else it counts as made: see ``failed``.
        """
        claim = self._begin(request, room)
        if claim is None:
            yield None
            return
        try:
            yield claim
        except BaseException:
            self.failed(claim)
            raise
        with self._ended:
            claim.ended = self.now()
            oldest = claim.ended - FORGET_AFTER
            self._claims = [one for one in self._claims if one.ended is None or one.ended > oldest or one is claim]
            self._ended.notify_all()

    def failed(self, claim: _Claim) -> None:
        """The claim was refused."""
        with self._ended:
            self._claims = [one for one in self._claims if one is not claim]
            self._ended.notify_all()

    def since(self, asked: float) -> tuple[Counter, Counter]:
        """What was claimed after ``asked``, and what is being claimed now: {(provider, class): amount}."""
        with self._ended:
            return self._since(asked)

    def _begin(self, request: Request, room: Room) -> _Claim | None:
        until = self.now() + WAIT
        with self._ended:
            while True:
                made, under_way = self._since(room.asked)
                if not room.has(request, made):
                    return None
                left = until - self.now()
                if room.has(request, made + under_way) or left <= 0:
                    break
                self._ended.wait(left)
            claim = _Claim(uses(request))
            self._claims.append(claim)
            return claim

    def _since(self, asked: float) -> tuple[Counter, Counter]:
        made: Counter = Counter()
        under_way: Counter = Counter()
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
        self._summaries, self._trees = summaries, dict[str, list[str]]()
        self._neighbours, self.asked = neighbours, asked
        self._taken: Counter = Counter()

    def fits(self, request: Request) -> bool:
        """Whether nothing in it is known to be gone."""
        made, _ = self._others()
        return self.has(request, made)

    def contested(self, request: Request) -> bool:
        """Whether somebody else is just claiming what would then be gone."""
        made, under_way = self._others()
        return not self.has(request, made + under_way)

    def take(self, request: Request) -> None:
        """This select gave it away itself."""
        self._taken.update(uses(request))

    def times(self, provider: str, resources: dict[str, int], base: Request, most: int) -> int:
        """How often, up to ``most``, the provider can give these beside what ``base`` takes of it."""
        taken = uses(base)
        return min(most, *((self._free.get((provider, name), most * amount) - taken[provider, name]) // amount
                           for name, amount in resources.items()))

    def trees(self) -> dict[str, list[str]]:
        """{root: the providers of its tree}."""
        if not self._trees:
            for rp, summary in self._summaries.items():
                self._trees.setdefault(summary['root_provider_uuid'], []).append(rp)
        return self._trees

    def providers(self, group: Group, beside: str) -> list[str]:
        """Those of the tree that ``beside`` is in that may serve a group of resources and traits."""
        return [rp for rp in self.trees()[self._summaries[beside]['root_provider_uuid']]
                if all(self._free.get((rp, name), 0) >= amount for name, amount in group.resources.items())
                and group.required.issubset(self._summaries[rp]['traits'])
                and group.forbidden.isdisjoint(self._summaries[rp]['traits'])]

    def _others(self) -> tuple[Counter, Counter]:
        if self._neighbours is None:
            return Counter(), Counter()
        return self._neighbours.since(self.asked)

    def has(self, request: Request, others: Counter) -> bool:
        """Whether it still fits when others take these; what this select took itself is among what others made."""
        return all(key not in self._free or self._free[key] - max(self._taken[key], others[key]) >= amount
                   for key, amount in uses(request).items())


def uses(request: Request) -> Counter:
    """{(provider, class): amount} of an allocation request."""
    return Counter({(rp, name): amount for rp, given in request['allocations'].items()
                    for name, amount in given['resources'].items()})
