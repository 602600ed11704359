"""The scheduler's RPC endpoint: which host takes these servers?

    manager = SchedulerManager(conf, databases, cells, PlacementClient(session.adapter(conf, 'placement')))
    transport.serve('scheduler', conf.host, manager.endpoints()).start()

One select costs one question to Placement, one claim a server, and two statements (with one cell).
"""
from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import Any

from oslo_config import cfg

from kilonova import errors, objects
from kilonova.clients.placement import MICROVERSION, PlacementClient, PlacementInvalid
from kilonova.pci.request import PciInvalidAlias
from kilonova.rpc.scheduler import Scheduler
from kilonova.scheduler import expand, filters, plugins, prefilters
from kilonova.scheduler import query as queries
from kilonova.scheduler.claims import Claims
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.query import Spec
from kilonova.scheduler.room import Neighbours, Request, Room
from kilonova.scheduler.select import NOT_ENOUGH, Choice, NotEnough, Plan, Settings, select
from kilonova.scheduler.snapshot import Snapshot

LOG = logging.getLogger(__name__)


class SchedulerManager:
    """One a process; its methods may run in many threads at once."""

    def __init__(self, conf: cfg.ConfigOpts, databases: Any, cells: Any, placement: PlacementClient, *,
                 enabled_filters: Sequence[Any] | None = None, weighers: Sequence[Any] | None = None) -> None:
        """Loads filters and weighers by the options unless they are given; an unknown name raises."""
        self._conf, self._placement = conf, placement
        self._snapshot = Snapshot(conf, databases, cells)
        self._neighbours = Neighbours()
        self._filters = list(plugins.load_filters(conf) if enabled_filters is None else enabled_filters)
        self._weighers = list(plugins.load_weighers(conf) if weighers is None else weighers)

    def endpoints(self) -> list[tuple[type[Scheduler], SchedulerManager]]:
        """What a transport serves."""
        return [(Scheduler, self)]

    def start(self) -> None:
        """Say how hosts will be chosen."""
        LOG.info('Filters: %s', ', '.join(type(one).__name__ for one in self._filters))
        LOG.info('Weighers: %s', ', '.join(type(one).__name__ for one in self._weighers))

    def stop(self) -> None:
        """Let go of the threads that ask cells."""
        self._snapshot.close()

    def select_destinations(self, ctxt: Any, spec_obj: Spec, instance_uuids: Sequence[str],
                            return_objects: bool = True, return_alternates: bool = True, claim: bool = True,
                            deadline: float | None = None) -> Any:
        """For each server a list of Selections: its host, then alternates of the same cell.

        ``claim``: allocate the host in Placement to the server (which may have been done by an earlier, unanswered
        call). ``deadline``: epoch seconds after which nothing is claimed any more. With ``return_objects`` False the
        old form: one dict {host, nodename, limits} a server. Raises NoValidHost, Unanswered.
        """
        uuids = list(instance_uuids or [spec_obj.instance_uuid])
        LOG.debug('Starting to schedule for instances: %s', uuids)
        alternates = self._conf.scheduler.max_attempts - 1 if return_alternates and return_objects else 0
        select = _Select(self._conf, self._snapshot, self._placement, self._neighbours, self._filters, self._weighers,
                         spec_obj, alternates)
        try:
            plan = select.rebuild() if filters.is_rebuild(spec_obj) else select.run(uuids, claim, deadline)
        except (queries.RequestFilterFailed, PciInvalidAlias, PlacementInvalid) as error:
            raise errors.NoValidHost(reason=str(error)) from error
        except NotEnough as error:
            raise errors.NoValidHost(error.message) from error
        chosen = [[_selection(choice) for choice in (first, *others)]
                  for first, others in zip(plan.choices, plan.alternates, strict=True)]
        return chosen if return_objects else [hosts[0].to_dict() for hosts in chosen]


class _Select:
    """One call of select_destinations."""

    def __init__(self, conf: cfg.ConfigOpts, snapshot: Snapshot, placement: PlacementClient, neighbours: Neighbours,
                 enabled: Sequence[Any], weighers: Sequence[Any], spec: Spec, alternates: int) -> None:
        self._conf, self._snapshot, self._placement, self._neighbours = conf, snapshot, placement, neighbours
        self._spec = spec
        section = conf.filter_scheduler
        settings = Settings(alternates, section.host_subset_size, section.shuffle_best_same_weighed_hosts)
        self._how: dict[str, Any] = {'filters': enabled, 'weighers': weighers, 'settings': settings}

    def run(self, uuids: list[str], claim: bool, deadline: float | None) -> Plan:
        """1. ask Placement  2. read the hosts  3. choose and claim, or give all claims back."""
        query = self._query()
        asked = self._neighbours.now()
        asking, clones = query.collapsed()
        found = self._placement.allocation_candidates(asking.pairs())
        room = Room(found['provider_summaries'], self._neighbours, asked)
        claims = Claims(self._placement, self._neighbours, room, query, project_id=self._spec.project_id,
                        user_id=self._spec.user_id, host_of=self._host_of, deadline=deadline)
        hosts, silent = self._hosts(found, asking, clones, room)
        how = {**self._how, 'room': room}
        if claim:
            how |= {'claim': claims.claim, 'recover': claims.existing}
        try:
            return select(self._spec, hosts, uuids, **how)
        except NotEnough as error:
            claims.give_back()
            if silent:
                raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} are silent') from error
            if not found['allocation_requests']:
                raise errors.NoValidHost(reason=_nowhere(query)) from error
            raise

    def rebuild(self) -> Plan:
        """The server stays on its host: no allocation, and only filters that look at rebuilds."""
        destination = self._spec.requested_destination if 'requested_destination' in self._spec else None
        hosts, _ = self._snapshot.all_of([destination.host] if destination is not None else [])
        for host in hosts.values():
            host.allocation_candidates = None
        uuid = self._spec.instance_uuid if 'instance_uuid' in self._spec else ''
        return select(self._spec, list(hosts.values()), [uuid], room=Room({}), **self._how)

    def _query(self) -> queries.Query:
        nodes = self._named_nodes()
        query = queries.build(
            self._spec, max_results=self._conf.scheduler.max_placement_results,
            pci_in_placement=self._conf.filter_scheduler.pci_in_placement,
            in_tree=nodes[0] if len(nodes) == 1 else None, many_nodes=len(nodes) > 1)
        facts = prefilters.Facts(self._conf, self._snapshot.zone_aggregates)
        for prefilter in prefilters.ALL:
            prefilter(query, self._spec, facts)
        return query

    def _named_nodes(self) -> list[str]:
        """uuids of the nodes that the request names; [] when it names none, or none that exist."""
        spec = self._spec
        hosts = (spec.force_hosts if 'force_hosts' in spec else None) or []
        nodes = (spec.force_nodes if 'force_nodes' in spec else None) or []
        destination = spec.requested_destination if 'requested_destination' in spec else None
        if not hosts and not nodes and destination is not None:
            hosts = [destination.host] if 'host' in destination and destination.host else []
            nodes = [destination.node] if 'node' in destination and destination.node else []
        return self._snapshot.named(hosts, nodes) if hosts or nodes else []

    def _hosts(self, found: dict[str, Any], query: queries.Query, clones: dict[str, list[str]],
               room: Room) -> tuple[list[HostState], list[str]]:
        """The hosts of Placement's answer in its order, each with its candidates; and cells that are silent."""
        if not found['allocation_requests']:
            LOG.info('Got no allocation candidates from the Placement API. This could be due to insufficient resources '
                     'or a temporary occurrence as compute nodes start up.')
            return [], []
        summaries = found['provider_summaries']
        by_root: dict[str, list[Request]] = {}
        for request in found['allocation_requests']:
            # A provider that is shared over trees is nobody's root alone.
            for root in {summaries[rp]['root_provider_uuid'] for rp in request['allocations']}:
                by_root.setdefault(root, []).append(request)
        states, silent = self._snapshot.by_uuids(by_root.keys())
        for root, state in states.items():
            state.allocation_candidates = by_root[root]
            if clones:
                state.allocation_candidates = expand.expand(by_root[root], query, clones, room, state.may_give)
        return [states[root] for root in by_root if root in states], silent

    def _host_of(self, providers: Collection[str]) -> HostState | None:
        states, silent = self._snapshot.by_uuids(providers)
        if not states and silent:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} are silent')
        return next(iter(states.values()), None)


def _nowhere(query: queries.Query) -> str:
    """Why Placement found nothing, as far as it can be told."""
    wanted = ', '.join(f'{name}: {amount}' for name, amount in sorted(query.resources().items()))
    return f'{NOT_ENOUGH} None has free: {wanted}.'


def _selection(choice: Choice) -> objects.Selection:
    host = choice.host
    return objects.Selection(
        compute_node_uuid=host.uuid, service_host=host.host, nodename=host.nodename, cell_uuid=host.cell_uuid,
        limits=objects.SchedulerLimits.from_dict(host.limits) if host.limits else None,
        allocation_request=json.dumps(choice.request) if choice.request is not None else None,
        allocation_request_version=MICROVERSION if choice.request is not None else None,
        availability_zone=host.availability_zone)
