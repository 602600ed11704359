"""Choose a host for each server of a request: filter and weigh all hosts at once, and claim the best one.

    with Select(snapshot, spec, filters, weighers, settings, offers, claims) as select:
        plan = select.plan(uuids)           # None: not enough hosts; the caller must release the claims that were made

``offers`` provides the hosts, and the allocation of a server on each of them: ``local_candidates.LocalCandidates``,
``candidates.PlacementCandidates`` or ``candidates.CurrentHost``. If a claim is refused, the next host is tried. Before
the claim, the host gets a reservation in the host table, so that other threads see its resources as used. When the
``with`` block ends, the reservations of servers without a confirmed claim are removed.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler import filters as filtering
from kilonova.scheduler import weighers as weighing
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.columns import Mask, Row, Values
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.reservations import Request, reserve
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.placement.claims import Claims
from kilonova.scheduler.placement.room import RemainingCapacity
from kilonova.scheduler.plan import Candidate, SelectionPlan
from kilonova.scheduler.plugins.guard import Guard

LOG = logging.getLogger(__name__)

NOT_ENOUGH = 'There are not enough hosts available.'
# Maximum number of hosts in a line of the DEBUG log.
SHOWN = 50
# Maximum seconds to wait for claims of other threads that may take the same resources. After that, claim anyway.
WAIT = 10.0


@dataclass(frozen=True)
class SelectSettings:
    """Options of one choice of hosts.

    ``alternates`` is the number of alternate hosts for each server. One of the best ``subset_size`` hosts is taken at
    random. With ``shuffle_best``, hosts of equal weight are in random order. ``trace`` records the steps.
    """

    alternates: int = 0
    subset_size: int = 1
    shuffle_best: bool = False
    trace: Trace | None = None


class Offers(Protocol):
    """The hosts that may take a server, and the allocation that a server gets on each host.

    Attributes:
        final: True if no other ``Offers`` are tried when these fail. The log then explains why no host was found.
        most: Maximum number of hosts that are tried, best first. None means all hosts.
        refusals: Maximum number of claims that Placement may refuse. After one more refusal no host is chosen. None
            means no maximum.
        tries: Maximum number of allocation requests of one host that are tried before the next host.
    """

    final: bool
    most: int | None
    refusals: int | None
    tries: int

    @property
    def room(self) -> RemainingCapacity | None:
        """Remaining capacity in Placement's answer, or None if no answer of Placement is used."""
        ...

    @property
    def late(self) -> Mask | None:
        """Boolean array that is True for hosts that have less priority than other hosts of the same weight.

        None means that there are no such hosts.
        """
        ...

    def hosts(self) -> Mask:
        """Return a boolean array that is True for the hosts that may take a server. The caller may change the array."""
        ...

    def masks(self, arrays: HostArrays, first: bool) -> Iterator[tuple[str, Mask]]:
        """Yield conditions that hosts must meet before the filters run, as (name of the condition, boolean array).

        The array is True for the hosts that meet the condition. ``first`` is True for the first server of the request.
        """
        ...

    def candidates(self, host: HostState) -> list[Request] | None:
        """Return the host's allocation requests, or None if Placement was not asked for candidates.

        Filters may remove some of these requests.
        """
        ...

    def requests(self, host_index: int, host: HostState) -> list[Request] | None:
        """Return the host's allocation requests, one of which is claimed for a server.

        None means that the server needs no allocation.
        """
        ...

    def qualifies(self, host: HostState) -> bool:
        """Return whether the host has the required traits and aggregates, which may take a query to Placement.

        Called before the claim, while the host table's lock is not held, so that no thread waits for the query.
        """
        ...


class Select:
    """One choice of hosts for the servers of a request. It is a context manager.

    At the end of the ``with`` block, it removes its reservations in the host table, except those of servers with a
    confirmed claim. If ``claims`` is None, it only tries which hosts fit: nothing is claimed, and the host table's lock
    is held in the whole block, so that other threads do not see the temporary reservations. If ``building`` is True,
    chosen servers count as builds in progress on their hosts.
    """

    def __init__(
        self,
        snapshot: HostSnapshot,
        spec: RequestSpec,
        filters: Sequence[Any],
        weighers: Sequence[Any],
        settings: SelectSettings,
        offers: Offers,
        claims: Claims | None = None,
        *,
        building: bool = True,
        rng: Any = random,
    ) -> None:
        self._snapshot, self._table, self._spec = snapshot, snapshot.table, spec
        self._filters, self._weighers, self._settings = filters, weighers, settings
        self._offers, self._claims, self._building, self._rng = offers, claims, building, rng
        self._arrays = HostArrays(snapshot)
        self._states: dict[int, HostState] = {}
        # Function that returns the servers of a host. All hosts share it, so that the servers' rows are read only once.
        self._servers_of = snapshot.servers.on()
        # Boolean array of the hosts that passed the filters for earlier servers of this request; None before the first.
        self._passed: Mask | None = None
        # Filters whose method ``mask`` may pass too many hosts. They check each host again before it is chosen.
        self._exact: list[filtering.BaseHostFilter] = []
        self._refused: set[int] = set()
        # Indexes, in the host table, of the hosts that passed the filters for the most recent server. Best host first.
        self._order: list[int] = []
        # Servers for which this object has made a reservation.
        self._made: list[str] = []
        # Servers with a confirmed claim, which keep their reservations after the ``with`` block.
        self._kept: Collection[str] = ()

    def __enter__(self) -> Self:
        if self._claims is None:
            self._table.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with self._table.lock:
                for uuid in self._made:
                    if uuid not in self._kept:
                        self._table.reservations.give_back(uuid)
        finally:
            if self._claims is None:
                self._table.lock.release()

    def plan(self, uuids: Sequence[str]) -> SelectionPlan | None:
        """Return a plan with a host for each server, or None if there are not enough hosts.

        If there are enough hosts, ``Claims.confirm`` checks whether the operations still need them, and may raise
        Cancelled or Unanswered. If the result is None, the caller must release the claims that were already written.
        """
        chosen: list[tuple[int | None, Candidate]] = []
        for index, uuid in enumerate(uuids):
            found = self._one(uuid, index)
            if found is None:
                if self._offers.final:
                    LOG.debug(
                        'There are %(hosts)d hosts available but %(num_instances)d instances requested to build.',
                        {'hosts': len(chosen), 'num_instances': len(uuids)},
                    )
                return None
            LOG.debug('Selected host: %(host)s', {'host': found[1].host})
            chosen.append(found)
            self._remember(uuid, found[1].host)
        choices = [choice for _, choice in chosen]
        others: list[list[Candidate]] = [[] for _ in choices]
        if self._settings.alternates:
            with self._table.lock:
                # Alternates need the order of the hosts. After several choices it may have changed: sort again.
                if len(uuids) > 1:
                    self._order = self._best(self._filter(len(uuids)))
                taken = {host_index for host_index, _ in chosen}
                others = [
                    list(itertools.islice(self._alternates(choice, taken), self._settings.alternates))
                    for choice in choices
                ]
        if self._claims is not None:
            self._kept = self._claims.confirm(uuids)
        return SelectionPlan(choices, others)

    # -- choice for one server -----------------------------------------------------------------------------------------
    def _one(self, uuid: str, index: int) -> tuple[int | None, Candidate] | None:
        # Filters of server groups read the server's uuid from the request.
        self._spec.instance_uuid = uuid
        tried = _Tried()
        with self._table.lock:
            self._order = self._best(self._filter(index))
            self._draw(self._order)
            left = deque(self._order)
            found = self._reserve(uuid, left, tried)
        while found is not None:
            host_index, host, request = found
            choice = self._claim(uuid, host, request)
            if choice is not None:
                self._states.pop(host_index, None)
                return (self._moved(uuid, choice) if choice.held else host_index), choice
            if self._settings.trace is not None:
                self._settings.trace.refuse(host.host)
            self._refused.add(host_index)
            with self._table.lock:
                self._table.reservations.give_back(uuid)
                if self._offers.refusals is not None and len(self._refused) > self._offers.refusals:
                    return None
                found = self._reserve(uuid, left, tried)
        held = self._claims.existing(uuid) if self._claims is not None and self._offers.final else None
        return None if held is None else (self._moved(uuid, held), held)

    def _reserve(self, uuid: str, order: deque[int], tried: _Tried) -> tuple[int, HostState, Request | None] | None:
        """Reserve resources for the server on the next host that fits.

        Return (index of the host, HostState, allocation request), or None if no host is left. The allocation request is
        None if no allocation is needed. Hosts without a fitting request are removed from ``order``. If each fitting
        request of a host needs resources that claims of other threads may take, wait until these claims end, up to WAIT
        seconds in total.
        """
        until = time.monotonic() + WAIT
        while order:
            host_index = order[0]
            host = self._state(host_index)
            requests = self._requests(host_index, host) if host is not None else []
            if host is not None and requests is None:
                return host_index, host, None
            room = self._offers.room
            fitting = [one for one in requests or () if room is None or room.fits(one)]
            if not fitting and host is not None and not tried.of(host_index):
                LOG.debug('Skipping host %s: it has no allocation request that still fits', host)
            left = tried.others(host_index, fitting, self._offers.tries)
            request = next((one for one in left if room is None or not room.contested(one)), None)
            if host is None or not left:
                order.popleft()
                continue
            if request is None:
                if self._table.reservations.wait(until - time.monotonic()):
                    continue
                request = left[0]
            tried.add(host_index, request)
            self._table.reservations.take(
                uuid, reserve(host_index, self._spec, request, host.topology_of(self._spec, request), self._building)
            )
            self._made.append(uuid)
            return host_index, host, request
        return None

    def _requests(self, host_index: int, host: HostState) -> list[Request] | None:
        """Return the host's allocation requests, one of which is claimed for a server.

        None means that the server needs no allocation. The list is empty if the host does not pass the filters whose
        ``mask`` may pass too many hosts, and which therefore check the host again here.
        """
        if host.allocation_candidates is not None:
            for one in self._exact:
                passes, guard = False, Guard('Filter', one, self._spec)
                with guard:
                    passes = one.host_passes(host, self._spec)
                guard.report()
                if not passes:
                    return []
        return self._offers.requests(host_index, host)

    def _claim(self, uuid: str, host: HostState, request: Request | None) -> Candidate | None:
        if request is None:
            return Candidate(host)
        choice: Candidate | None = Candidate(host, request)
        if self._claims is not None:
            choice = self._claims.claim(uuid, host, request) if self._offers.qualifies(host) else None
        if choice is not None and not choice.held:
            with self._table.lock:
                self._table.reservations.made(uuid)
        return choice

    def _moved(self, uuid: str, choice: Candidate) -> int | None:
        """Replace the server's reservation by one on the host where the server already has an allocation.

        ``choice`` is this host and the allocation, which an earlier call of ``select_destinations`` wrote. Return the
        host's index, or None if the host is not in the host table.
        """
        assert choice.request is not None
        with self._table.lock:
            host_index = self._table.places.of(choice.host.uuid)
            self._table.reservations.give_back(uuid)
            if host_index is not None:
                self._table.reservations.take(
                    uuid,
                    reserve(
                        host_index,
                        self._spec,
                        choice.request,
                        choice.host.topology_of(self._spec, choice.request),
                        self._building,
                    ),
                )
                # Placement's answer already counts this existing allocation, so do not subtract it again.
                # With time 0 the allocation is older than the answer. Only newer claims are subtracted from the answer.
                self._table.reservations.made(uuid, 0.0)
                self._made.append(uuid)
            self._states.pop(host_index if host_index is not None else -1, None)
        return host_index

    def _remember(self, uuid: str, host: HostState) -> None:
        group = self._spec.instance_group if 'instance_group' in self._spec else None
        if group is not None:
            # The filters for the next server of the request must count this server as a member of the group.
            group.put(uuid, host.host)

    def _alternates(self, choice: Candidate, taken: Collection[int | None]) -> Iterator[Candidate]:
        """Yield further hosts of the same cell that were not chosen for any server of this request."""
        for host_index in self._order:
            host = self._state(host_index) if host_index not in taken else None
            if host is not None and host.cell_uuid == choice.host.cell_uuid:
                requests, room = self._requests(host_index, host), self._offers.room
                if requests is None:
                    yield Candidate(host)
                else:
                    fitting = (Candidate(host, one) for one in requests if room is None or room.fits(one))
                    yield from itertools.islice(fitting, 1)

    def _state(self, host_index: int) -> HostState | None:
        state = self._states.get(host_index)
        if state is None:
            state = self._snapshot.state(host_index, self._servers_of, self._offers.candidates, self._arrays)
            if state is not None:
                self._states[host_index] = state
        return state

    # -- filters and weights -------------------------------------------------------------------------------------------
    def _best(self, passing: Mask) -> list[int]:
        """Return the indexes of the hosts with the highest weights, best first.

        ``passing`` is True for the hosts that passed all filters; only these hosts are weighed.
        """
        places = np.flatnonzero(passing)
        if self._offers.late is not None:
            places = places[np.argsort(self._offers.late[places], kind='stable')]
        if not len(places):
            return []
        weights = self._weigh(places)
        weighable = weights > -np.inf
        if not weighable.any():
            LOG.info('None of %d hosts has a valid weight, so no host is chosen', len(places))
        places, weights, count = places[weighable], weights[weighable], self._offers.most
        if count is not None and len(places) > count:
            # Keep the best ``count`` hosts, and also all hosts with the same weight as the last of the best hosts.
            # Among hosts with equal weights, the sort after this block decides which hosts are used.
            least = np.partition(weights, len(weights) - count)[len(weights) - count]
            places, weights = places[weights >= least], weights[weights >= least]
        if self._settings.shuffle_best:
            mixed = list(range(len(places)))
            self._rng.shuffle(mixed)
            places, weights = places[mixed], weights[mixed]
        order = np.argsort(-weights, kind='stable')[:count]
        if self._settings.trace is not None:
            self._settings.trace.weighed(self._table, places[order], weights[order])
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(
                'Weighed %(hosts)s',
                {
                    'hosts': [
                        weighing.WeighedHost(self._state(int(places[at])), float(weights[at])) for at in order[:SHOWN]
                    ]
                },
            )
        return [int(host_index) for host_index in places[order]]

    def _draw(self, order: list[int]) -> None:
        """Move one of the first ``subset_size`` hosts in ``order``, chosen at random, to the front."""
        if self._settings.subset_size > 1 and order:
            order.insert(0, order.pop(self._rng.randrange(min(self._settings.subset_size, len(order)))))

    def _filter(self, index: int) -> Mask:
        first = self._passed is None
        self._arrays.forget()
        # Only the filters of the first server of a request are recorded.
        steps = _Steps(self, self._settings.trace if first else None)
        passing = self._offers.hosts() if self._passed is None else self._passed.copy()
        passing, forced = self._named(passing)
        steps.start(passing)
        for name, mask in self._offers.masks(self._arrays, first):
            passing = steps.took(name, passing, passing & mask)
        if not forced:
            passing = self._run_filters(index, passing, steps)
        self._passed = passing.copy()
        if self._offers.refusals is not None:
            passing[list(self._refused)] = False
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(
                'Filtered %(hosts)s',
                {'hosts': [self._state(int(host_index)) for host_index in np.flatnonzero(passing)[:SHOWN]]},
            )
        return passing

    def _run_filters(self, index: int, passing: Mask, steps: _Steps) -> Mask:
        """Return a boolean array that is True for the hosts that pass all filters.

        Filters that check all hosts at once run first. The other filters run afterwards, only for the hosts that are
        left.
        """
        single: list[Any] = []
        self._exact = []
        for one in self._filters:
            guard = Guard('Filter', one, self._spec)
            if not guard.call(one.run_filter_for_index, index, default=True):
                continue
            mask = filtering.mask_of(one, self._arrays, self._spec, guard)
            guard.report()
            if mask is filtering.PER_HOST:
                single.append(one)
                continue
            if getattr(one, 'at_most', False):
                self._exact.append(one)
            passing = steps.took(type(one).__name__, passing, passing if mask is None else passing & mask)
        while single and passing.any():
            one = single.pop(0)
            places = [
                host_index for host_index in np.flatnonzero(passing).tolist() if self._state(host_index) is not None
            ]
            guard = Guard('Filter', one, self._spec)
            kept = filtering.passing(one, [self._states[host_index] for host_index in places], self._spec, guard)
            guard.report()
            if kept is None:
                LOG.debug('Filter %s says to stop filtering', type(one).__name__)
                return passing & False
            left = {id(state) for state in kept}
            passing = steps.took(
                type(one).__name__,
                passing,
                self._table.places.mask([host_index for host_index in places if id(self._states[host_index]) in left]),
            )
        return passing

    def _named(self, passing: Mask) -> tuple[Mask, bool]:
        """Restrict the boolean array ``passing`` to hosts that the request names, and exclude its ``ignore_hosts``.

        Return (the new array, whether the request forces hosts by ``force_hosts`` or ``force_nodes``). Filters do not
        run for forced hosts. They do run for the host of a ``requested_destination``.
        """
        ignored = {name.lower() for name in self._names('ignore_hosts')}
        if ignored:
            left = self._only(passing, lambda node: node['host'].lower() not in ignored)
            if (dropped := passing & ~left).any():
                LOG.info('Host filter ignoring hosts: %s', ', '.join(sorted(set(self._hosts(dropped)))))
            passing = left
        passing = self._requested(passing)
        forced = False
        for name, column, what in (('force_hosts', 'host', 'hosts'), ('force_nodes', 'hypervisor_hostname', 'nodes')):
            names = self._names(name)
            if not names:
                continue
            forced, wanted = True, {one.lower() for one in names}
            passing = self._table.places.mask(
                [
                    host_index
                    for host_index in np.flatnonzero(passing).tolist()
                    if self._table.row(host_index)[column].lower() in wanted
                ]
            )
            if passing.any():
                LOG.info('Host filter forcing available %s to %s', what, ', '.join(self._hosts(passing, column)))
            else:
                LOG.info("No hosts matched due to not matching '%s' value of '%s'", name, ', '.join(names))
        if filtering.is_forced_move(self._spec):
            passing = passing & self._table['up']
        return passing, forced

    def _requested(self, passing: Mask) -> Mask:
        destination = self._spec.requested_destination if 'requested_destination' in self._spec else None
        host = destination.host if destination is not None and 'host' in destination else None
        node = destination.node if destination is not None and 'node' in destination else None
        if not host and not node:
            return passing
        LOG.info('Host filter only checking host %(host)s and node %(node)s', {'host': host, 'node': node})
        found = self._only(
            passing,
            lambda row: (
                (not host or row['host'].lower() == host.lower())
                and (not node or row['hypervisor_hostname'].lower() == node.lower())
            ),
        )
        if not found.any():
            LOG.info(
                'No hosts matched due to not matching requested destination (%(host)s, %(node)s)',
                {'host': host, 'node': node},
            )
        return found

    def _names(self, name: str) -> list[str]:
        return list((getattr(self._spec, name) if name in self._spec else None) or ())

    def _only(self, passing: Mask, wanted: Callable[[Row], bool]) -> Mask:
        return self._table.places.mask(
            [host_index for host_index in np.flatnonzero(passing).tolist() if wanted(self._table.row(host_index))]
        )

    def _hosts(self, mask: Mask, column: str = 'host') -> list[str]:
        return [self._table.row(host_index)[column] for host_index in np.flatnonzero(mask).tolist()]

    def _weigh(self, places: NDArray[np.int64]) -> Values:
        """Return the weights of the hosts at these indexes. A host for which a weigher raised an error gets -inf."""
        total = np.zeros(len(places))
        if len(places) < 2:
            return total
        for weigher in self._weighers:
            guard = Guard('Weigher', weigher, self._spec)
            multiplier = self._multiplier(weigher, places, guard)
            if np.any(multiplier):
                form = weighing.array_form(weigher)
                values = guard.call(form, self._arrays, self._spec, default=weighing.LOOP) if form else weighing.LOOP
                if values is weighing.LOOP:
                    values = np.asarray(
                        weighing.values_of(
                            weigher,
                            [weighing.WeighedHost(self._state(int(host_index))) for host_index in places],
                            self._spec,
                            guard,
                        )
                    )
                else:
                    values = values[places]
                total += _weights(values, multiplier, weigher)
            guard.report()
        return total

    def _multiplier(self, weigher: Any, places: NDArray[np.int64], guard: Guard) -> Any:
        """Return the weigher's multiplier: one number for all hosts, or an array with one number for each host.

        The result is an array if aggregates set the multiplier in their metadata, or if the weigher's class overrides
        ``weight_multiplier``. ``places`` are the indexes of the hosts.
        """
        if type(weigher).weight_multiplier is not weighing.BaseHostWeigher.weight_multiplier:
            return np.asarray(
                weighing.multipliers_of(weigher, [self._state(int(host_index)) for host_index in places], guard)
            )
        if weigher.multiplier is None:
            return 1.0
        configured = weigher.configured_multiplier()
        overridden = self._snapshot.aggregates.overridden(weigher.multiplier)
        if not overridden:
            return configured
        others = self._table.places.named(overridden)
        return np.asarray(
            [
                weigher.weight_multiplier(self._state(int(host_index))) if int(host_index) in others else configured
                for host_index in places
            ]
        )


class _Tried:
    """The allocation requests that the scheduler has already tried to claim on each host, for one server."""

    def __init__(self) -> None:
        self._of: dict[int, list[Request]] = {}

    def of(self, host_index: int) -> list[Request]:
        return self._of.get(host_index, [])

    def add(self, host_index: int, request: Request) -> None:
        self._of.setdefault(host_index, []).append(request)

    def others(self, host_index: int, requests: Sequence[Request], most: int) -> list[Request]:
        """Return the entries of ``requests`` that were not tried on the host at index ``host_index``.

        Return an empty list if ``most`` requests of the host were already tried.
        """
        tried = self.of(host_index)
        return [] if len(tried) >= most else [one for one in requests if not any(one is other for other in tried)]


class _Steps:
    """Writes the result of each filter to the log and to the Trace of the choice, if the choice is traced."""

    def __init__(self, select: Select, trace: Trace | None) -> None:
        self._table, self._trace = select._table, trace  # noqa: SLF001 - the same module
        self._spec, self._final = select._spec, select._offers.final  # noqa: SLF001
        self._short: list[str] = []
        self._left: list[tuple[str, Mask]] = []
        self._before = 0

    def start(self, passing: Mask) -> None:
        self._before = int(np.count_nonzero(passing))
        LOG.debug('Starting with %d host(s)', self._before)
        if self._trace is not None:
            self._trace.start(self._before)

    def took(self, name: str, before: Mask, after: Mask) -> Mask:
        """Record which hosts a filter received and passed, and return ``after``, which is True for the passed hosts."""
        if self._trace is not None:
            self._trace.masked(name, self._table, before, after)
        count = int(np.count_nonzero(after))
        if not self._before:
            return after
        self._short.append(f'{name}: (start: {self._before}, end: {count})')
        self._left.append((name, after))
        self._before = count
        if count or not self._final:
            LOG.debug('Filter %(name)s returned %(count)d host(s)', {'name': name, 'count': count})
        else:
            LOG.info('Filter %s returned 0 hosts', name)
            self._nothing_left()
        return after

    def _nothing_left(self) -> None:
        message = "Filtering removed all hosts for the request with instance ID '%(uuid)s'. Filter results: %(results)s"
        uuid = self._spec.instance_uuid if 'instance_uuid' in self._spec else None
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(
                message,
                {
                    'uuid': uuid,
                    'results': [
                        (
                            name,
                            [
                                (row['host'], row['hypervisor_hostname'])
                                for row in map(self._table.row, np.flatnonzero(left).tolist())
                            ],
                        )
                        for name, left in self._left
                    ],
                },
                instance_uuid=uuid,
            )
        LOG.info(message, {'uuid': uuid, 'results': self._short}, instance_uuid=uuid)


def _weights(values: Values, multiplier: Any, weigher: Any) -> Values:
    """Return the number that a weigher adds to each host's weight, or -inf for a host without a valid value."""
    good = ~np.isnan(values + multiplier)
    if good.all():
        answer: Values = weighing.normalize(values, weigher.minval, weigher.maxval) * multiplier
        return answer
    found = np.full(len(values), -np.inf)
    if good.any():
        found[good] = (
            weighing.normalize(values[good], weigher.minval, weigher.maxval)
            * np.broadcast_to(multiplier, good.shape)[good]
        )
    return found
