"""Choose from our own view and ask Placement only about the host that is chosen.

    plan = Direct(snapshot, placement, filters, weighers).select(spec, query, uuids, claims, settings)
    if plan is None: …                      # ask Placement for candidates

Placement needs longer for its candidates the more hosts there are; a look at one host and a claim take the same time
always, and are what decides. So a request whose needs our rows know (VCPU, memory, disk, passthrough devices by their
default class, a zone) is answered here: filters and weighers over all hosts at once, then Placement is asked whether
the best one has the traits and aggregates, and for the claim, which checks amounts. Whatever is not certain gives None:
a class or a trait that only Placement knows, no host that passes, hosts that Placement refuses. So nothing is refused
here, and nothing is chosen that Placement would have refused.
"""
from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kilonova import errors
from kilonova.clients.placement import PlacementClient, PlacementInvalid, is_consumer_conflict
from kilonova.pci.request import as_list, group_name
from kilonova.scheduler import filters as filtering
from kilonova.scheduler import weighers as weighing
from kilonova.scheduler.claims import Claims
from kilonova.scheduler.guard import Guard
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.prefilters.compute_status import DISABLED
from kilonova.scheduler.prefilters.owner import OWNER
from kilonova.scheduler.query import Group, Query, Spec
from kilonova.scheduler.room import Request
from kilonova.scheduler.select import Choice, Plan, Settings
from kilonova.scheduler.snapshot import Snapshot
from kilonova.scheduler.table import Mask, Taken, Values
from kilonova.virt.hardware.constraints import shared_cpus

LOG = logging.getLogger(__name__)

# Hosts that Placement may refuse before it is asked for candidates: our view is behind then.
REFUSALS = 3
# Hosts whose devices are looked at one by one before Placement is asked.
TRIES = 64
# Hosts that a DEBUG line names.
SHOWN = 50
_PLAIN = frozenset(('VCPU', 'MEMORY_MB', 'DISK_GB'))


class Look:
    """What ``mask`` and ``values`` see: the table, where servers are, which hosts a name or an aggregate means."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.table = snapshot, snapshot.table
        self._hosts_of: dict[str, tuple[str, str | None] | None] = {}

    def learn(self, uuids: Collection[str]) -> None:
        """Ask where these servers are, all at once."""
        missing = [uuid for uuid in uuids if uuid not in self._hosts_of]
        if missing:
            found = self.snapshot.hosts_of(missing)
            self._hosts_of.update({uuid: found.get(uuid) for uuid in missing})

    def counts(self, uuids: Collection[str]) -> Values:
        """How many of these servers each host has, those counted that were just sent there."""
        self.learn(uuids)
        found = np.zeros(len(self.table['live']))
        for uuid in uuids:
            at = self._hosts_of[uuid]
            places = self.table.places_named([at[0]]) if at is not None else self.table.sent_to(uuid)
            for place in places:
                if at is None or at[1] in (None, self.table.node(place)[1]['hypervisor_hostname']):
                    found[place] += 1
        return found

    def having(self, uuids: Collection[str]) -> Mask:
        """Hosts that have one of these servers."""
        return self.counts(uuids) > 0

    def members(self, group: Any, but: str | None = None) -> Values:
        """How many servers of a group each host has by ``InstanceGroup.places``, ``but`` not counted."""
        found = np.zeros(len(self.table['live']))
        for server, hosts in (group.places or {}).items():
            if server != but:
                found[list(self.table.places_named(hosts))] += 1
        return found

    def by_aggregates(self, answer: Callable[[list[Mapping[str, str]]], Any], kind: Any = np.bool_) -> Any:
        """An array of ``answer(metadata of the host's aggregates)``, asked once for hosts of the same aggregates."""
        found = np.full(len(self.table['live']), answer([]), kind)
        hosts: dict[tuple[int, ...], list[str]] = {}
        metadata: dict[tuple[int, ...], list[Any]] = {}
        for host, of_host in self.snapshot.metadata_of_hosts().items():
            key = tuple(map(id, of_host))
            hosts.setdefault(key, []).append(host)
            metadata[key] = of_host
        for key, names in hosts.items():
            found[list(self.table.places_named(names))] = answer(metadata[key])
        return found

    def named(self, hosts: Iterable[str]) -> Mask:
        """The hosts of these names."""
        found = np.zeros(len(self.table['live']), np.bool_)
        found[list(self.table.places_named(hosts))] = True
        return found


@dataclass(frozen=True)
class _Need:
    """What one server of the request takes."""

    amounts: dict[str, int]
    zone: tuple[frozenset[str], ...]
    devices: dict[str, str]
    spec: Spec

    def request(self, root: str, mappings: dict[str, list[str]]) -> Request:
        """The allocation of a host."""
        allocations: dict[str, Any] = {root: {'resources': dict(self.amounts)}}
        for suffix, name in self.devices.items():
            given = allocations.setdefault(mappings[suffix][0], {'resources': {}})['resources']
            given[name] = given.get(name, 0) + 1
        return {'allocations': allocations, 'mappings': {'': [root], **mappings}}

    def taken(self, place: int, request: Request) -> Taken:
        """The same as the table counts it."""
        spec = self.spec
        devices = Counter(rp for suffix in self.devices for rp in request['mappings'][suffix])
        return Taken(place, spec.vcpus, spec.memory_mb, (spec.root_gb + spec.ephemeral_gb) * 1024 + (spec.swap or 0),
                     devices, requests=_unmapped(spec, request['mappings']))


def need(spec: Spec, query: Query) -> _Need | None:
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
    return _Need(dict(unnamed.resources), tuple(frozenset(ids) for ids in unnamed.aggregates), devices, spec)


class Direct:
    """One a scheduler."""

    def __init__(self, snapshot: Snapshot, placement: PlacementClient, filters: Sequence[Any],
                 weighers: Sequence[Any], rng: Any = random) -> None:
        self._snapshot, self._placement, self._rng = snapshot, placement, rng
        self._filters, self._weighers = filters, weighers

    def select(self, spec: Spec, query: Query, uuids: Sequence[str], claims: Claims, settings: Settings) -> Plan | None:
        """A plan for all servers, each claimed; None, with nothing claimed: ask Placement for candidates. Unanswered:
        Placement or a database is silent, or the time is over; Cancelled: nobody waits for the answer.

        The snapshot was refreshed for this request, and every cell answered.
        """
        asked = need(spec, query)
        if asked is None or not uuids:
            return None
        run = _Run(self, asked, claims, settings)
        kept: Collection[str] = ()
        try:
            plan = run.all(uuids)
            if plan is None:
                claims.give_back()
            else:
                kept = claims.confirm(uuids)
            return plan
        finally:
            run.forget(but=kept)


class _Run:
    """One select."""

    def __init__(self, direct: Direct, asked: _Need, claims: Claims, settings: Settings) -> None:
        self._snapshot, self._table = direct._snapshot, direct._snapshot.table  # noqa: SLF001 - the same module
        self._filters, self._weighers = direct._filters, direct._weighers  # noqa: SLF001
        self._rng, self._placement = direct._rng, direct._placement  # noqa: SLF001
        self._need, self._claims, self._settings = asked, claims, settings
        self._look = Look(self._snapshot)
        self._states: dict[int, HostState] = {}
        # Shared by all hosts: whoever asks for servers reads them once.
        self._servers_of = self._snapshot.servers_of()
        self._passed: Mask | None = None
        self._refused: set[int] = set()
        self._made: list[str] = []
        # What the last choice was made from, best first.
        self._order: list[int] = []

    def all(self, uuids: Sequence[str]) -> Plan | None:
        choices: list[tuple[int, Choice]] = []
        for index, uuid in enumerate(uuids):
            chosen = self._one(uuid, index)
            if chosen is None:
                return None
            choices.append(chosen)
            self._remember(uuid, chosen[1].host)
        if not self._settings.alternates:
            return Plan([choice for _, choice in choices], [[] for _ in choices])
        taken = {place for place, _ in choices}
        with self._table.lock:
            # What the only server takes changes nothing for the other hosts.
            order = self._order if len(uuids) == 1 else self._best(len(uuids), TRIES)
            others = [self._alternates(choice, order, taken) for _, choice in choices]
        return Plan([choice for _, choice in choices], others)

    def forget(self, but: Collection[str]) -> None:
        """No longer count what was chosen for servers that get nothing here."""
        with self._table.lock:
            for uuid in self._made:
                if uuid not in but:
                    self._table.give_back(uuid)

    def _one(self, uuid: str, index: int) -> tuple[int, Choice] | None:
        # Filters of server groups ask which of the servers it is.
        self._need.spec.instance_uuid = uuid
        while len(self._refused) <= REFUSALS:
            with self._table.lock:
                found = self._first(index)
                if found is None:
                    return None
                place, request = found
                host = self._state(place)
                # Counted before the claim: whoever chooses meanwhile sees it gone.
                self._table.take(uuid, self._need.taken(place, request))
                self._made.append(uuid)
            if host is None:
                return None
            LOG.debug('Selected host: %(host)s', {'host': host})
            choice = self._claim(uuid, host, request)
            if choice is not None:
                return self._found(uuid, choice) if choice.held else place, choice
            self._refused.add(place)
            if self._settings.trace is not None:
                self._settings.trace.refuse(host.host)
            with self._table.lock:
                self._table.give_back(uuid)
        return None

    def _found(self, uuid: str, choice: Choice) -> int:
        """Where an earlier select's choice is: counted there, and not where this one wanted to go. -1: unknown."""
        assert choice.request is not None
        with self._table.lock:
            place = self._table.place(choice.host.uuid)
            if place is None:
                self._table.give_back(uuid)
                return -1
            self._table.take(uuid, self._need.taken(place, choice.request))
        return place

    def _claim(self, uuid: str, host: HostState, request: Request) -> Choice | None:
        self._claims.check_time()
        query = self._claims.query
        try:
            if not self._placement.qualifies(host.uuid, query.root_required, query.root_forbidden,
                                             query.unnamed.aggregates):
                LOG.debug('%(host)s lacks traits or aggregates in Placement', {'host': host})
                return None
            self._claims.put(uuid, request)
        except errors.PlacementConflict as error:
            if is_consumer_conflict(error):
                return self._claims.existing(uuid)
            LOG.debug('Unable to claim %(request)s on %(host)s: %(error)s',
                      {'request': request, 'host': host, 'error': error})
            return None
        except PlacementInvalid as error:
            LOG.warning('Placement refuses an allocation on %(host)s: %(error)s', {'host': host, 'error': error})
            return None
        return Choice(host, request)

    def _remember(self, uuid: str, host: HostState) -> None:
        group = self._need.spec.instance_group if 'instance_group' in self._need.spec else None
        if group is not None:
            # The next server of the request is to see this one.
            group.put(uuid, host.host)

    def _first(self, index: int) -> tuple[int, Request] | None:
        order = self._best(index, TRIES)
        if self._settings.subset_size > 1 and order:
            pick = self._rng.randrange(min(self._settings.subset_size, len(order)))
            order = [order[pick], *order[:pick], *order[pick + 1:]]
        self._order = order
        for place in order:
            request = self._compose(place)
            if request is not None:
                return place, request
        return None

    def _compose(self, place: int) -> Request | None:
        """The allocation request of a host; None: its devices don't do."""
        spec = self._need.spec
        requests = spec.pci_requests if 'pci_requests' in spec else None
        mappings: dict[str, list[str]] = {}
        if requests is not None and requests.requests:
            pools = self._table.pools(place)
            if not self._need.devices:
                return self._plain(place) if pools.support_requests(requests) else None
            found = pools.providers(requests)
            if found is None or found.keys() != self._need.devices.keys():
                return None
            mappings = found
        return self._need.request(self._table.node(place)[1]['uuid'], mappings)

    def _plain(self, place: int) -> Request:
        return self._need.request(self._table.node(place)[1]['uuid'], {})

    def _alternates(self, choice: Choice, order: list[int], taken: set[int]) -> list[Choice]:
        found: list[Choice] = []
        for place in order:
            if len(found) == self._settings.alternates:
                break
            host = self._state(place) if place not in taken else None
            if host is None or host.cell_uuid != choice.host.cell_uuid:
                continue
            request = self._compose(place)
            if request is not None:
                found.append(Choice(host, request))
        return found

    def _state(self, place: int) -> HostState | None:
        if place not in self._states:
            state = self._snapshot.state(place, self._servers_of)
            if state is None:
                return None
            state.allocation_candidates = None
            self._states[place] = state
        return self._states[place]

    # -- filter and weigh ----------------------------------------------------------------------------------------------
    def _best(self, index: int, count: int) -> list[int]:
        """The places of the ``count`` best hosts that pass, best first."""
        passing = self._filter(index)
        places = np.flatnonzero(passing)
        if not len(places):
            return []
        weights = self._weigh(places)
        weighable = weights > -np.inf
        places, weights = places[weighable], weights[weighable]
        if len(places) > count:
            # Those of the least weight that still counts in the order of their places, like all of equal weight.
            least = np.partition(weights, len(weights) - count)[len(weights) - count]
            keep = weights >= least
            places, weights = places[keep], weights[keep]
        if self._settings.shuffle_best:
            mixed = list(range(len(places)))
            self._rng.shuffle(mixed)
            places, weights = places[mixed], weights[mixed]
        order = np.argsort(-weights, kind='stable')[:count]
        if self._settings.trace is not None:
            self._settings.trace.weighed_places(self._table, places[order], weights[order])
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug('Weighed %(hosts)s', {'hosts': [
                weighing.WeighedHost(self._state(int(places[at])), float(weights[at])) for at in order[:SHOWN]]})
        return [int(place) for place in places[order]]

    def _filter(self, index: int) -> Mask:
        table, spec = self._table, self._need.spec
        passing = table.usable(self._snapshot.cells) if self._passed is None else self._passed.copy()
        # What the first server of a request meets stands for all.
        trace = self._settings.trace if self._passed is None else None
        before = passing.copy() if trace is not None else passing
        passing &= self._roomy()
        if trace is not None:
            trace.masked('free amounts', table, before, passing)
            before = passing.copy()
        if self._passed is None:
            passing &= ~table['disabled']
            for aggregates in self._need.zone:
                passing &= self._look.named(self._snapshot.aggregate_hosts(aggregates))
        if trace is not None:
            trace.masked('service and zone', table, before, passing)
        LOG.debug('Starting with %d host(s)', int(passing.sum()))
        foreign = []
        for one in self._filters:
            guard = Guard('Filter', one, spec)
            if not guard.call(one.run_filter_for_index, index, default=True):
                continue
            form = filtering.array_form(one)
            mask = guard.call(form, self._look, spec, default=filtering.LOOP) if form else filtering.LOOP
            guard.report()
            if mask is filtering.LOOP:
                foreign.append(one)
            elif mask is not None:
                if trace is not None:
                    trace.masked(type(one).__name__, table, passing, passing & mask)
                passing &= mask
                LOG.debug('Filter %(name)s returned %(count)d host(s)',
                          {'name': type(one).__name__, 'count': int(passing.sum())})
        if foreign:
            states = [state for state in map(self._state, np.flatnonzero(passing).tolist()) if state is not None]
            kept = {state.uuid for state in filtering.run(
                foreign, states, spec, index, trace.listed if trace is not None else None)}
            passing &= False
            passing[[place for place, state in self._states.items() if state.uuid in kept]] = True
        self._passed = passing.copy()
        passing[list(self._refused)] = False
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug('Filtered %(hosts)s', {'hosts': [
                self._state(int(place)) for place in np.flatnonzero(passing)[:SHOWN]]})
        return passing

    def _roomy(self) -> Mask:
        """Hosts that have the amounts by their rows; Placement may still have reserved some."""
        table, amounts = self._table, self._need.amounts
        found = table['ram_room_mb'] >= amounts.get('MEMORY_MB', 0)
        found &= table['disk_room_mb'] >= 1024 * amounts.get('DISK_GB', 0)
        return found & (table['vcpus_total'] * table['cpu_ratio'] - table['vcpus_used'] >= amounts.get('VCPU', 0))

    def _weigh(self, places: Any) -> Values:
        """The hosts' weights; -inf for those for which a weigher raises."""
        total = np.zeros(len(places))
        if len(places) < 2:
            return total
        states: list[Any] | None = None
        for weigher in self._weighers:
            guard = Guard('Weigher', weigher, self._need.spec)
            multiplier = self._multiplier(weigher, places, guard)
            if np.any(multiplier):
                form = weighing.array_form(weigher)
                values = guard.call(form, self._look, self._need.spec, default=weighing.LOOP) if form else weighing.LOOP
                if values is weighing.LOOP:
                    if states is None:
                        states = [weighing.WeighedHost(self._state(int(place))) for place in places]
                    values = np.asarray(weighing.values_of(weigher, states, self._need.spec, guard), np.float64)
                else:
                    values = values[places]
                total += _weights(values, multiplier, weigher)
            guard.report()
        return total

    def _multiplier(self, weigher: Any, places: Any, guard: Guard) -> Any:
        """One number for all hosts, or an array where aggregates or the weigher itself say otherwise."""
        if type(weigher).weight_multiplier is not weighing.BaseHostWeigher.weight_multiplier:
            return np.asarray(weighing.multipliers_of(
                weigher, [self._state(int(place)) for place in places], guard))
        if weigher.multiplier is None:
            return 1.0
        configured = weigher.configured_multiplier()
        overridden = self._snapshot.overridden(weigher.multiplier)
        if not overridden:
            return configured
        others = self._table.places_named(overridden)
        return np.asarray([weigher.weight_multiplier(self._state(int(place))) if int(place) in others else configured
                           for place in places])


def _weights(values: Values, multiplier: Any, weigher: Any) -> Values:
    """What a weigher adds to each host's weight; -inf where it gave no number."""
    good = ~np.isnan(values + multiplier)
    if good.all():
        return _normalized(values, weigher.minval, weigher.maxval) * multiplier
    found = np.full(len(values), -np.inf)
    if good.any():
        found[good] = _normalized(values[good], weigher.minval, weigher.maxval) * np.broadcast_to(
            multiplier, good.shape)[good]
    return found


def _normalized(values: Values, minval: float | None, maxval: float | None) -> Values:
    low = values.min() if minval is None else min(minval, values.min())
    high = values.max() if maxval is None else max(maxval, values.max())
    return (values - low) / (high - low) if high != low else np.zeros(len(values))


def claimed(table: Any, spec: Spec, plan: Plan, uuids: Sequence[str], kept: Collection[str]) -> None:
    """Count what a plan that Placement answered gives away, as ours does while it chooses; ``kept``: the servers that
    get it."""
    with table.lock:
        for uuid, choice in zip(uuids, plan.choices, strict=True):
            place = table.place(choice.host.uuid)
            if place is None or choice.request is None or uuid not in kept:
                continue
            devices = Counter(rp for suffix, rps in choice.request['mappings'].items() if suffix for rp in rps)
            wanted = spec.numa_topology if 'numa_topology' in spec else None
            table.take(uuid, Taken(place, shared_cpus(spec, wanted), spec.memory_mb,
                                   (spec.root_gb + spec.ephemeral_gb) * 1024 + (spec.swap or 0), devices,
                                   time.monotonic(), choice.host.placed.get(uuid),
                                   _unmapped(spec, choice.request['mappings'])))


def _unmapped(spec: Spec, mappings: Mapping[str, Sequence[str]]) -> tuple[Any, ...]:
    """The PCI requests whose devices are none of Placement's."""
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return tuple(one for one in as_list(requests) if group_name(one.request_id, 0) not in mappings)
