"""Write choices into Placement, take up what an earlier, unanswered select wrote, give back one's own.

    claims = Claims(client, query, asker, project_id=…, user_id=…, host_of=…)
    plan = Select(…, claims).plan(uuids)
    kept = claims.confirm(uuids)            # the servers whose select still has a caller; Cancelled: none

A consumer that has an allocation already makes the claim fail with 409: then what is there counts (operations.md
rule 9). It is written once more, so that whoever wrote it before can't remove it any more, and it is never given back
here: a select gives back what it put itself, as long as it wasn't written since.
"""
from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.clients.placement import (
    WRITE_ATTEMPTS,
    Allocations,
    PlacementClient,
    PlacementInvalid,
    is_consumer_conflict,
    same_allocations,
)
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.plan import Choice
from kilonova.scheduler.query import Query
from kilonova.scheduler.reservations import Request, uses

LOG = logging.getLogger(__name__)

# Placement makes a consumer with generation 0 and adds one with each write.
FIRST_GENERATION = 1
# Seconds between tries to give a claim back while Placement doesn't answer: no other process does it.
DROP_PAUSES = (0.2, 1.0, 3.0)


@dataclass(frozen=True)
class Asker:
    """The caller that waits for the answer. ``until``: the end, by this machine's monotonic clock; None: no end.

    ``waiting()``: the servers whose operations still wait for a host (Unanswered: the database is silent); None: the
    request comes from no operation.
    """

    until: float | None = None
    waiting: Callable[[], set[str]] | None = None

    @classmethod
    def of(cls, time_left: float | None, waiting: Callable[[], set[str]] | None = None) -> Asker:
        """``time_left``: seconds from now."""
        return cls(None if time_left is None else time.monotonic() + time_left, waiting)

    def check_time(self) -> None:
        """Unanswered once the time is over."""
        if self.until is not None and time.monotonic() > self.until:
            raise errors.Unanswered(who='the scheduler', reason='the time for its answer is over')

    def waits_for(self, uuids: Collection[str]) -> set[str]:
        """Those of these servers whose caller still waits."""
        return set(uuids) if self.waiting is None else self.waiting() & set(uuids)


class Claims:
    """The claims of one select. ``host_of(provider uuids)``: the HostState that one of them is, or None."""

    def __init__(self, placement: PlacementClient, query: Query, asker: Asker, *, project_id: str, user_id: str,
                 host_of: Callable[[Collection[str]], HostState | None]) -> None:
        self._placement, self.query, self._asker = placement, query, asker
        self._host_of, self._owner = host_of, dict[str, Any](project_id=project_id, user_id=user_id)
        # The same question to hosts that report no dedicated CPUs.
        self.fallback: Query | None = None
        # What this select put and has not given back: {server: allocations}.
        self._made: dict[str, Allocations] = {}

    def claim(self, uuid: str, host: HostState, request: Request) -> Choice | None:
        """Allocate ``request`` to the server. None: there is no room after all; the next candidate may have some."""
        try:
            self.put(uuid, request)
        except errors.PlacementConflict as error:
            if is_consumer_conflict(error):
                return self.existing(uuid)
            LOG.debug('Unable to claim %(request)s on %(host)s: %(error)s',
                      {'request': request, 'host': host, 'error': error})
            return None
        except PlacementInvalid as error:
            # A provider went away since Placement named it.
            LOG.warning('Placement refuses an allocation on %(host)s: %(error)s', {'host': host, 'error': error})
            return None
        return Choice(host, request)

    def put(self, uuid: str, request: Request) -> None:
        """Write the allocation. PlacementConflict, PlacementInvalid: it isn't written. Unanswered: the time is over,
        and what came too late was given back; or Placement is silent."""
        self.check_time()
        self._placement.claim(uuid, request['allocations'], request.get('mappings'), **self._owner)
        self._made[uuid] = request['allocations']
        try:
            self.check_time()
        except errors.Unanswered:
            # The flow's own undo may have been there before it.
            self.give_back([uuid])
            raise

    def existing(self, uuid: str) -> Choice | None:
        """What the server has already, as a choice; None when it has nothing.

        NoValidHost when that is not what is asked for now, or not on a host that there is.
        """
        for _ in range(WRITE_ATTEMPTS):
            held = self._placement.get_allocations(uuid)
            if not held['allocations']:
                return None
            choice = self._choice_of(uuid, held['allocations'])
            if self._take_up(uuid, choice, held['consumer_generation']):
                return choice
        raise errors.Unanswered(who='Placement', reason=f'others write the allocation of {uuid} at the same time')

    def _choice_of(self, uuid: str, allocations: Allocations) -> Choice:
        host = self._host_of(allocations.keys())
        mappings = None
        for query in filter(None, (self.query, self.fallback)):
            mappings = mappings or mappings_of(query, allocations, lambda rp: self._placement.get_traits(rp)[0])
        if host is None or mappings is None:
            LOG.warning('Server %(uuid)s holds an allocation that is not of this request: %(allocations)s',
                        {'uuid': uuid, 'allocations': allocations})
            raise errors.NoValidHost(reason=f'Placement holds another allocation of server {uuid}.')
        given = {rp: {'resources': dict(one['resources'])} for rp, one in allocations.items()}
        return Choice(host, {'allocations': given, 'mappings': mappings}, held=True)

    def _take_up(self, uuid: str, choice: Choice, generation: int) -> bool:
        """Give what was found a new generation: a select without a caller may be about to remove it.
        False: it was written meanwhile."""
        if not self._asker.waits_for([uuid]):
            return True
        assert choice.request is not None
        try:
            self._placement.claim(uuid, choice.request['allocations'], choice.request['mappings'], **self._owner,
                                  generation=generation)
        except errors.PlacementConflict as error:
            if is_consumer_conflict(error):
                return False
            # Since it was claimed the host came to offer less: the host itself refuses then.
            LOG.debug('The allocation of %(uuid)s stays as it is: %(error)s', {'uuid': uuid, 'error': error})
        return True

    def check_time(self) -> None:
        """Unanswered once the time is over."""
        self._asker.check_time()

    def confirm(self, uuids: Collection[str]) -> set[str]:
        """After the last claim: those of the servers whose caller still waits; what was put for others is given
        back. Cancelled: no caller waits, and nothing of this select stays; Unanswered: the database doesn't answer."""
        waiting = self._asker.waits_for(uuids)
        self.give_back(set(uuids) - waiting)
        if not waiting:
            raise errors.Cancelled(key=f'of {", ".join(sorted(uuids))}')
        return waiting

    def leave(self) -> None:
        """The select ends in silence: what it put stays for the next one, as the flow decides. Servers whose operations
        wait no more have no flow that could."""
        try:
            gone = self._made.keys() - self._asker.waits_for(self._made) if self._made else set()
        except errors.Unanswered as error:
            LOG.info('What was claimed for %s stays: %s', ', '.join(self._made), error)
            return
        self.give_back(gone)

    def give_back(self, uuids: Collection[str] | None = None) -> None:
        """Drop what this select put for these servers (None: for all), unless it was written since."""
        for uuid in sorted(self._made if uuids is None else self._made.keys() & uuids):
            self._give_back(uuid, self._made.pop(uuid))

    def _give_back(self, uuid: str, allocations: Allocations) -> None:
        for pause in (*DROP_PAUSES, None):
            try:
                self._drop(uuid, allocations)
                return
            except errors.Unanswered as error:
                if pause is None:
                    LOG.warning('The allocation of server %(uuid)s may stay in Placement: %(error)s',
                                {'uuid': uuid, 'error': error})
                else:
                    time.sleep(pause)

    def _drop(self, uuid: str, allocations: Allocations) -> None:
        # Whoever claims after a removal begins with the same generation, so the amounts are looked at as well.
        if not same_allocations(self._placement.get_allocations(uuid)['allocations'], allocations):
            return
        try:
            self._placement.claim(uuid, {}, **self._owner, generation=FIRST_GENERATION)
        except errors.PlacementConflict as error:
            LOG.debug('The allocation of %(uuid)s was written by others: %(error)s', {'uuid': uuid, 'error': error})


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


def _total(amounts: Counter[tuple[str, str]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (_, name), amount in amounts.items():
        total[name] += amount
    return dict(total)


def _assign(query: Query, suffixes: list[str], providers: Collection[str], left: Counter[tuple[str, str]],
            suits: Callable[[str, str], bool], found: dict[str, str]) -> bool:
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
