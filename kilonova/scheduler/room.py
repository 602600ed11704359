"""What providers have left: Placement's answer, less what was claimed since.

    asked = time.monotonic()                               # before Placement is asked
    room = Room(found['provider_summaries'], table.reservations, asked)
    room.fits(request)

Callers hold the table's lock.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

from kilonova.scheduler.query import Group
from kilonova.scheduler.reservations import Request, Reservations, Uses, uses


class Room:
    """One select's view."""

    def __init__(self, summaries: dict[str, Any], reservations: Reservations | None = None, asked: float = 0.0) -> None:
        """``summaries``: provider_summaries of GET /allocation_candidates."""
        self._free = {(rp, name): amounts['capacity'] - amounts['used'] for rp, summary in summaries.items()
                      for name, amounts in summary['resources'].items()}
        self._summaries, self._trees = summaries, dict[str, list[str]]()
        self._reservations, self._asked = reservations, asked
        self._version = -1
        self._made: Uses = Counter()
        self._all: Uses = Counter()

    def fits(self, request: Request) -> bool:
        """Whether nothing in it is known to be gone."""
        self._look()
        return self._has(request, self._made)

    def contested(self, request: Request) -> bool:
        """Whether somebody is just claiming what would then be gone."""
        self._look()
        return not self._has(request, self._all)

    def times(self, provider: str, resources: dict[str, int], base: Request, most: int) -> int:
        """How often, up to ``most``, the provider can give these beside what ``base`` takes of it."""
        self._look()
        taken = uses(base)
        found: int = min(most, *((self._free.get((provider, name), most * amount) - taken[provider, name]
                                  - self._made[provider, name]) // amount for name, amount in resources.items()))
        return found

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

    def _look(self) -> None:
        if self._reservations is not None and self._version != self._reservations.version:
            self._made, under_way = self._reservations.since(self._asked)
            self._all = self._made + under_way
            self._version = self._reservations.version

    def _has(self, request: Request, gone: Uses) -> bool:
        return all(key not in self._free or self._free[key] - gone[key] >= amount
                   for key, amount in uses(request).items())
