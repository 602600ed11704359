"""Remaining capacity of providers: the capacity in Placement's answer minus the claims made after the answer.

    asked = time.monotonic()                               # before the query to Placement
    room = RemainingCapacity(found['provider_summaries'], table.reservations, asked)
    room.fits(request)

Callers must hold the host table's lock.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kilonova.scheduler.hosts.reservations import Request, Reservations, Uses, uses
from kilonova.scheduler.placement.query import Group


class RemainingCapacity:
    """Remaining capacity of the resource providers in one answer of Placement, minus the claims made since then."""

    def __init__(self, summaries: dict[str, Any], reservations: Reservations | None = None, asked: float = 0.0) -> None:
        """Read the capacities from ``summaries``, the provider_summaries of GET /allocation_candidates.

        ``reservations`` are the claims of this scheduler. Those made after ``asked``, the monotonic time of the query
        to Placement, are subtracted from the capacities. If ``reservations`` is None, nothing is subtracted.
        """
        self._free = {
            (rp, name): amounts['capacity'] - amounts['used']
            for rp, summary in summaries.items()
            for name, amounts in summary['resources'].items()
        }
        self._summaries, self._trees = summaries, dict[str, list[str]]()
        self._reservations, self._asked = reservations, asked
        self._version = -1
        self._made: Uses = Counter()
        self._all: Uses = Counter()

    def fits(self, request: Request) -> bool:
        """Return whether all amounts of the request are still free, as far as this scheduler knows."""
        self._look()
        return self._has(request, self._made)

    def contested(self, request: Request) -> bool:
        """Return whether an allocation request would not fit after all claims that other threads are making now."""
        self._look()
        return not self._has(request, self._all)

    def times(self, provider: str, resources: dict[str, int], base: Request, most: int) -> int:
        """Return how many times a provider can give ``resources``, {resource class: amount}, but at most ``most``.

        The provider must also give the amounts that the allocation request ``base`` takes from it.
        """
        self._look()
        taken = uses(base)
        found: int = min(
            most,
            *(
                (self._free.get((provider, name), most * amount) - taken[provider, name] - self._made[provider, name])
                // amount
                for name, amount in resources.items()
            ),
        )
        return found

    def trees(self) -> dict[str, list[str]]:
        """Return {uuid of a root provider: uuids of the providers in its tree}."""
        if not self._trees:
            for rp, summary in self._summaries.items():
                self._trees.setdefault(summary['root_provider_uuid'], []).append(rp)
        return self._trees

    def providers(self, group: Group, provider: str) -> list[str]:
        """Return the providers in the same tree as ``provider`` that have a group's resources and traits."""
        return [
            rp
            for rp in self.trees()[self._summaries[provider]['root_provider_uuid']]
            if all(self._free.get((rp, name), 0) >= amount for name, amount in group.resources.items())
            and group.required.issubset(self._summaries[rp]['traits'])
            and group.forbidden.isdisjoint(self._summaries[rp]['traits'])
        ]

    def _look(self) -> None:
        if self._reservations is not None and self._version != self._reservations.version:
            self._made, under_way = self._reservations.since(self._asked)
            self._all = self._made + under_way
            self._version = self._reservations.version

    def _has(self, request: Request, gone: Uses) -> bool:
        return all(
            key not in self._free or self._free[key] - gone[key] >= amount for key, amount in uses(request).items()
        )
