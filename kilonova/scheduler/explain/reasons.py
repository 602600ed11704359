"""Explain why no host takes a request: in one sentence for its user, and for each host for administrators.

    report = explain(snapshot, placement, spec, query, filters, offered=…, servers=1)
    raise NoValidHost(reason=report.text())
    # 12 hosts considered: 9 have fewer than 2 free a100 (best: 1 free), 2 disabled, 1 wrong availability zone.

The report is computed only after a refusal, so that other requests are not slowed down. Reasons are first searched in
the data that the scheduler has already: its table of hosts and Placement's answer. For hosts for which this finds no
reason, slow filters are run, which check one host at a time, and Placement is queried again. The user's sentence names
no host.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oslo_log import log as logging

from kilonova import errors
from kilonova.clients.placement import PlacementClient, PlacementInvalid
from kilonova.objects import InstancePCIRequest, RequestSpec
from kilonova.pci import ports as pci_ports
from kilonova.scheduler import filters as filtering
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.columns import Mask
from kilonova.scheduler.hosts.reservations import Request
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.placement.candidates import only_cell
from kilonova.scheduler.placement.query import CandidateQuery, Group
from kilonova.scheduler.plugins.guard import Guard
from kilonova.scheduler.prefilters.compute_status import DISABLED
from kilonova.scheduler.prefilters.owner import OWNER

LOG = logging.getLogger(__name__)

# Maximum length of the explanation, so that it fits into a fault's message after 'No valid host was found. '.
ROOM = 225
# If more hosts than this are considered, Placement is not queried for reasons, because that would take too long.
MANY_HOSTS = 2000
# Maximum number of request groups for which Placement is queried for reasons. Other groups are not explained.
MANY_GROUPS = 8
# Maximum number of failed checks in a report.
MANY_CHECKS = 60
# The amount that a host has, if it is not known.
UNKNOWN = -1
# {name of a filter class: words for the user}. '{have}' is replaced by "have" or "has".
WORDS: Mapping[str, str] = MappingProxyType(
    {
        'ServerGroupAffinityFilter': 'outside the hosts of the server group',
        'ServerGroupAntiAffinityFilter': '{have} too many servers of the server group',
        'DifferentHostFilter': '{have} a server of the hint different_host',
        'SameHostFilter': '{have} no server of the hint same_host',
        'ImagePropertiesFilter': 'cannot run the image (architecture or type)',
        'ComputeCapabilitiesFilter': 'without the capabilities that the flavor requires',
        'NUMATopologyFilter': 'without enough free CPUs, memory, pages or devices per NUMA cell',
        'PciPassthroughFilter': '{have} no suitable set of PCI devices',
        'AggregateInstanceExtraSpecsFilter': 'not allowed for this flavor',
        'AggregateTypeAffinityFilter': 'not allowed for this flavor',
        'AggregateImagePropertiesIsolation': 'not allowed for this image',
        'IsolatedHostsFilter': 'not allowed for this image',
        'AggregateMultiTenancyIsolation': 'not allowed for this project',
        'IoOpsFilter': 'busy with other builds',
        'AggregateIoOpsFilter': 'busy with other builds',
        'NumInstancesFilter': '{have} the maximum number of servers',
        'AggregateNumInstancesFilter': '{have} the maximum number of servers',
        'SimpleCIDRAffinityFilter': 'outside the requested network',
        'JsonFilter': 'rejected by the hint query',
        'MetricsFilter': 'without the metrics that the weigher needs',
    }
)
# {resource class: (text for the user, unit of the amount)}
AMOUNTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        'VCPU': ('{have} fewer than %d free vCPUs', ''),
        'PCPU': ('{have} fewer than %d free dedicated CPUs', ''),
        'MEMORY_MB': ('{have} less than %d MiB free memory', ' MiB'),
        'DISK_GB': ('{have} less than %d GB free disk', ' GB'),
    }
)


@dataclass
class ReasonCheck:
    """One reason why hosts cannot take a request. ``failing`` is True for the hosts with this reason.

    If the reason is that hosts have too little of something, ``has`` is the amount that each host has, or UNKNOWN.
    """

    key: str
    words: str
    failing: Mask
    has: NDArray[np.int64] | None = None
    unit: str = ''


@dataclass
class RefusalReport:
    """The reasons why no host fits. ``names`` is {index in the host table: host} of all hosts that were considered."""

    names: dict[int, str]
    servers: int
    checks: list[ReasonCheck]

    def text(self, room: int = ROOM) -> str:
        """Return the sentence for the user who sent the request, with at most ``room`` characters."""
        if not self.names:
            return 'There is no host to consider.'
        count = len(self.names)
        head = f'{count} host{"s" if count > 1 else ""} considered: '
        said: list[str] = []
        groups = self.groups()
        for index, (keys, places) in enumerate(groups):
            part = f'{len(places)} {self._words(keys, places)}'
            left = sum(len(others) for _, others in groups[index:])
            tail = f', {left} for other reasons.'
            last = index == len(groups) - 1
            if len(head + ', '.join([*said, part])) + (1 if last else len(tail)) > room:
                return head + ', '.join(said) + tail if said else f'{head}{left} rejected for several reasons.'
            said.append(part)
        return f'{head}{", ".join(said)}.'

    def groups(self) -> list[tuple[tuple[int, ...], list[int]]]:
        """Return [(indexes of checks, indexes of hosts)]: the hosts grouped by the checks that they fail.

        The largest group of hosts is the first.
        """
        places = np.fromiter(self.names, np.int64, len(self.names))
        marks = np.zeros(len(places), np.int64)
        for index, check in enumerate(self.checks):
            marks |= check.failing[places].astype(np.int64) << index
        found = [
            (tuple(index for index in range(len(self.checks)) if mark >> index & 1), places[marks == mark].tolist())
            for mark in map(int, np.unique(marks))
        ]
        return sorted(found, key=lambda item: (-len(item[1]), item[0]))

    @property
    def lost_races(self) -> bool:
        """True if the request is for one server and at least one host meets all its needs.

        If True, the request was refused only because other requests claimed the host's resources at the same time.
        """
        return self.servers == 1 and any(not keys for keys, _ in self.groups())

    def hosts(self, most: int) -> list[dict[str, Any]]:
        """Return at most ``most`` hosts with the reasons why they do not fit, for administrators.

        Hosts with the fewest reasons come first. Each dict has 'host', 'turned_away_by' (the names of the failed
        checks) and 'why' (a text for each failed check, with the amounts that it compared).
        """
        found: list[dict[str, Any]] = []
        for keys, places in sorted(self.groups(), key=lambda item: len(item[0])):
            found.extend(
                {
                    'host': self.names[host_index],
                    'turned_away_by': [self.checks[index].key for index in keys] or ['claim'],
                    'why': [self._words((index,), [host_index], of_one=True) for index in keys]
                    or [self._words((), [host_index])],
                }
                for host_index in places[: most - len(found)]
            )
        return found

    def _words(self, keys: Sequence[int], places: Sequence[int], of_one: bool = False) -> str:
        have = 'has' if len(places) == 1 else 'have'
        if not keys:
            return (
                'could take one of the servers, not all of them'
                if self.servers > 1
                else 'claimed by other requests at the same time'
            )
        parts = []
        for index in keys:
            check = self.checks[index]
            best = (
                max((int(check.has[host_index]) for host_index in places), default=UNKNOWN)
                if check.has is not None
                else UNKNOWN
            )
            said = check.words.format(have=have)
            if best != UNKNOWN:
                free = '' if check.unit else ' free'
                said += f' ({"has" if of_one else "best"}: {best}{check.unit}{free})'
            parts.append(said)
        return ' and '.join(parts)


def explain(
    snapshot: HostSnapshot,
    placement: PlacementClient,
    spec: RequestSpec,
    query: CandidateQuery,
    filters: Sequence[Any],
    *,
    offered: Mapping[str, list[Request]],
    servers: int = 1,
    named: Collection[str] | None = None,
) -> RefusalReport:
    """Return the reasons why none of the hosts takes the request.

    ``offered`` is {node uuid: allocation requests} from Placement's answer. These nodes have the requested traits and
    amounts, so something else rejects them, such as a filter. ``servers`` is the number of requested servers. ``named``
    is None, or the uuids of the only nodes that the request allows.
    """
    why = _Why(snapshot, placement, spec, query, filters, offered, named)
    with snapshot.table.lock:
        why.ask_table()
        why.ask_filters()
    why.ask_placement()
    checks = [check for check in why.checks.values() if check.failing.any()]
    # ``RefusalReport.groups`` uses one bit of an integer for each check, so only MANY_CHECKS checks are reported.
    return RefusalReport(why.names, servers, checks[:MANY_CHECKS])


class _Why:
    """Finds the reasons why no host fits one request. A RefusalReport is made from them.

    ``open`` is a boolean array that is True for each considered host for which no reason was found yet.
    """

    def __init__(
        self,
        snapshot: HostSnapshot,
        placement: PlacementClient,
        spec: RequestSpec,
        query: CandidateQuery,
        filters: Sequence[Any],
        offered: Mapping[str, list[Request]],
        named: Collection[str] | None,
    ) -> None:
        self._snapshot, self._placement, self._spec, self._query = snapshot, placement, spec, query
        self._filters, self._offered, self._named = filters, offered, named
        self.checks: dict[str, ReasonCheck] = {}
        self.names: dict[int, str] = {}

    def _add(self, key: str, words: str, failing: Mask, has: NDArray[Any] | int | None = None, unit: str = '') -> None:
        failing = failing & self._considered
        known = self.checks.get(key)
        if known is None:
            values = None if has is None else np.maximum(np.where(failing, has, UNKNOWN).astype(np.int64), UNKNOWN)
            self.checks[key] = ReasonCheck(key, words, failing, values, unit)
            return
        if known.has is not None and has is not None:
            known.has = np.where(failing & ~known.failing, has, known.has).astype(np.int64)
        known.failing = known.failing | failing

    @property
    def open(self) -> Mask:
        left = self._considered.copy()
        for check in self.checks.values():
            left &= ~check.failing
        return left

    # -- reasons from the host table -----------------------------------------------------------------------------------
    def ask_table(self) -> None:
        """Find reasons in the host table why hosts do not fit: wrong zone, disabled, down, too few free resources."""
        table, arrays = self._snapshot.table, HostArrays(self._snapshot)
        self._arrays = arrays
        self._considered = table.present(self._snapshot.cells.uuids())
        self._places = {node['uuid']: host_index for host_index, node in table.nodes()}
        if self._named is not None:
            chosen = np.zeros(len(self._considered), np.bool_)
            chosen[[self._places[uuid] for uuid in self._named if uuid in self._places]] = True
            self._considered &= chosen
        self.names = {host_index: node['host'] for host_index, node in table.nodes() if self._considered[host_index]}
        self._unoffered = np.ones(len(self._considered), np.bool_)
        self._unoffered[[self._places[uuid] for uuid in self._offered if uuid in self._places]] = False
        self._enabled = [] if _forced(self._spec) else list(self._filters)
        ignored = (self._spec.ignore_hosts if 'ignore_hosts' in self._spec else None) or ()
        if ignored:
            self._add('ignore_hosts', 'excluded by the request', arrays.named(ignored))
        cell = only_cell(self._spec)
        if cell is not None:
            self._add('cell', 'in another cell', ~table.present({cell}))
        self._add('mapping', 'not mapped to a cell', ~table['mapped'])
        self._ask_zone()
        by_service = any(_is(one, 'ComputeFilter') for one in self._enabled)
        if by_service:
            self._add('disabled', 'disabled', table['disabled'])
        if by_service or filtering.is_forced_move(self._spec):
            self._add('down', 'down', ~table['up'])
        self._ask_amounts()
        self._ask_devices()

    def _ask_zone(self) -> None:
        unnamed = self._query.unnamed
        for aggregates in unnamed.aggregates:
            key, words = self._aggregates_words(aggregates)
            self._add(key, words, ~self._arrays.named(self._snapshot.aggregates.hosts(aggregates)) & self._unoffered)
        if unnamed.forbidden_aggregates:
            self._add(
                'forbidden_aggregates',
                'reserved for other servers',
                self._arrays.named(self._snapshot.aggregates.hosts(unnamed.forbidden_aggregates)) & self._unoffered,
            )

    def _aggregates_words(self, aggregates: Collection[str]) -> tuple[str, str]:
        zone = self._spec.availability_zone if 'availability_zone' in self._spec else None
        if zone and set(aggregates) == set(self._snapshot.aggregates.of_zone(zone)):
            return 'availability_zone', 'wrong availability zone'
        return 'aggregates:' + ','.join(sorted(aggregates)), 'outside the aggregates that the request requires'

    def _ask_amounts(self) -> None:
        amounts = self._query.unnamed.resources
        for name, free in self._snapshot.table.free().items():
            if amounts.get(name):
                words, unit = _amount(name, amounts[name])
                self._add(name, words, (free < amounts[name]) & self._unoffered, np.maximum(np.floor(free), 0), unit)

    def _ask_devices(self) -> None:
        asked = any(_is(one, 'PciPassthroughFilter') for one in self._enabled)
        for request in _requests(self._spec):
            if asked or self._query.pci_groups:
                free = self._snapshot.table.devices.free(request.spec)
                failing = free < request.count
                self._add(*_device(request), failing if asked else failing & self._unoffered, np.maximum(free, 0))

    # -- reasons from the filters --------------------------------------------------------------------------------------
    def ask_filters(self) -> None:
        """Find the filters that reject hosts.

        Filters that check all hosts at once run first. The other filters run only for hosts for which no reason was
        found.
        """
        single = []
        for one in (one for one in self._enabled if not _is(one, 'ComputeFilter')):
            mask = (
                filtering.PER_HOST
                if getattr(one, 'at_most', False)
                else filtering.mask_of(one, self._arrays, self._spec, Guard('Filter', one))
            )
            if mask is filtering.PER_HOST:
                single.append(one)
            elif mask is not None:
                self._add(_name(one), _filter_words(one), ~mask)
        places = np.flatnonzero(self.open).tolist() if single else []
        servers_of = self._snapshot.servers.on()
        states = {
            host_index: state
            for host_index in places
            if (state := self._snapshot.state(host_index, servers_of, arrays=self._arrays)) is not None
        }
        for one in single:
            for state in states.values():
                state.allocation_candidates = list(self._offered.get(state.uuid, ()))
            kept = {id(state) for state in _kept(one, list(states.values()), self._spec)}
            self._add(
                _name(one),
                _filter_words(one),
                self._snapshot.table.places.mask(
                    [host_index for host_index, state in states.items() if id(state) not in kept]
                ),
            )

    # -- reasons from Placement ----------------------------------------------------------------------------------------
    def ask_placement(self) -> None:
        """Find the reasons why Placement did not offer hosts that passed all filters."""
        left = np.flatnonzero(self.open & self._unoffered)
        if not len(left):
            return
        if len(self.names) <= MANY_HOSTS:
            try:
                self._ask_traits()
                self._ask_groups()
            except (errors.Unavailable, errors.Unanswered) as error:
                LOG.debug('Could not read from Placement why it offered no hosts: %s', error)
        limit = self._query.limit
        cut = limit is not None and sum(map(len, self._offered.values())) >= limit
        rest = self.open & self._unoffered
        self._add('placement', f'not among the first {limit} candidates' if cut else 'not offered by Placement', rest)

    def _ask_traits(self) -> None:
        unnamed, query = self._query.unnamed, self._query
        for aggregates in unnamed.aggregates:
            inside = self._roots(member_of='in:' + ','.join(sorted(aggregates)))
            self._add('member_of', 'not in this zone or aggregate in Placement', self._but(inside) & self.open)
        if unnamed.forbidden_aggregates:
            outside = self._roots(member_of='in:' + ','.join(sorted(unnamed.forbidden_aggregates)))
            self._add('forbidden_aggregates', 'reserved for other servers', self._these(outside))
        for name in sorted(query.root_required | unnamed.required, key=lambda name: (name != OWNER, name)):
            words = 'not reported to Placement' if name == OWNER else '{have} no trait ' + name
            self._add(f'trait:{name}', words, self._but(self._roots(required=name)))
        for name in sorted(query.root_forbidden | unnamed.forbidden):
            key, words = ('disabled', 'disabled') if name == DISABLED else (f'trait:!{name}', '{have} trait ' + name)
            self._add(key, words, self._these(self._roots(required=name)))

    def _ask_groups(self) -> None:
        for name, amount in sorted(self._query.unnamed.resources.items()):
            words, unit = _amount(name, amount)
            able = self._roots(resources=f'{name}:{amount}')
            if not set(able) - self._places.keys():
                # ``able`` has the root providers that have the requested amount of the resource.
                # All of them are hosts: no sharing provider, such as a shared disk, offers the resource to other hosts.
                # So each host that is not in ``able`` lacks the amount. Add this as the reason of these hosts.
                self._add(name, words, self._but(able), UNKNOWN, unit)
        alike: dict[tuple[Any, ...], list[str]] = {}
        for suffix, group in self._query.groups.items():
            if suffix and len(group.resources) == 1:
                alike.setdefault(group.key(), []).append(suffix)
        for suffixes in list(alike.values())[:MANY_GROUPS]:
            self._ask_group(self._query.groups[suffixes[0]], suffixes)

    def _ask_group(self, group: Group, suffixes: list[str]) -> None:
        """Find the hosts that cannot serve all of these equal request groups, by queries to Placement.

        ``group`` is one of the groups, and ``suffixes`` are the suffixes of all. A host can serve as many groups as its
        providers together. A provider with the resources for n groups serves n groups, or one group if each group must
        have its own provider (group policy "isolate").
        """
        ((name, amount),) = group.resources.items()
        free: Counter[str] = Counter()
        names = ','.join([*sorted(group.required), *sorted(f'!{one}' for one in group.forbidden)])
        traits = {'required': names} if names else {}
        most = 1 if self._query.policy == 'isolate' else len(suffixes)
        # Query for providers with the amount of one group, of two groups, and so on, until no provider has it.
        for found in itertools.takewhile(
            bool, (self._roots(resources=f'{name}:{amount * times}', **traits) for times in range(1, most + 1))
        ):
            free.update(found)
        has = np.zeros(len(self._considered), np.int64)
        for root, number in free.items():
            if root in self._places:
                has[self._places[root]] = number
        requests = {request.request_id: request for request in _requests(self._spec)}
        request = requests.get(suffixes[0].rpartition('-')[0])
        key, words = (
            _device(request)
            if request is not None
            else (name, f'{{have}} fewer than {len(suffixes) * amount} free {name}')
        )
        self._add(key, words, (has < len(suffixes)) & self._asked_about(), has * amount)

    def _roots(self, **asked: str) -> list[str]:
        """Return the root providers of all providers that Placement lists for the query parameters ``asked``.

        A root provider is in the list once for each listed provider of its tree, so that callers can count the
        providers. The list is empty if Placement does not know a trait in the parameters.
        """
        try:
            return [row['root_provider_uuid'] for row in self._placement.list_providers(**asked)]
        except PlacementInvalid:
            return []

    def _these(self, roots: Iterable[str]) -> Mask:
        found = np.zeros(len(self._considered), np.bool_)
        found[[self._places[root] for root in roots if root in self._places]] = True
        return found & self._asked_about()

    def _but(self, roots: Iterable[str]) -> Mask:
        found = np.ones(len(self._considered), np.bool_)
        found[[self._places[root] for root in roots if root in self._places]] = False
        return found & self._asked_about()

    def _asked_about(self) -> Mask:
        """Return a boolean array that is True for the hosts that are in Placement but not in its answer.

        For hosts that are not in Placement, this is already reported as the reason.
        """
        unknown = self.checks.get(f'trait:{OWNER}')
        return self._unoffered if unknown is None else self._unoffered & ~unknown.failing


def _name(one: object) -> str:
    return type(one).__name__


def _is(one: object, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(one).__mro__)


def _filter_words(one: object) -> str:
    return next(
        (WORDS[cls.__name__] for cls in type(one).__mro__ if cls.__name__ in WORDS), f'rejected by {_name(one)}'
    )


def _kept(one: filtering.BaseFilter, states: list[Any], spec: RequestSpec) -> list[Any]:
    guard = Guard('Filter', one)
    together = type(one).filter_all is not filtering.BaseFilter.filter_all
    return [
        state
        for part in ([states] if together else [[state] for state in states])
        for state in guard.call(lambda part: list(one.filter_all(part, spec) or ()), part, default=[])
    ]


def _forced(spec: RequestSpec) -> bool:
    return any(name in spec and getattr(spec, name) for name in ('force_hosts', 'force_nodes'))


def _requests(spec: RequestSpec) -> list[Any]:
    requests = spec.pci_requests if 'pci_requests' in spec else None
    return list(requests.requests) if requests is not None else []


def _device(request: InstancePCIRequest) -> tuple[str, str]:
    name = request.alias_name or 'PCI devices'
    if request.source == request.NEUTRON_PORT:
        name = pci_ports.words(request)
    return f'pci:{name}', f'{{have}} fewer than {request.count} free {name}'


def _amount(name: str, amount: int) -> tuple[str, str]:
    words, unit = AMOUNTS.get(name, (f'{{have}} fewer than %d free {name}', ''))
    return words % amount, unit
