"""Hosts in Placement's answer, and the current host of a server that is rebuilt.

    answers, hosts = CandidateCache(), table.standing()
    with answers.turn(query, hosts) as answer:        # the stored answer to an equal query, or None
        if answer is None:
            asked = time.monotonic()
            found = placement.allocation_candidates(query.pairs())
            answer = CandidateResponse(found, query, clones, asked, hosts)
            answers.keep(answer)                      # for equal queries of the next seconds
    offers = PlacementCandidates(snapshot, spec, answer)

``manager`` passes ``offers`` to ``select``.
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
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.columns import Mask
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import BELIEVED, Request
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.placement.expand import expand
from kilonova.scheduler.placement.query import CandidateQuery
from kilonova.scheduler.placement.room import RemainingCapacity

# Maximum number of allocation requests of one host that are tried, because more requests would probably fail, too.
TRIES_PER_HOST = 16
# Maximum number of stored answers of Placement. The answer for a large cloud needs some MiB.
MOST_ANSWERS = 8
# Seconds to wait for the answer to an equal query that another thread has sent.
WAIT = 5.0
Key = tuple[bytes, tuple[tuple[str, str], ...]]


@dataclass
class CandidateResponse:
    """Placement's allocation candidates for one query.

    Attributes:
        found: Body of the response of GET /allocation_candidates.
        query: The query that was sent.
        clones: {suffix of a group: suffixes of equal groups that were not sent}. ``expand`` adds these groups.
        asked: Monotonic time just before the query was sent.
        hosts: Fingerprint of the hosts (``Table.standing``) when the query was sent.
        late: Root providers of hosts that were only found with VCPU in place of PCPU. These hosts come after other
            hosts of the same weight.
    """

    found: dict[str, Any]
    query: CandidateQuery
    clones: dict[str, list[str]]
    asked: float
    hosts: bytes = b''
    late: set[str] = field(default_factory=set)

    @property
    def summaries(self) -> dict[str, Any]:
        """{provider uuid: amounts, traits and root provider}."""
        found: dict[str, Any] = self.found['provider_summaries']
        return found

    @cached_property
    def by_root(self) -> dict[str, list[Request]]:
        """Dict from the uuid of a root provider to the allocation requests that use a provider of its tree.

        The dict is computed when it is first read. Later changes of the answer have no effect on it.
        """
        by_root: dict[str, list[Request]] = {}
        for request in self.found['allocation_requests']:
            # A request may use several provider trees, for example a host's and a shared disk's. List it for each tree.
            for root in {self.summaries[rp]['root_provider_uuid'] for rp in request['allocations']}:
                by_root.setdefault(root, []).append(request)
        return by_root


class CandidateCache:
    """Placement's answers of the last BELIEVED seconds, by query, for all scheduling calls. Many threads may use it.

    If many equal requests for devices that only Placement knows (vGPUs, accelerators) arrive together, only one query
    is sent. Claims that were made after the answer are subtracted from its capacity. Each chosen host is still checked
    by its claim in Placement. If no host of a stored answer can be claimed, Placement is queried before the request is
    refused. A stored answer is no longer used if hosts were added or removed, or if one of its hosts has no capacity
    left.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._of: dict[Key, CandidateResponse] = {}
        self._asking: set[Key] = set()

    @contextmanager
    def turn(self, query: CandidateQuery, hosts: bytes) -> Iterator[CandidateResponse | None]:
        """Yield a stored answer to this query that is young enough, or None if the caller must send the query.

        If another thread is sending an equal query, its answer is awaited, up to WAIT seconds. A caller that gets None
        must call ``keep`` with Placement's answer; threads with an equal query wait until the caller's block ends.
        ``hosts`` is the fingerprint that ``Table.standing`` returned.
        """
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

    def keep(self, answer: CandidateResponse) -> None:
        """Store an answer for other scheduling calls.

        The answer is not stored if ``can_be_kept`` returns False, or if groups were left out of the query.
        """
        if can_be_kept(answer.query) and not answer.clones:
            with self._changed:
                self._of = {key: kept for key, kept in self._of.items() if kept.asked + BELIEVED > answer.asked}
                while len(self._of) >= MOST_ANSWERS:
                    del self._of[next(iter(self._of))]
                self._of[answer.hosts, tuple(answer.query.pairs())] = answer


def can_be_kept(query: CandidateQuery) -> bool:
    """Return whether an answer to this query may be stored and used for other requests.

    Return False if the query names aggregates, because the hosts of an aggregate may change at any moment.
    """
    return not any(group.aggregates or group.forbidden_aggregates for group in query.groups.values())


class PlacementCandidates:
    """Hosts and allocation requests in one answer of Placement. It implements ``select.Offers``.

    If ``alone`` is True, claims that were made after the answer are not subtracted from its capacity. If ``kept`` is
    True, the answer is a stored one: when Placement refuses a claim, no further host of the answer is tried, and the
    caller queries Placement.
    """

    most: int | None = None
    tries = TRIES_PER_HOST

    def __init__(
        self,
        snapshot: HostSnapshot,
        spec: RequestSpec,
        answer: CandidateResponse,
        *,
        alone: bool = False,
        kept: bool = False,
    ) -> None:
        self._snapshot, self._answer = snapshot, answer
        self._of = answer.by_root
        self.final = not kept
        self.refusals: int | None = 0 if kept else None
        self.room = RemainingCapacity(answer.summaries, None if alone else snapshot.table.reservations, answer.asked)
        cell = only_cell(spec)
        self._cells = {cell} if cell is not None else None
        self.late: Mask | None = None
        # Index of the only host that is offered, or None for all hosts of the answer.
        self.host_index: int | None = None

    @property
    def whole(self) -> bool:
        """True if each host in Placement's answer still has capacity for one server.

        Claims that this scheduler made after the answer are subtracted. If the result is False, Placement must be
        queried again: the claims may have been released since, so that the host has capacity after all. Callers must
        hold the host table's lock.
        """
        return all(any(self.room.fits(one) for one in requests) for requests in self._of.values())

    def only(self, host_index: int) -> PlacementCandidates:
        """Return a copy that offers only the host at ``host_index``."""
        made = copy.copy(self)
        made.host_index = host_index
        return made

    def hosts(self) -> Mask:
        """Return a boolean array that is True for the hosts in Placement's answer that may get servers.

        If the request must stay in one cell, hosts of other cells are left out.
        """
        table = self._snapshot.table
        found = table.usable(self._snapshot.cells.uuids()) & (
            table.places.these(self._of) if self.host_index is None else table.places.mask([self.host_index])
        )
        if self._cells is not None:
            found &= table.present(self._cells)
        self.late = table.places.these(self._answer.late) if self._answer.late else None
        return found

    def masks(self, arrays: HostArrays, first: bool) -> Iterator[tuple[str, Mask]]:
        """Return an empty iterator, because the hosts in Placement's answer meet all conditions already."""
        return iter(())

    def candidates(self, host: HostState) -> list[Request] | None:
        """Return the host's allocation requests, completed with the groups that the query to Placement left out."""
        requests = list(self._of.get(host.uuid, ()))
        if not self._answer.clones:
            return requests
        return expand(requests, self._answer.query, self._answer.clones, self.room, host.may_give, host.cell_of)

    def requests(self, host_index: int, host: HostState) -> list[Request] | None:
        """Return the host's allocation requests that the filters have not removed."""
        return host.allocation_candidates

    def qualifies(self, host: HostState) -> bool:
        """Return True, because Placement has checked the host already."""
        return True

    def states(self) -> Iterator[tuple[int, HostState]]:
        """Yield (index, HostState) of all hosts of the answer."""
        servers_of = self._snapshot.servers.on()
        for host_index in np.flatnonzero(self.hosts()).tolist():
            state = self._snapshot.state(host_index, servers_of, self.candidates)
            if state is not None:
                yield host_index, state


class CurrentHost:
    """The hosts for the rebuild of a server. It implements ``select.Offers``.

    All usable hosts are offered, but the rebuild request names the server's current host, so ``Select`` considers only
    this host. A rebuild needs no new allocation.
    """

    final = True
    most: int | None = None
    refusals: int | None = None
    tries = 1
    room = None
    late: Mask | None = None

    def __init__(self, snapshot: HostSnapshot) -> None:
        self._snapshot = snapshot

    def hosts(self) -> Mask:
        """Return a boolean array that is True for all hosts that may get servers."""
        return self._snapshot.table.usable(self._snapshot.cells.uuids())

    def masks(self, arrays: HostArrays, first: bool) -> Iterator[tuple[str, Mask]]:
        """Return an empty iterator, because there are no conditions other than the filters."""
        return iter(())

    def candidates(self, host: HostState) -> list[Request] | None:
        """Return None, because Placement was not asked for candidates."""
        return None

    def requests(self, host_index: int, host: HostState) -> list[Request] | None:
        """Return None, because no allocation is needed."""
        return None

    def qualifies(self, host: HostState) -> bool:
        """Return True, because nothing has to be checked in Placement."""
        return True


def only_cell(spec: RequestSpec) -> str | None:
    """Return the uuid of the cell that a move must not leave, or None if there is no such cell."""
    destination = spec.requested_destination if 'requested_destination' in spec else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    if 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move:
        return None
    return str(destination.cell.uuid)
