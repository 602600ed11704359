"""Write choices into Placement, and find those that an earlier, unanswered select wrote.

    claims = Claims(client, neighbours, room, query, project_id=…, user_id=…, host_of=…, deadline=…)
    plan = select(…, claim=claims.claim)
    claims.give_back()                      # of all that this select claimed

A consumer that has an allocation already makes the claim fail with 409: then what is there counts (operations.md
rule 9).
"""
from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from kilonova import errors
from kilonova.clients.placement import (
    Allocations,
    PlacementClient,
    PlacementInvalid,
    is_consumer_conflict,
)
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.query import Query
from kilonova.scheduler.room import Neighbours, Request, Room, uses
from kilonova.scheduler.select import Choice

LOG = logging.getLogger(__name__)


class Claims:
    """The claims of one select. ``host_of(provider uuids)``: the HostState that one of them is, or None.

    ``deadline``: epoch seconds after which nobody waits for the answer, so that nothing is claimed any more.
    """

    def __init__(self, placement: PlacementClient, neighbours: Neighbours, room: Room, query: Query, *,
                 project_id: str, user_id: str, host_of: Callable[[Collection[str]], HostState | None],
                 deadline: float | None = None) -> None:
        self._placement, self._neighbours, self._room, self.query = placement, neighbours, room, query
        self._project_id, self._user_id = project_id, user_id
        self._host_of, self._deadline = host_of, deadline
        # The same question to hosts that report no dedicated CPUs.
        self.fallback: Query | None = None
        self._claimed: set[str] = set()

    def claim(self, uuid: str, host: HostState, request: Request) -> Choice | None:
        """Allocate ``request`` to the server. None: there is no room after all; the next candidate may have some."""
        with self._neighbours.claiming(request, self._room) as mark:
            if mark is None:
                return None
            self.check_deadline()
            try:
                self.put(uuid, request)
            except errors.PlacementConflict as error:
                self._neighbours.failed(mark)
                if is_consumer_conflict(error):
                    return self.existing(uuid)
                LOG.debug('Unable to claim %(request)s on %(host)s: %(error)s',
                          {'request': request, 'host': host, 'error': error})
                return None
            except PlacementInvalid as error:
                # A provider went away since Placement named it.
                self._neighbours.failed(mark)
                LOG.warning('Placement refuses an allocation on %(host)s: %(error)s', {'host': host, 'error': error})
                return None
        return Choice(host, request)

    def put(self, uuid: str, request: Request) -> None:
        """Write the allocation; PlacementConflict, PlacementInvalid: it isn't written."""
        self._placement.claim(uuid, request['allocations'], request.get('mappings'), project_id=self._project_id,
                              user_id=self._user_id)
        self._claimed.add(uuid)

    def existing(self, uuid: str) -> Choice | None:
        """What the server has already, as a choice; None when it has nothing.

        NoValidHost when that is not what is asked for now, or not on a host that there is.
        """
        allocations = self._placement.get_allocations(uuid)['allocations']
        if not allocations:
            return None
        host = self._host_of(allocations.keys())
        mappings = None
        for query in filter(None, (self.query, self.fallback)):
            mappings = mappings or mappings_of(query, allocations, lambda rp: self._placement.get_traits(rp)[0])
        if host is None or mappings is None:
            LOG.warning('Server %(uuid)s holds an allocation that is not of this request: %(allocations)s',
                        {'uuid': uuid, 'allocations': allocations})
            raise errors.NoValidHost(reason=f'Placement holds another allocation of server {uuid}.')
        self._claimed.add(uuid)
        given = {rp: {'resources': dict(one['resources'])} for rp, one in allocations.items()}
        return Choice(host, {'allocations': given, 'mappings': mappings}, held=True)

    def check_deadline(self) -> None:
        """Unanswered once the deadline is over."""
        if self._deadline is not None and time.time() > self._deadline:
            raise errors.Unanswered(who='the scheduler', reason='its answer came after the deadline')

    def give_back(self) -> None:
        """Drop what this select claimed or found claimed for its servers."""
        for uuid in sorted(self._claimed):
            self._placement.delete_allocations(uuid)
        self._claimed.clear()


def mappings_of(query: Query, allocations: Allocations,
                traits_of: Callable[[str], set[str]]) -> dict[str, list[str]] | None:
    """Which provider serves which group of the query; None when the allocations are not an answer to it.

    Placement keeps no mappings, so they are worked out again: traits are looked at only where two groups that differ
    ask for the same class.
    """
    left = uses({'allocations': allocations})
    if _total(left) != query.resources():
        return None
    named = [suffix for suffix, group in query.groups.items() if suffix and group.resources]
    known: dict[str, set[str]] = {}

    def suits(suffix: str, rp: str) -> bool:
        group = query.groups[suffix]
        if not all(left[rp, name] >= amount for name, amount in group.resources.items()):
            return False
        if not any(group.key() != query.groups[other].key() and group.resources.keys() & query.groups[other].resources
                   for other in named):
            return True
        if rp not in known:
            known[rp] = traits_of(rp)
        return group.required <= known[rp] and not group.forbidden & known[rp]

    found: dict[str, str] = {}
    if not _assign(query, named, allocations, left, suits, found):
        return None
    unnamed = query.groups['']
    mappings = {suffix: [rp] for suffix, rp in found.items()}
    rest = sorted({rp for (rp, name), amount in left.items() if amount and name in unnamed.resources})
    return mappings | ({'': rest} if rest else {})


def _total(amounts: Counter) -> dict[str, int]:
    total: Counter = Counter()
    for (_, name), amount in amounts.items():
        total[name] += amount
    return dict(total)


def _assign(query: Query, suffixes: list[str], providers: Collection[str], left: Counter, suits: Any,
            found: dict[str, str]) -> bool:
    """Give each group a provider, depth first; ``left`` ends without what they take."""
    if not suffixes:
        return True
    suffix, *rest = suffixes
    for rp in providers:
        if not suits(suffix, rp):
            continue
        taken = Counter({(rp, name): amount for name, amount in query.groups[suffix].resources.items()})
        left.subtract(taken)
        found[suffix] = rp
        if _assign(query, rest, providers, left, suits, found):
            return True
        left.update(taken)
    found.pop(suffix, None)
    return False
