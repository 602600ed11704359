"""Hosts of Placement's answer, and the host that a server stays on.

    asked = time.monotonic()
    answer = Answer(placement.allocation_candidates(query.pairs()), query, clones, asked, table.standing())
    offers = Offered(snapshot, spec, answer)
    with answers.turn(query, hosts) as kept:          # who asks the same in the next seconds gets it, too
        if kept is None:
            answers.keep(answer)
"""
from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from kilonova.scheduler.reservations import BELIEVED, Request
from kilonova.scheduler.room import Room
from kilonova.scheduler.snapshot import Snapshot

# Requests of one host that are tried before the next host; further ones are likely to be gone as well.
TRIES_PER_HOST = 16
# Answers that are kept at the same time: one of a large cloud has some MiB.
MOST_ANSWERS = 8
# Seconds to wait for the answer to a question that another select is asking.
WAIT = 5.0
Key = tuple[bytes, tuple[tuple[str, str], ...]]


@dataclass
class Answer:
    """Placement's candidates. ``query``: the question that they answer; ``clones``: what ``expand`` fills in;
    ``asked``: when, by the monotonic clock, before Placement was; ``hosts``: ``Table.standing`` then; ``late``: roots
    of hosts that are only taken when no better one weighs as much."""

    found: dict[str, Any]
    query: Query
    clones: dict[str, list[str]]
    asked: float
    hosts: bytes = b''
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


class Answers:
    """What Placement answered in the last seconds, by question; one for all selects. Many threads may use it.

    A burst of equal requests for devices that only Placement knows (vGPUs, accelerators) costs one question. What was
    claimed since is subtracted (``Room``), claims decide, and a kept answer never refuses a request. It is not used any
    more when hosts came or went, or one of them has no room left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._of: dict[Key, Answer] = {}
        self._asking: set[Key] = set()

    @contextmanager
    def turn(self, query: Query, hosts: bytes) -> Iterator[Answer | None]:
        """The answer to this question, if there is one that is young enough; while another select asks it, its answer
        is waited for. None: the caller is to ask and to ``keep``, and others wait until the block ends. ``hosts``:
        ``Table.standing``."""
        key = hosts, tuple(query.pairs())
        with self._changed:
            self._changed.wait_for(lambda: key not in self._asking, WAIT)
            found = self._of.get(key)
            if found is not None and found.asked + BELIEVED <= time.monotonic():
                found = None
            asks = found is None and key not in self._asking
            if asks:
                self._asking.add(key)
        try:
            yield found
        finally:
            if asks:
                with self._changed:
                    self._asking.remove(key)
                    self._changed.notify_all()

    def keep(self, answer: Answer) -> None:
        """For others; of one that can't be kept nothing is."""
        if can_be_kept(answer.query) and not answer.clones:
            with self._changed:
                self._of = {key: kept for key, kept in self._of.items() if kept.asked + BELIEVED > answer.asked}
                while len(self._of) >= MOST_ANSWERS:
                    del self._of[next(iter(self._of))]
                self._of[answer.hosts, tuple(answer.query.pairs())] = answer


def can_be_kept(query: Query) -> bool:
    """Which hosts are in an aggregate may change at any moment."""
    return not any(group.aggregates or group.forbidden_aggregates for group in query.groups.values())


class Offered:
    """``select.Offers`` of one answer. ``alone``: what was claimed since isn't reckoned with. ``kept``: others asked;
    one refused claim ends it."""

    most: int | None = None
    tries = TRIES_PER_HOST

    def __init__(self, snapshot: Snapshot, spec: RequestSpec, answer: Answer, *, alone: bool = False,
                 kept: bool = False) -> None:
        self._snapshot, self._answer = snapshot, answer
        self._of = answer.by_root
        self.final = not kept
        self.refusals: int | None = 0 if kept else None
        self.room = Room(answer.summaries, None if alone else snapshot.table.reservations, answer.asked)
        cell = only_cell(spec)
        self._cells = {cell} if cell is not None else None
        self.late: Mask | None = None
        # The only one that is meant.
        self.place: int | None = None

    @property
    def whole(self) -> bool:
        """Whether each host can still take a server: what was claimed of it since may be free again. Needs the table's
        lock."""
        return all(any(self.room.fits(one) for one in requests) for requests in self._of.values())

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
