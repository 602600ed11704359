"""Write the chosen hosts into Placement as allocations ("claims"), and release claims that are not needed.

    claims = Claims(client, query, asker, project_id=…, user_id=…, host_of=…)
    with Select(…, claims) as select:
        plan = select.plan(uuids)           # ends with claims.confirm(uuids), which raises Cancelled if no server waits

If a server already has an allocation, an earlier scheduling call has written it, and the answer of that call was lost.
Placement then answers 409 to the claim, and the existing allocation is used (operations.md, rule 9). The allocation is
written again and so gets a new consumer generation. The earlier call can then no longer remove it, because a call
releases only allocations that it wrote itself and that no other call has written again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from oslo_log import log as logging

from kilonova import errors
from kilonova.clients.placement import (
    WRITE_ATTEMPTS,
    Allocations,
    PlacementClient,
    PlacementInvalid,
    is_consumer_conflict,
    same_allocations,
)
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import Request, uses
from kilonova.scheduler.placement.query import CandidateQuery
from kilonova.scheduler.plan import Candidate

LOG = logging.getLogger(__name__)

# Consumer generation of an allocation that was written only once. Each further write increments it.
FIRST_GENERATION = 1
# Pauses in seconds between the attempts to release a claim. If the last one fails, the claim stays in Placement.
DROP_PAUSES = (0.2, 1.0, 3.0)


@dataclass(frozen=True)
class Caller:
    """The process that called ``select_destinations`` and waits for the answer.

    ``until`` is the monotonic time at which the process stops waiting, or None if there is no limit.
    ``waiting()`` returns the servers whose boot operations have no host yet and were not cancelled. It raises
    Unanswered if the database does not answer. ``waiting`` is None if the request does not come from an operation.
    """

    until: float | None = None
    waiting: Callable[[], set[str]] | None = None

    @classmethod
    def of(cls, time_left: float | None, waiting: Callable[[], set[str]] | None = None) -> Caller:
        """Return a Caller that waits for its answer for ``time_left`` seconds from now, or for ever if it is None.

        ``waiting()`` returns the servers that still need a host. It is None if the request does not come from an
        operation.
        """
        return cls(None if time_left is None else time.monotonic() + time_left, waiting)

    def check_time(self) -> None:
        """Raise Unanswered if the time ``until`` has passed. The caller then no longer waits for an answer."""
        if self.until is not None and time.monotonic() > self.until:
            raise errors.Unanswered(
                'The caller no longer waits for the scheduler, because the scheduling deadline has passed'
            )

    def waits_for(self, uuids: Collection[str]) -> set[str]:
        """Return the servers of ``uuids`` whose boot operations have no host yet and were not cancelled."""
        return set(uuids) if self.waiting is None else self.waiting() & set(uuids)


class Claims:
    """The claims in Placement that one call of ``select_destinations`` makes.

    ``host_of(provider uuids)`` returns the HostState of the host to which one of these resource providers belongs, or
    None.
    """

    def __init__(
        self,
        placement: PlacementClient,
        query: CandidateQuery,
        asker: Caller,
        *,
        project_id: str,
        user_id: str,
        host_of: Callable[[Collection[str]], HostState | None],
    ) -> None:
        self._placement, self.query, self._asker = placement, query, asker
        self._host_of, self._owner = host_of, dict[str, Any](project_id=project_id, user_id=user_id)
        # Query with VCPU in place of PCPU, which fits hosts that do not report PCPU. None if no such query was sent.
        self.fallback: CandidateQuery | None = None
        # {server: allocations} that this call wrote and has not released.
        self._made: dict[str, Allocations] = {}

    def claim(self, uuid: str, host: HostState, request: Request) -> Candidate | None:
        """Allocate ``request`` to the server, and return the choice, or None if the host no longer has the capacity.

        If the result is None, the caller may try another candidate. If the server already has an allocation, return a
        choice with this allocation. Raises Unanswered if Placement does not answer, or if the caller's waiting time is
        over.
        """
        try:
            self.put(uuid, request)
        except errors.PlacementConflict as error:
            if is_consumer_conflict(error):
                return self.existing(uuid)
            LOG.debug(
                'Unable to claim %(request)s on %(host)s: %(error)s',
                {'request': request, 'host': host, 'error': error},
                instance_uuid=uuid,
            )
            return None
        except PlacementInvalid as error:
            # Placement refuses the claim, for example, if a provider was deleted since Placement's answer.
            LOG.warning(
                'Placement refused the allocation on %(host)s: %(error)s',
                {'host': host, 'error': error},
                instance_uuid=uuid,
            )
            return None
        return Candidate(host, request)

    def put(self, uuid: str, request: Request) -> None:
        """Write the server's allocation to Placement.

        Raises:
            PlacementConflict: If there is not enough room, or another request changed the allocation. Nothing is
                written.
            PlacementInvalid: If the allocation names something that Placement does not know. Nothing is written.
            Unanswered: If Placement does not answer, or if the caller's waiting time is over. An allocation that was
                written too late is released.
        """
        self.check_time()
        self._placement.claim(uuid, request['allocations'], request.get('mappings'), **self._owner)
        self._made[uuid] = request['allocations']
        try:
            self.check_time()
        except errors.Unanswered:
            # The caller probably no longer waits, so release the allocation here: nobody else would release it.
            self.give_back([uuid])
            raise

    def existing(self, uuid: str) -> Candidate | None:
        """Return a Candidate with the host and allocation that the server already has in Placement, or None.

        Raises NoValidHost if the allocation does not match the request, or if its host does not exist. Raises
        Unanswered if other requests change the allocation during each of WRITE_ATTEMPTS attempts to take it over, or if
        Placement or a database does not answer.
        """
        for _ in range(WRITE_ATTEMPTS):
            held = self._placement.get_allocations(uuid)
            if not held['allocations']:
                return None
            choice = self._choice_of(uuid, held['allocations'])
            if self._take_up(uuid, choice, held['consumer_generation']):
                return choice
        raise errors.Unanswered(f'Other requests changed the allocation of {uuid} at the same time')

    def _choice_of(self, uuid: str, allocations: Allocations) -> Candidate:
        host = self._host_of(allocations.keys())
        mappings = None
        for query in filter(None, (self.query, self.fallback)):
            mappings = mappings or mappings_of(query, allocations, lambda rp: self._placement.get_traits(rp)[0])
        if host is None or mappings is None:
            LOG.warning(
                'Server %(uuid)s already has an allocation that does not match this request: %(allocations)s',
                {'uuid': uuid, 'allocations': allocations},
                instance_uuid=uuid,
            )
            raise errors.NoValidHost(reason=f'Server {uuid} already has another allocation in Placement.')
        given = {rp: {'resources': dict(one['resources'])} for rp, one in allocations.items()}
        return Candidate(host, {'allocations': given, 'mappings': mappings}, held=True)

    def _take_up(self, uuid: str, choice: Candidate, generation: int) -> bool:
        """Write the existing allocation again, so that it gets a new generation (Placement's change counter).

        With the new generation, the earlier call that wrote the allocation can no longer remove it. Return False if
        another request changed the allocation in the meantime. If the server's operation no longer needs a host, return
        True without a write.
        """
        if not self._asker.waits_for([uuid]):
            return True
        assert choice.request is not None
        try:
            self._placement.claim(
                uuid, choice.request['allocations'], choice.request['mappings'], **self._owner, generation=generation
            )
        except errors.PlacementConflict as error:
            if is_consumer_conflict(error):
                return False
            # The host now has too little capacity for the allocation. The host itself will reject the server.
            LOG.debug(
                'The existing allocation of server %(uuid)s is kept, although its host now has too little capacity: '
                '%(error)s',
                {'uuid': uuid, 'error': error},
                instance_uuid=uuid,
            )
        return True

    def check_time(self) -> None:
        """Raise Unanswered if the caller's waiting time is over."""
        self._asker.check_time()

    def confirm(self, uuids: Collection[str]) -> set[str]:
        """Return the servers whose operations still need a host, and release the claims of the other servers.

        Call this after the last claim. If no operation needs a host any more, release all claims of this call and raise
        Cancelled. Raises Unanswered if the database does not answer.
        """
        waiting = self._asker.waits_for(uuids)
        self.give_back(set(uuids) - waiting)
        if not waiting:
            raise errors.Cancelled(key=f'to create server {", ".join(sorted(uuids))}')
        return waiting

    def leave(self) -> None:
        """Keep the claims of a scheduling call that ends because a database or Placement does not answer.

        The next scheduling call for the same operation finds the claims in Placement and uses them. Claims for
        cancelled operations are released, because no further call follows.
        """
        try:
            gone = self._made.keys() - self._asker.waits_for(self._made) if self._made else set()
        except errors.Unanswered as error:
            LOG.info(
                'The allocations of servers %s are kept for the next scheduling attempt: %s',
                ', '.join(self._made),
                error,
            )
            return
        self.give_back(gone)

    def give_back(self, uuids: Collection[str] | None = None) -> None:
        """Release the allocations that this call wrote for these servers, or for all servers if ``uuids`` is None.

        An allocation that another call has written again is not released.
        """
        for uuid in sorted(self._made if uuids is None else self._made.keys() & uuids):
            self._give_back(uuid, self._made.pop(uuid))

    def _give_back(self, uuid: str, allocations: Allocations) -> None:
        for pause in (*DROP_PAUSES, None):
            try:
                self._drop(uuid, allocations)
                return
            except errors.Unanswered as error:
                if pause is None:
                    LOG.warning(
                        'Could not delete the allocation of server %(uuid)s, it may still exist in Placement: '
                        '%(error)s',
                        {'uuid': uuid, 'error': error},
                        instance_uuid=uuid,
                    )
                else:
                    time.sleep(pause)

    def _drop(self, uuid: str, allocations: Allocations) -> None:
        # Release the allocation only if its amounts are still the ones that this call wrote.
        # The consumer generation is not enough: an allocation that was removed and written again has the same one.
        if not same_allocations(self._placement.get_allocations(uuid)['allocations'], allocations):
            return
        try:
            self._placement.claim(uuid, {}, **self._owner, generation=FIRST_GENERATION)
        except errors.PlacementConflict as error:
            LOG.debug(
                'The allocation of server %(uuid)s was changed by another request and is not deleted: %(error)s',
                {'uuid': uuid, 'error': error},
                instance_uuid=uuid,
            )


def mappings_of(
    query: CandidateQuery, allocations: Allocations, traits_of: Callable[[str], set[str]]
) -> dict[str, list[str]] | None:
    """Return {group: [provider]} for these allocations, or None if they do not fit the query.

    Placement does not store this mapping, so it is computed again. Traits of a provider are read only if two different
    groups ask for the same resource class.
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
        if not any(
            group.key() != query.groups[other].key() and group.resources.keys() & query.groups[other].resources
            for other in named
        ):
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


def _assign(
    query: CandidateQuery,
    suffixes: list[str],
    providers: Collection[str],
    left: Counter[tuple[str, str]],
    suits: Callable[[str, str], bool],
    found: dict[str, str],
) -> bool:
    """Assign a provider to each request group by a depth-first search, and write {suffix: provider} to ``found``.

    ``suffixes`` are the groups to assign. ``suits(suffix, provider)`` returns whether a provider can serve a group.
    ``left`` is {(provider, resource class): amount that is not assigned yet}; the groups' amounts are subtracted from
    it. Return False if not all groups can be assigned.
    """
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
