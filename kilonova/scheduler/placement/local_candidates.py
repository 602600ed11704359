"""Choose hosts from the scheduler's own data, so that Placement is queried only about the chosen host.

    offers = LocalCandidates.of(snapshot, qualified, spec, query, claims)  # None: Placement must be asked

The more hosts there are, the longer Placement needs for allocation candidates. A query about one host and a claim
always take the same time. So requests that need only values in the rows of hosts (VCPU, memory, disk, passthrough
devices by their default class, a zone) are decided here. Placement is asked whether the best host has the traits and
aggregates, and then receives the claim, which checks the amounts. A positive answer about traits is used for some
seconds.

Placement is asked for candidates in all other cases: if the request needs a class or trait that only Placement knows,
if no host passes, or if Placement refuses the chosen hosts. So this module never refuses a request, and never chooses a
host that Placement would have refused a few seconds earlier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from oslo_log import log as logging

from kilonova.clients.placement import PlacementClient
from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.columns import Mask
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import BELIEVED, Request
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.placement.claims import Claims
from kilonova.scheduler.placement.query import CandidateQuery, Group
from kilonova.scheduler.prefilters.compute_status import DISABLED
from kilonova.scheduler.prefilters.owner import OWNER

LOG = logging.getLogger(__name__)

# Placement may refuse the claims on this many hosts. After one more refusal it is queried for candidates.
REFUSALS = 3
# If this many answers of Placement about hosts' traits are stored, those older than BELIEVED seconds are removed.
MOST_BELIEVED = 10_000
# Number of the best hosts that are tried before Placement is asked for candidates.
TRIES = 64
_PLAIN = frozenset(('VCPU', 'MEMORY_MB', 'DISK_GB'))


@dataclass(frozen=True)
class Need:
    """Resources that one server of a request needs.

    Attributes:
        amounts: {resource class: amount}, without devices.
        zone: Sets of aggregate uuids. The host must be in one aggregate of each set.
        devices: {suffix of a request group: resource class of its device}.
    """

    amounts: dict[str, int]
    zone: tuple[frozenset[str], ...]
    devices: dict[str, str]

    def request(self, root: str, mappings: dict[str, list[str]]) -> Request:
        """Return the allocation request for the host with this root provider.

        ``mappings`` is {suffix of a request group: [provider of the group's device]}.
        """
        allocations: dict[str, Any] = {root: {'resources': dict(self.amounts)}}
        for suffix, name in self.devices.items():
            given = allocations.setdefault(mappings[suffix][0], {'resources': {}})['resources']
            given[name] = given.get(name, 0) + 1
        return {'allocations': allocations, 'mappings': {'': [root], **mappings}}


def need(spec: RequestSpec, query: CandidateQuery) -> Need | None:
    """Return the resources that a server needs, or None if the scheduler's own data is not enough for the request."""
    unnamed = query.unnamed
    if (
        query.root_required - {OWNER}
        or query.root_forbidden - {DISABLED}
        or query.same_subtree
        or unnamed.resources.keys() - _PLAIN
        or unnamed.required
        or unnamed.forbidden
        or unnamed.in_tree
        or unnamed.forbidden_aggregates
        or ('numa_topology' in spec and spec.numa_topology is not None)
    ):
        return None
    devices = {}
    for suffix, group in query.groups.items():
        if not suffix:
            continue
        plain = Group(resources=group.resources, required=group.required & {OWNER})
        if suffix not in query.pci_groups or group != plain or list(group.resources.values()) != [1]:
            return None
        devices[suffix] = next(iter(group.resources))
    if devices and query.policy == 'isolate':
        return None
    for name in ('force_hosts', 'force_nodes', 'ignore_hosts', 'requested_destination', 'requested_resources'):
        if name in spec and getattr(spec, name):
            return None
    return Need(dict(unnamed.resources), tuple(frozenset(ids) for ids in unnamed.aggregates), devices)


class TraitCache:
    """Placement's positive answers to the question whether a host has certain traits. Many threads may use it."""

    def __init__(self, placement: PlacementClient) -> None:
        self._placement = placement
        # {(host, required traits, forbidden traits): monotonic time at which the positive answer expires}
        self._until: dict[tuple[str, frozenset[str], frozenset[str]], float] = {}

    def has(self, uuid: str, query: CandidateQuery) -> bool:
        """Return whether a host has the query's traits and aggregates. Sends at most one request to Placement.

        A positive answer about traits is used for BELIEVED seconds. Negative answers and answers about aggregates are
        not stored.
        """
        if query.unnamed.aggregates:
            return self._ask(uuid, query)
        key, now = (uuid, frozenset(query.root_required), frozenset(query.root_forbidden)), time.monotonic()
        if self._until.get(key, 0.0) > now:
            return True
        if not self._ask(uuid, query):
            return False
        if len(self._until) >= MOST_BELIEVED:
            self._until = {one: until for one, until in list(self._until.items()) if until > now}
        self._until[key] = now + BELIEVED
        return True

    def _ask(self, uuid: str, query: CandidateQuery) -> bool:
        return self._placement.qualifies(uuid, query.root_required, query.root_forbidden, query.unnamed.aggregates)


class LocalCandidates:
    """Hosts that are chosen with the scheduler's own data, for one request; it implements ``select.Offers``."""

    final = False
    most: int | None = TRIES
    refusals: int | None = REFUSALS
    tries = 1
    room = None
    late: Mask | None = None

    def __init__(
        self, snapshot: HostSnapshot, qualified: TraitCache, spec: RequestSpec, asked: Need, claims: Claims
    ) -> None:
        self._snapshot, self._table = snapshot, snapshot.table
        self._qualified, self._spec, self._need, self._claims = qualified, spec, asked, claims

    @classmethod
    def of(
        cls, snapshot: HostSnapshot, qualified: TraitCache, spec: RequestSpec, query: CandidateQuery, claims: Claims
    ) -> LocalCandidates | None:
        """Return the hosts for a request, or None if the scheduler's own data are not enough to choose among them."""
        asked = need(spec, query)
        return None if asked is None else cls(snapshot, qualified, spec, asked, claims)

    def hosts(self) -> Mask:
        """Return a boolean array that is True for all hosts that may get servers."""
        return self._table.usable(self._snapshot.cells.uuids())

    def masks(self, arrays: HostArrays, first: bool) -> Iterator[tuple[str, Mask]]:
        """Yield ('free amounts', boolean array), which is True for hosts with enough free CPUs, memory and disk.

        For the first server of a request, also yield ('service and zone', boolean array). It is True for hosts in the
        requested zone whose service is enabled.
        """
        yield 'free amounts', self._roomy()
        if first:
            able = ~self._table['disabled']
            for aggregates in self._need.zone:
                able &= arrays.named(self._snapshot.aggregates.hosts(aggregates))
            yield 'service and zone', able

    def candidates(self, host: HostState) -> list[Request] | None:
        """Return None, because Placement was not asked for candidates."""
        return None

    def requests(self, host_index: int, host: HostState) -> list[Request] | None:
        """Return one allocation request with devices that are free now, or an empty list if no devices fit."""
        requests = self._spec.pci_requests if 'pci_requests' in self._spec else None
        mappings: dict[str, list[str]] = {}
        if requests is not None and requests.requests:
            pools = self._table.devices.pools(host_index)
            if not self._need.devices:
                if not pools.support_requests(requests):
                    return []
            else:
                found = pools.providers(requests)
                if found is None or found.keys() != self._need.devices.keys():
                    return []
                mappings = found
        return [self._need.request(host.uuid, mappings)]

    def qualifies(self, host: HostState) -> bool:
        """Return whether Placement says that the host has the traits and aggregates that the request needs.

        Raises Unanswered if the caller's waiting time is over.
        """
        self._claims.check_time()
        if self._qualified.has(host.uuid, self._claims.query):
            return True
        LOG.debug('Skipping host %(host)s: it lacks a required trait or aggregate in Placement', {'host': host})
        return False

    def _roomy(self) -> Mask:
        """Return a boolean array that is True for the hosts whose rows show enough free CPUs, memory and disk.

        Placement may have allocated some of these resources already. In this case, Placement refuses the claim.
        """
        amounts = self._need.amounts
        found: Mask = np.logical_and.reduce([free >= amounts.get(name, 0) for name, free in self._table.free().items()])
        return found
