"""RPC endpoint of the scheduler: choose hosts for servers.

    manager = SchedulerManager(conf, databases, cells, PlacementClient(session.adapter(conf, 'placement')))
    transport.serve('scheduler', conf.host, manager.endpoints()).start()

Usually, one call of ``select_destinations`` sends at most one query for candidates to Placement, and one claim for each
server. With one cell, the call runs two SQL statements if no host has changed since the previous call.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.clients.candidates import QueryTooLong
from kilonova.clients.placement import MICROVERSION, PlacementClient, PlacementInvalid
from kilonova.clients.providers import MANAGED_PCI
from kilonova.context import RequestContext
from kilonova.db.engine import Databases
from kilonova.db.queries.cells import CellDatabases
from kilonova.objects import RequestSpec
from kilonova.pci.request import PciInvalidAlias
from kilonova.rpc.notify import OFF, Notifications
from kilonova.rpc.scheduler import Scheduler
from kilonova.scheduler import filters, groups, prefilters
from kilonova.scheduler.explain import reasons
from kilonova.scheduler.explain.decisions import Decisions, Trace
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.placement import query as queries
from kilonova.scheduler.placement.candidates import (
    CandidateCache,
    CandidateResponse,
    CurrentHost,
    PlacementCandidates,
    can_be_kept,
    only_cell,
)
from kilonova.scheduler.placement.claims import Caller, Claims
from kilonova.scheduler.placement.local_candidates import LocalCandidates, TraitCache
from kilonova.scheduler.plan import Candidate, SelectionPlan
from kilonova.scheduler.plugins import loading as plugins
from kilonova.scheduler.select import NOT_ENOUGH, Offers, Select, SelectSettings

LOG = logging.getLogger(__name__)

# Maximum number of attempts of one call. Another attempt follows only if other requests claimed the hosts first.
TRIES = 5
# Seconds between two attempts to choose hosts, multiplied by the number of the attempt.
PAUSE = 0.1


@dataclass(frozen=True)
class Candidates:
    """All hosts that Placement offers for a request.

    ``snapshot`` has the hosts, ``answer`` is Placement's answer. ``silent`` names the cells that do not answer; hosts
    of these cells are missing.
    """

    snapshot: HostSnapshot
    answer: CandidateResponse
    silent: list[str]

    def offers(self, spec: RequestSpec) -> PlacementCandidates:
        """Return the hosts with their allocation requests, minus capacity that was claimed after Placement's answer."""
        return PlacementCandidates(self.snapshot, spec, self.answer)


class SchedulerManager:
    """RPC endpoint of one scheduler process. Its methods may be called from many threads at once."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        databases: Databases,
        cells: CellDatabases,
        placement: PlacementClient,
        *,
        enabled_filters: Sequence[Any] | None = None,
        weighers: Sequence[Any] | None = None,
        notify: Notifications = OFF,
    ) -> None:
        """Load filters and weighers as configured, unless they are given.

        Raises SchedulerHostFilterNotFound or SchedulerWeigherNotFound if a configured name does not exist, and an error
        of ``plugins.loading`` if a plug-in cannot be loaded.
        """
        self._conf, self._placement, self.notify = conf, placement, notify
        self._snapshot = HostSnapshot(conf, databases, cells)
        self._filters = list(plugins.load_filters(conf) if enabled_filters is None else enabled_filters)
        self._weighers = list(plugins.load_weighers(conf) if weighers is None else weighers)
        self._prefilters = tuple(plugins.load_prefilters(conf))
        self._decisions = Decisions(conf, databases)
        self._qualified, self._answers = TraitCache(placement), CandidateCache()

    def endpoints(self) -> list[tuple[type[Scheduler], SchedulerManager]]:
        """Return [(RPC interface of the scheduler, object that implements it)], for ``transport.serve``."""
        return [(Scheduler, self)]

    def start(self) -> None:
        """Log the names of the filters and weighers, and start the thread that writes decisions to the API database."""
        LOG.info('Filters: %s', ', '.join(type(one).__name__ for one in self._filters))
        LOG.info('Weighers: %s', ', '.join(type(one).__name__ for one in self._weighers))
        self._decisions.start()

    def stop(self) -> None:
        """Write the last decisions, and stop the threads that read cells."""
        self._decisions.stop()
        self._snapshot.close()

    def select_destinations(
        self,
        ctxt: RequestContext,
        spec_obj: RequestSpec,
        instance_uuids: Sequence[str],
        return_objects: bool = True,
        return_alternates: bool = True,
        claim: bool = True,
        time_left: float | None = None,
        operations: Sequence[str] | None = None,
    ) -> Any:
        """Choose hosts. Return for each server a list of Selections: its host, then alternate hosts in the same cell.

        If ``return_objects`` is False, return the old form, which is one dict {host, nodename, limits} for each server.

        Args:
            ctxt: Context of the request.
            spec_obj: The request.
            instance_uuids: The servers. If the list is empty, the server in ``spec_obj``.
            return_objects: Whether to return Selections.
            return_alternates: Whether to return alternate hosts.
            claim: Whether to write an allocation for each server to Placement. An earlier call whose answer was lost
                may have written the allocation already.
            time_left: Seconds from now after which nothing is claimed any more.
            operations: uuids of the boot operations, one for each server. If an operation was cancelled, the claim for
                its server is released.

        Raises:
            NoValidHost: If no host fits.
            Unanswered: If a database or Placement does not answer, or if the time is over.
            Cancelled: If none of the boot operations waits any more.
        """
        asker = Caller.of(time_left, partial(self._snapshot.servers.waiting, list(operations)) if operations else None)
        uuids = list(instance_uuids or [spec_obj.instance_uuid])
        LOG.debug('Starting to schedule for instances: %s', uuids)
        self.notify.emit(ctxt, 'scheduler.select_destinations.start', request_spec=spec_obj)
        alternates = self._conf.scheduler.max_attempts - 1 if return_alternates and return_objects else 0
        trace = self._decisions.trace()
        try:
            plan = self._select(spec_obj, alternates, trace).run(uuids, claim, asker)
        except errors.NoValidHost as error:
            self._decisions.record(ctxt, spec_obj, uuids, trace, failure=error)
            raise
        self._decisions.record(ctxt, spec_obj, uuids, trace, plan=plan)
        chosen = [
            [_selection(choice) for choice in (first, *others)]
            for first, others in zip(plan.choices, plan.alternates, strict=True)
        ]
        self.notify.emit(ctxt, 'scheduler.select_destinations.end', request_spec=spec_obj)
        return chosen if return_objects else [hosts[0].to_dict() for hosts in chosen]

    def try_out(self, spec_obj: RequestSpec, uuids: Sequence[str], trace: Trace) -> SelectionPlan:
        """Return the plan that select_destinations would return now, without claims, notifications and records.

        Raises NoValidHost if no host fits.
        """
        return self._select(spec_obj, self._conf.scheduler.max_attempts - 1, trace).run(list(uuids), False, Caller())

    def candidates(self, spec_obj: RequestSpec) -> Candidates:
        """Return all hosts that Placement offers for the request now, without a limit.

        Raises NoValidHost if the request can never be served.
        """
        return self._select(spec_obj, 0, None).candidates()

    @property
    def filters(self) -> list[Any]:
        """The enabled filters in their order."""
        return self._filters

    def _select(self, spec_obj: RequestSpec, alternates: int, trace: Trace | None) -> _Request:
        return _Request(
            self._conf,
            self._snapshot,
            self._placement,
            self._qualified,
            self._answers,
            self._filters,
            self._weighers,
            self._prefilters,
            spec_obj,
            alternates,
            trace,
        )


@contextmanager
def _refused() -> Iterator[None]:
    """Raise NoValidHost in place of the errors which mean that no host can ever take the request."""
    try:
        yield
    except (queries.RequestFilterFailed, PciInvalidAlias, PlacementInvalid, QueryTooLong) as error:
        raise errors.NoValidHost(reason=str(error)) from error


class _Request:
    """One call of select_destinations: it chooses hosts, and claims them if the caller asked for claims."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        snapshot: HostSnapshot,
        placement: PlacementClient,
        qualified: TraitCache,
        answers: CandidateCache,
        enabled: Sequence[Any],
        weighers: Sequence[Any],
        ahead: Sequence[prefilters.Prefilter],
        spec: RequestSpec,
        alternates: int,
        trace: Trace | None,
    ) -> None:
        self._conf, self._snapshot, self._placement, self._qualified = conf, snapshot, placement, qualified
        self._answers = answers
        self._filters, self._weighers, self._prefilters, self._spec = enabled, weighers, ahead, spec
        section = conf.filter_scheduler
        # Only a request that names a host counts as a rebuild, because a rebuild writes no allocation in Placement.
        # The allocation of a rebuilt server is on its present host, so another host would have no allocation for it.
        self._trace, self._is_rebuild = trace, filters.is_rebuild(spec) and self._names_hosts()
        self._settings = SelectSettings(
            alternates, section.host_subset_size, section.shuffle_best_same_weighed_hosts, trace
        )

    @_refused()
    def run(self, uuids: list[str], claim: bool, asker: Caller) -> SelectionPlan:
        """Choose hosts for the servers, and claim the hosts in Placement if ``claim`` is True.

        First, changes of hosts are read from the databases. Then hosts are chosen with the scheduler's own data, or
        with a stored answer of Placement. If neither is possible or too few hosts are found, Placement is queried for
        candidates.
        """
        if self._is_rebuild:
            return self._rebuild()
        silent = self._snapshot.refresh()
        self._look_at_group(uuids)
        query = self._query()
        if not claim:
            return self._by_candidates(query, uuids, None)
        claims = Claims(
            self._placement,
            query,
            asker,
            project_id=self._spec.project_id,
            user_id=self._spec.user_id,
            host_of=self._host_of,
        )
        try:
            if silent:
                return self._by_candidates(query, uuids, claims)
            # If the scheduler's own data are enough, each chosen host costs only one query and one claim in Placement.
            own = LocalCandidates.of(self._snapshot, self._qualified, self._spec, query, claims)
            if own is not None:
                return self._by_offers(own, uuids, claims) or self._by_candidates(query, uuids, claims)
            if queries.wants_dedicated_cpus(self._spec) or not can_be_kept(query):
                return self._by_candidates(query, uuids, claims)
            with self._snapshot.table.lock:
                hosts = self._snapshot.table.standing()
            with self._answers.turn(query, hosts) as kept:
                return (self._by_kept(kept, uuids, claims) if kept is not None else None) or self._by_candidates(
                    query, uuids, claims
                )
        except errors.Unanswered:
            claims.leave()
            raise
        except Exception:
            claims.give_back()
            raise

    def _by_kept(self, answer: CandidateResponse, uuids: list[str], claims: Claims) -> SelectionPlan | None:
        offers = PlacementCandidates(self._snapshot, self._spec, answer, kept=True)
        with self._snapshot.table.lock:
            whole = offers.whole
        return self._by_offers(offers, uuids, claims) if whole else None

    def _by_offers(self, offers: Offers, uuids: list[str], claims: Claims) -> SelectionPlan | None:
        """Choose among the hosts in ``offers``, without a new query to Placement for candidates.

        Return None if no plan was found. The caller must then query Placement for candidates.
        """
        with self._selection(offers, claims) as select:
            plan = select.plan(uuids)
        if plan is None:
            claims.give_back()
            self._start_over(uuids)
        return plan

    def _start_over(self, uuids: list[str]) -> None:
        """Prepare another choice: read the server group again, and clear the trace of the first choice.

        The first choice may have added servers to the group, although their claims were released afterwards.
        """
        self._look_at_group(uuids)
        if self._trace is not None:
            self._trace.restart()

    def _look_at_group(self, uuids: list[str]) -> None:
        groups.prepare(self._spec, uuids, self._snapshot, self._filters, self._weighers)

    def _selection(self, offers: Offers, claims: Claims | None) -> Select:
        return Select(self._snapshot, self._spec, self._filters, self._weighers, self._settings, offers, claims)

    def _by_candidates(
        self, query: queries.CandidateQuery, uuids: list[str], claims: Claims | None, tries: int = 1
    ) -> SelectionPlan:
        answer, fallback = self._ask(query)
        if claims is not None:
            claims.fallback = fallback
        offers = PlacementCandidates(self._snapshot, self._spec, answer)
        silent = self._snapshot.cells.silent
        with self._selection(offers, claims) as select:
            plan = select.plan(uuids)
        if plan is not None:
            if claims is not None and fallback is None:
                self._answers.keep(answer)
            return plan
        if silent:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} do not respond')
        if claims is not None:
            claims.give_back()
        if tries > 1 or not self._snapshot.outdated():
            report = self._report(query, answer, uuids)
            if claims is None or tries == TRIES or not report.lost_races:
                raise self._refusal(query, report)
            # Another request took the capacity, but it may still fail or get another host. Wait, then choose again.
            time.sleep(random.uniform(0.5, 1.5) * PAUSE * tries)
        if claims is not None:
            claims.check_time()
        self._snapshot.refresh()
        self._start_over(uuids)
        return self._by_candidates(query, uuids, claims, tries + 1)

    def _report(
        self, query: queries.CandidateQuery, answer: CandidateResponse, uuids: list[str]
    ) -> reasons.RefusalReport:
        """Find the reasons why no host fits the request, and return them as a report."""
        self._look_at_group(uuids)
        self._spec.instance_uuid = uuids[0]
        with self._snapshot.table.lock:
            offered = dict(PlacementCandidates(self._snapshot, self._spec, answer, alone=True).states())
        return reasons.explain(
            self._snapshot,
            self._placement,
            self._spec,
            query,
            self._filters,
            offered={host.uuid: host.allocation_candidates for host in offered.values() if host.allocation_candidates},
            servers=len(uuids),
            named=self._named_nodes() if self._names_hosts() else None,
        )

    def _refusal(self, query: queries.CandidateQuery, report: reasons.RefusalReport) -> errors.NoValidHost:
        """Log the reasons why no host fits, and return them as an error."""
        if self._trace is not None:
            self._trace.report = report
        text = report.text()
        LOG.info(
            '%s Requested: %s. %s',
            NOT_ENOUGH,
            ', '.join(f'{name}: {amount}' for name, amount in sorted(query.resources().items())),
            text,
        )
        return errors.NoValidHost(reason=text)

    @_refused()
    def candidates(self) -> Candidates:
        """Return all candidates that Placement offers, without a limit."""
        self._snapshot.refresh()
        self._look_at_group([self._spec.instance_uuid])
        query = self._query()
        query.limit = None
        answer, _ = self._ask(query)
        return Candidates(self._snapshot, answer, self._snapshot.cells.silent)

    def _ask(self, query: queries.CandidateQuery) -> tuple[CandidateResponse, queries.CandidateQuery | None]:
        """Query Placement for candidates, and return (Placement's answer, fallback query).

        The fallback query is for requests with dedicated CPUs: it asks for shared CPUs (VCPU) instead of dedicated CPUs
        (PCPU). It is None for other requests.
        """
        asking, clones = query.collapsed()
        asked = time.monotonic()
        with self._snapshot.table.lock:
            hosts = self._snapshot.table.standing()
        answer = CandidateResponse(self._placement.allocation_candidates(asking.pairs()), asking, clones, asked, hosts)
        fallback = None
        if queries.wants_dedicated_cpus(self._spec) and not self._conf.workarounds.disable_fallback_pcpu_query:
            fallback = self._query(pinning=False)
            fallback.limit = query.limit
            self._add_fallback(answer, fallback)
        if not answer.found['allocation_requests']:
            LOG.info(
                'Got no allocation candidates from the Placement API. This could be due to insufficient resources '
                'or a temporary occurrence as compute nodes start up.'
            )
        elif unknown := self._snapshot.unusable(answer.by_root):
            # ``unknown`` are root providers that are not in the host table: hosts just added, and shared providers.
            # Read the hosts again, so that hosts that were just added are in the host table.
            self._snapshot.refresh()
            self._snapshot.tell_serviceless(unknown)
        return answer, fallback

    def _add_fallback(self, answer: CandidateResponse, query: queries.CandidateQuery) -> None:
        """Add hosts that do not report dedicated CPUs (PCPU) to Placement's answer, after the hosts that do.

        Hosts that do not report dedicated CPUs yet may still support them. ``query`` finds these hosts, because it asks
        for VCPU in place of PCPU.
        """
        LOG.debug('Requesting fallback allocation candidates with VCPU instead of PCPU')
        found, more = answer.found, self._placement.allocation_candidates(query.collapsed()[0].pairs())
        summaries = more['provider_summaries']
        pinning = {summary['root_provider_uuid'] for summary in summaries.values() if 'PCPU' in summary['resources']}
        known = set(found['provider_summaries'])
        for request in more['allocation_requests']:
            roots = {summaries[rp]['root_provider_uuid'] for rp in request['allocations']}
            if not roots & (pinning | known):
                found['allocation_requests'].append(request)
                answer.late |= roots
        found['provider_summaries'] = {**summaries, **found['provider_summaries']}

    def _rebuild(self) -> SelectionPlan:
        """Return a plan in which a server that is rebuilt stays on its host, without an allocation.

        Only filters that apply to rebuilds are run. Raises NoValidHost if the host does not pass them, and Unanswered
        if the host may be in a cell that does not answer.
        """
        silent = self._snapshot.refresh()
        # Check before the choice whether the server's cell answers: it may begin to answer after the choice.
        may_be_silent = bool(silent) and not self._snapshot.states(self._named_nodes())
        uuid = self._spec.instance_uuid if 'instance_uuid' in self._spec else ''
        with self._selection(CurrentHost(self._snapshot), None) as select:
            plan = select.plan([uuid])
        if plan is not None:
            return plan
        if may_be_silent:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} do not respond')
        raise errors.NoValidHost(reason=NOT_ENOUGH)

    def _query(self, pinning: bool = True) -> queries.CandidateQuery:
        nodes = self._named_nodes()
        query = queries.build(
            self._spec,
            max_results=self._conf.scheduler.max_placement_results,
            pci_in_placement=self._conf.filter_scheduler.pci_in_placement,
            in_tree=nodes[0] if len(nodes) == 1 else None,
            many_nodes=len(nodes) > 1,
            pinning=pinning,
        )
        if only_cell(self._spec) and len(self._snapshot.cells.uuids()) > 1:
            # The server must stay in its cell. Placement does not know cells, so a limited answer may lack its hosts.
            query.limit = None
        prefilters.run(
            self._prefilters,
            query,
            self._spec,
            queries.PrefilterFacts(
                self._conf, self._snapshot.aggregates.of_zone, lambda: self._snapshot.aggregates.rows
            ),
        )
        self._check_classes(query)
        return query

    def _check_classes(self, query: queries.CandidateQuery) -> None:
        """Raise RequestFilterFailed if the flavor names a resource class that belongs to PCI devices.

        Servers get PCI devices only by PCI requests. If a flavor named the class of a device, Placement would allocate
        a device that the host does not give to the server. Placement is queried only if the flavor names custom
        classes.
        """
        for key, name in queries.own_classes(query, self._spec.flavor.extra_specs):
            if self._placement.list_providers(resources=f'{name}:1', required=MANAGED_PCI):
                raise queries.RequestFilterFailed(
                    reason=(
                        f"the flavor's extra spec {key} names a resource class of PCI devices; request PCI devices "
                        f'with '
                        'pci_passthrough:alias instead'
                    )
                )

    def _names_hosts(self) -> bool:
        """Return whether the request names the host or node for its servers."""
        spec = self._spec
        destination = spec.requested_destination if 'requested_destination' in spec else None
        return any(name in spec and getattr(spec, name) for name in ('force_hosts', 'force_nodes')) or (
            destination is not None
            and any(name in destination and getattr(destination, name) for name in ('host', 'node'))
        )

    def _named_nodes(self) -> list[str]:
        """Return the uuids of the nodes that the request names.

        The list is empty if the request names none, or if none of them exist.
        """
        spec = self._spec
        hosts = (spec.force_hosts if 'force_hosts' in spec else None) or []
        nodes = (spec.force_nodes if 'force_nodes' in spec else None) or []
        destination = spec.requested_destination if 'requested_destination' in spec else None
        if not hosts and not nodes and destination is not None:
            hosts = [destination.host] if 'host' in destination and destination.host else []
            nodes = [destination.node] if 'node' in destination and destination.node else []
        return self._snapshot.named(hosts, nodes) if hosts or nodes else []

    def _host_of(self, providers: Collection[str]) -> HostState | None:
        states, silent = self._snapshot.by_uuids(providers)
        if not states and silent:
            raise errors.Unanswered(who='the database', reason=f'cells {", ".join(silent)} do not respond')
        return next(iter(states.values()), None)


def _selection(choice: Candidate) -> objects.Selection:
    host = choice.host
    return objects.Selection(
        compute_node_uuid=host.uuid,
        service_host=host.host,
        nodename=host.nodename,
        cell_uuid=host.cell_uuid,
        limits=objects.SchedulerLimits.from_dict(host.limits) if host.limits else None,
        allocation_request=json.dumps(choice.request) if choice.request is not None else None,
        allocation_request_version=MICROVERSION if choice.request is not None else None,
        availability_zone=host.availability_zone,
    )
