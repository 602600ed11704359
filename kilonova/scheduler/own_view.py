"""Hosts chosen from our own view, so that Placement is only asked about the one that is chosen.

    offers = OwnView.of(snapshot, qualified, spec, query, claims)       # None: our view can't answer this request

Placement needs longer for its candidates the more hosts there are; a look at one host and a claim take the same time
always, and are what decides. So a request whose needs our rows know (VCPU, memory, disk, passthrough devices by their
default class, a zone) is answered here: Placement is asked whether the best host has the traits (a yes holds for
some seconds) and aggregates, and for the claim, which checks amounts. Whatever is not certain is asked of Placement:
a class or a trait that only it knows, no host that passes, hosts that it refuses. So nothing is refused by this view,
and nothing chosen that Placement would have refused a few seconds before.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kilonova.clients.placement import PlacementClient
from kilonova.objects import RequestSpec
from kilonova.scheduler.claims import Claims
from kilonova.scheduler.columns import Mask
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look
from kilonova.scheduler.prefilters.compute_status import DISABLED
from kilonova.scheduler.prefilters.owner import OWNER
from kilonova.scheduler.query import Group, Query
from kilonova.scheduler.reservations import BELIEVED, Request
from kilonova.scheduler.snapshot import Snapshot

LOG = logging.getLogger(__name__)

# Hosts that Placement may refuse before it is asked for candidates: our view is behind then.
REFUSALS = 3
# From so many hosts on, those are dropped whose traits aren't believed any more.
MOST_BELIEVED = 10_000
# Hosts whose devices are looked at one by one before Placement is asked.
TRIES = 64
_PLAIN = frozenset(('VCPU', 'MEMORY_MB', 'DISK_GB'))


@dataclass(frozen=True)
class Need:
    """What one server of a request takes. ``zone``: aggregates of which the host is in one, of each set; ``devices``:
    {group: class of a device}."""

    amounts: dict[str, int]
    zone: tuple[frozenset[str], ...]
    devices: dict[str, str]

    def request(self, root: str, mappings: dict[str, list[str]]) -> Request:
        """The allocation of a host."""
        allocations: dict[str, Any] = {root: {'resources': dict(self.amounts)}}
        for suffix, name in self.devices.items():
            given = allocations.setdefault(mappings[suffix][0], {'resources': {}})['resources']
            given[name] = given.get(name, 0) + 1
        return {'allocations': allocations, 'mappings': {'': [root], **mappings}}


def need(spec: RequestSpec, query: Query) -> Need | None:
    """What our own view has to answer; None when it can't."""
    unnamed = query.unnamed
    if (query.root_required - {OWNER} or query.root_forbidden - {DISABLED} or query.same_subtree
            or unnamed.resources.keys() - _PLAIN or unnamed.required or unnamed.forbidden or unnamed.in_tree
            or unnamed.forbidden_aggregates or ('numa_topology' in spec and spec.numa_topology is not None)):
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


class Qualified:
    """Whether hosts have traits and aggregates in Placement; one for all selects. Many threads may use it."""

    def __init__(self, placement: PlacementClient) -> None:
        self._placement = placement
        # {(host, required, forbidden): until when, monotonic seconds}
        self._until: dict[tuple[str, frozenset[str], frozenset[str]], float] = {}

    def has(self, uuid: str, query: Query) -> bool:
        """One request at most. A yes is kept for BELIEVED seconds, as computes write these traits together with rows
        that each select reads; a no isn't, nor what is said of aggregates."""
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

    def _ask(self, uuid: str, query: Query) -> bool:
        return self._placement.qualifies(uuid, query.root_required, query.root_forbidden, query.unnamed.aggregates)


class OwnView:
    """``select.Offers`` of one select."""

    final = False
    most: int | None = TRIES
    refusals: int | None = REFUSALS
    tries = 1
    room = None
    late: Mask | None = None

    def __init__(self, snapshot: Snapshot, qualified: Qualified, spec: RequestSpec, asked: Need,
                 claims: Claims) -> None:
        self._snapshot, self._table = snapshot, snapshot.table
        self._qualified, self._spec, self._need, self._claims = qualified, spec, asked, claims

    @classmethod
    def of(cls, snapshot: Snapshot, qualified: Qualified, spec: RequestSpec, query: Query,
           claims: Claims) -> OwnView | None:
        """None: this request needs what our view doesn't know."""
        asked = need(spec, query)
        return None if asked is None else cls(snapshot, qualified, spec, asked, claims)

    def hosts(self) -> Mask:
        return self._table.usable(self._snapshot.cells.uuids())

    def masks(self, look: Look, first: bool) -> Iterator[tuple[str, Mask]]:
        yield 'free amounts', self._roomy()
        if first:
            able = ~self._table['disabled']
            for aggregates in self._need.zone:
                able &= look.named(self._snapshot.aggregates.hosts(aggregates))
            yield 'service and zone', able

    def candidates(self, host: HostState) -> list[Request] | None:
        return None

    def requests(self, place: int, host: HostState) -> list[Request] | None:
        """One, of what is free now; none where its devices don't do."""
        requests = self._spec.pci_requests if 'pci_requests' in self._spec else None
        mappings: dict[str, list[str]] = {}
        if requests is not None and requests.requests:
            pools = self._table.devices.pools(place)
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
        self._claims.check_time()
        if self._qualified.has(host.uuid, self._claims.query):
            return True
        LOG.debug('%(host)s lacks traits or aggregates in Placement', {'host': host})
        return False

    def _roomy(self) -> Mask:
        """Hosts that have the amounts by their rows; Placement may still have reserved some."""
        table, amounts = self._table, self._need.amounts
        found = table['ram_room_mb'] >= amounts.get('MEMORY_MB', 0)
        found &= table['disk_room_mb'] >= 1024 * amounts.get('DISK_GB', 0)
        return np.asarray(
            found & (table['vcpus_total'] * table['cpu_ratio'] - table['vcpus_used'] >= amounts.get('VCPU', 0)))
