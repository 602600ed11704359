"""Choose hosts: filter, weigh, take the first that can be claimed, consume, next (scheduler.md §1, §2).

    plan = select(spec, hosts, uuids, filters=filters, weighers=weighers, settings=settings, room=room, claim=claim)

Pure but for ``claim``, which the caller passes in: nothing here asks Placement or a database.
"""
from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors, objects
from kilonova.scheduler import filters as filtering
from kilonova.scheduler import weighers as weighing
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.query import Spec
from kilonova.scheduler.room import Request, Room

LOG = logging.getLogger(__name__)

# Candidates of one host that are tried before the next host; further ones are likely to be gone as well.
TRIES_PER_HOST = 16
NOT_ENOUGH = 'There are not enough hosts available.'


@dataclass(frozen=True)
class Choice:
    """A host, and what to allocate there (None: nothing, the server is on it already).

    ``held``: an earlier select for the same server allocated it; Placement's answer counted it as used.
    """

    host: HostState
    request: Request | None = None
    held: bool = False


# (instance uuid, host, request) → the choice that stands, which may be another than asked for, or None: not possible.
Claim = Callable[[str, HostState, Request], Choice | None]


@dataclass(frozen=True)
class Settings:
    """``alternates``: how many further hosts each choice gets. ``trace``: a ``decisions.Trace`` that is told what
    happens, or None."""

    alternates: int = 0
    subset_size: int = 1
    shuffle_best: bool = False
    trace: Any = None


@dataclass(frozen=True)
class Plan:
    """One choice a server, in the order asked for, and as many lists of alternates."""

    choices: list[Choice]
    alternates: list[list[Choice]]


class NotEnough(errors.NoValidHost):
    """A server got no host; those before it may have been claimed."""

    def __init__(self) -> None:
        super().__init__(reason=NOT_ENOUGH)


def select(spec: Spec, hosts: Sequence[HostState], uuids: Sequence[str], *,
           filters: Sequence[Any], weighers: Sequence[Any], settings: Settings, room: Room,
           claim: Claim = lambda uuid, host, request: Choice(host, request),
           recover: Callable[[str], Choice | None] = lambda uuid: None, rng: Any = random) -> Plan:
    """A plan for all servers, or NotEnough.

    ``hosts`` carry their ``allocation_candidates`` (None: no allocation is needed) and are consumed. ``recover`` is
    asked for a server that no host can take: an earlier call may have claimed one for it. ``rng`` shuffles.
    """
    choices: list[Choice] = []
    left: list[HostState] = list(hosts)
    for index, uuid in enumerate(uuids):
        # Filters of server groups ask which of the servers it is.
        spec.instance_uuid = uuid
        left = _sorted_hosts(spec, left, index, filters, weighers, settings, rng)
        choice = _first_possible(left, uuid, room, claim) or recover(uuid)
        if choice is None:
            LOG.debug('There are %(hosts)d hosts available but %(num_instances)d instances requested to build.',
                      {'hosts': len(choices), 'num_instances': len(uuids)})
            raise NotEnough
        LOG.debug('Selected host: %(host)s', {'host': choice.host})
        choices.append(choice)
        _consume(spec, choice, room, uuid)
    if not settings.alternates:
        return Plan(choices, [[] for _ in choices])
    if len(uuids) > 1:
        left = _sorted_hosts(spec, left, len(uuids), filters, weighers, settings, rng)
    taken = {choice.host.uuid for choice in choices}
    return Plan(choices, [_alternates(choice, left, taken, room, settings.alternates) for choice in choices])


def _sorted_hosts(spec: Spec, hosts: Sequence[HostState], index: int, filters: Sequence[Any],
                  weighers: Sequence[Any], settings: Settings, rng: Any) -> list[HostState]:
    """The hosts that pass, best first, with one of the first ``subset_size`` moved to the front."""
    trace = settings.trace
    passing = filtered(spec, hosts, index, filters, trace.listed if trace is not None and not index else None)
    LOG.debug('Filtered %(hosts)s', {'hosts': passing})
    if not passing:
        return []
    weighed = weighing.weigh(weighers, passing, spec)
    if not weighed:
        LOG.info('Weighing left no host of %d', len(passing))
        return []
    if settings.shuffle_best:
        best = [one for one in weighed if one.weight == weighed[0].weight]
        rng.shuffle(best)
        weighed[:len(best)] = best
    LOG.debug('Weighed %(hosts)s', {'hosts': weighed})
    if trace is not None:
        trace.weighed(weighed)
    ordered = [one.obj for one in weighed]
    pick = rng.choice(ordered[:settings.subset_size]) if settings.subset_size > 1 else ordered[0]
    return [pick, *(host for host in ordered if host is not pick)]


def filtered(spec: Spec, hosts: Sequence[HostState], index: int, filters: Sequence[Any],
             seen: Callable[[str, Sequence[Any], Sequence[Any]], None] | None = None) -> list[HostState]:
    """The hosts that may take the request: a forced host is not filtered, a requested one is (scheduler.md §9)."""
    hosts = _only_requested(spec, _without_ignored(spec, hosts))
    forced = _forced(spec, hosts)
    if forced is not None:
        return forced
    return filtering.run(filters, hosts, spec, index, seen)


def _names(spec: Spec, name: str) -> list[str]:
    return list((getattr(spec, name) if name in spec else None) or ())


def _only_requested(spec: Spec, hosts: Sequence[HostState]) -> Sequence[HostState]:
    destination = spec.requested_destination if 'requested_destination' in spec else None
    host = destination.host if destination is not None and 'host' in destination else None
    node = destination.node if destination is not None and 'node' in destination else None
    if not host and not node:
        return hosts
    LOG.info('Host filter only checking host %(host)s and node %(node)s', {'host': host, 'node': node})
    matching = [state for state in hosts if _is(state.host, host) and _is(state.nodename, node)]
    if not matching:
        LOG.info('No hosts matched due to not matching requested destination (%(host)s, %(node)s)',
                 {'host': host, 'node': node})
    return matching


def only_cell(spec: Spec) -> str | None:
    """The uuid of the cell that a move may not leave."""
    destination = spec.requested_destination if 'requested_destination' in spec else None
    if destination is None or 'cell' not in destination or destination.cell is None:
        return None
    if 'allow_cross_cell_move' in destination and destination.allow_cross_cell_move:
        return None
    return str(destination.cell.uuid)


def _is(name: str, wanted: str | None) -> bool:
    return not wanted or name.lower() == wanted.lower()


def _without_ignored(spec: Spec, hosts: Sequence[HostState]) -> Sequence[HostState]:
    ignored = {name.lower() for name in _names(spec, 'ignore_hosts')}
    dropped = sorted({state.host for state in hosts if state.host.lower() in ignored})
    if not dropped:
        return hosts
    LOG.info('Host filter ignoring hosts: %s', ', '.join(dropped))
    return [state for state in hosts if state.host.lower() not in ignored]


def _forced(spec: Spec, hosts: Sequence[HostState]) -> list[HostState] | None:
    """The hosts that match force_hosts and force_nodes; None when nothing is forced."""
    wanted = {name: {one.lower() for one in _names(spec, name)} for name in ('force_hosts', 'force_nodes')}
    if not any(wanted.values()):
        return None
    for name, attribute, what in (('force_hosts', 'host', 'hosts'), ('force_nodes', 'nodename', 'nodes')):
        if not wanted[name]:
            continue
        value = ', '.join(_names(spec, name))
        hosts = [state for state in hosts if getattr(state, attribute).lower() in wanted[name]]
        if hosts:
            LOG.info('Host filter forcing available %s to %s', what,
                     ', '.join(getattr(state, attribute) for state in hosts))
        else:
            LOG.info("No hosts matched due to not matching '%s' value of '%s'", name, value)
    return list(hosts)


def _first_possible(hosts: Sequence[HostState], uuid: str, room: Room, claim: Claim) -> Choice | None:
    for host in hosts:
        if host.allocation_candidates is None:
            return Choice(host)
        fitting = [request for request in host.allocation_candidates if room.fits(request)]
        if not fitting:
            LOG.debug('Skipping host %s: it has no allocation request that still fits.', host)
            continue
        for request in sorted(fitting, key=room.contested)[:TRIES_PER_HOST]:
            choice = claim(uuid, host, request)
            if choice is not None:
                return choice
    return None


def _consume(spec: Spec, choice: Choice, room: Room, uuid: str) -> None:
    choice.host.consume(spec, choice.request, uuid)
    if choice.request is not None and not choice.held:
        room.take(choice.request)
    group = spec.instance_group if 'instance_group' in spec else None
    if group is None:
        return
    # The next server of the request is to see this one.
    choice.host.instances[uuid] = objects.Instance(uuid=uuid)
    group.put(uuid, choice.host.host)


def _alternates(choice: Choice, hosts: Sequence[HostState], taken: set[str], room: Room, count: int) -> list[Choice]:
    """Further hosts of the same cell that nobody of this request was given (``taken``: node uuids)."""
    found: list[Choice] = []
    for host in hosts:
        if len(found) == count:
            break
        if host.cell_uuid != choice.host.cell_uuid or host.uuid in taken:
            continue
        if host.allocation_candidates is None:
            found.append(Choice(host))
            continue
        request = next((one for one in host.allocation_candidates if room.fits(one)), None)
        if request is not None:
            found.append(Choice(host, request))
    return found
