"""Hosts of Placement's answer, and the host that a server stays on.

    asked = time.monotonic()
    answer = Answer(placement.allocation_candidates(query.pairs()), query, clones)
    offers = Offered(snapshot, spec, answer, asked)
"""
from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from kilonova.objects import RequestSpec
from kilonova.scheduler.columns import Mask
from kilonova.scheduler.expand import expand
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look
from kilonova.scheduler.query import Query
from kilonova.scheduler.reservations import Request
from kilonova.scheduler.room import Room
from kilonova.scheduler.snapshot import Snapshot

# Requests of one host that are tried before the next host; further ones are likely to be gone as well.
TRIES_PER_HOST = 16


@dataclass
class Answer:
    """Placement's candidates. ``query``: the question that they answer; ``clones``: what ``expand`` fills in; ``late``:
    roots of hosts that are only taken when no better one weighs as much."""

    found: dict[str, Any]
    query: Query
    clones: dict[str, list[str]]
    late: set[str] = field(default_factory=set)

    @property
    def summaries(self) -> dict[str, Any]:
        """Each provider's amounts, traits and root."""
        found: dict[str, Any] = self.found['provider_summaries']
        return found

    @cached_property
    def by_root(self) -> dict[str, list[Request]]:
        """{root of a provider tree: the requests that take from it}; read when the answer is whole."""
        by_root: dict[str, list[Request]] = {}
        for request in self.found['allocation_requests']:
            # A provider that is shared over trees is nobody's root alone.
            for root in {self.summaries[rp]['root_provider_uuid'] for rp in request['allocations']}:
                by_root.setdefault(root, []).append(request)
        return by_root


class Offered:
    """``select.Offers`` of one answer. ``asked``: when Placement was asked, by the monotonic clock; None: what was
    claimed since isn't reckoned with."""

    final = True
    most: int | None = None
    refusals: int | None = None
    tries = TRIES_PER_HOST

    def __init__(self, snapshot: Snapshot, spec: RequestSpec, answer: Answer, asked: float | None) -> None:
        self._snapshot, self._answer = snapshot, answer
        self._of = answer.by_root
        self.room = Room(answer.summaries, None if asked is None else snapshot.table.reservations, asked or 0.0)
        cell = only_cell(spec)
        self._cells = {cell} if cell is not None else None
        self.late: Mask | None = None
        # The only one that is meant.
        self.place: int | None = None

    def only(self, place: int) -> Offered:
        """The same of one host."""
        made = copy.copy(self)
        made.place = place
        return made

    def hosts(self) -> Mask:
        table = self._snapshot.table
        found = table.usable(self._snapshot.cells.uuids()) & (
            table.places.these(self._of) if self.place is None else table.places.mask([self.place]))
        if self._cells is not None:
            found &= table.present(self._cells)
        self.late = table.places.these(self._answer.late) if self._answer.late else None
        return found

    def masks(self, look: Look, first: bool) -> Iterator[tuple[str, Mask]]:
        return iter(())

    def candidates(self, host: HostState) -> list[Request] | None:
        requests = list(self._of.get(host.uuid, ()))
        if not self._answer.clones:
            return requests
        return expand(requests, self._answer.query, self._answer.clones, self.room, host.may_give, host.cell_of)

    def requests(self, place: int, host: HostState) -> list[Request] | None:
        return host.allocation_candidates

    def qualifies(self, host: HostState) -> bool:
        return True

    def states(self) -> Iterator[tuple[int, HostState]]:
        """All its hosts, by place."""
        servers_of = self._snapshot.servers.on()
        for place in np.flatnonzero(self.hosts()).tolist():
            state = self._snapshot.state(place, servers_of, self.candidates)
            if state is not None:
                yield place, state


class Staying:
    """The hosts for a server that is rebuilt on the one that it names: nothing is allocated."""

    final = True
    most: int | None = None
    refusals: int | None = None
    tries = 1
    room = None
    late: Mask | None = None

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def hosts(self) -> Mask:
        return self._snapshot.table.usable(self._snapshot.cells.uuids())

    def masks(self, look: Look, first: bool) -> Iterator[tuple[str, Mask]]:
        return iter(())

    def candidates(self, host: HostState) -> list[Request] | None:
        return None

    def requests(self, place: int, host: HostState) -> list[Request] | None:
        return None

    def qualifies(self, host: HostState) -> bool:
        return True


def only_cell(spec: RequestSpec) -> str | None:
    """The uuid of the cell that a move may not leave."""
    destination = spec.requested_destination if 'requested_destination' in spec else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    if 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move:
        return None
    return str(destination.cell.uuid)
