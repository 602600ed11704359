"""Prefilter for aggregates that are reserved for servers that require certain traits."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts

PREFIX = 'trait:'


def isolated_aggregates(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Exclude aggregates with metadata trait:<name>=required unless the request requires all traits of the aggregate.

    The prefilter does nothing if [scheduler]enable_isolated_aggregate_filtering is off.
    """
    if not facts.conf.scheduler.enable_isolated_aggregate_filtering:
        return
    required = query.root_required.union(*(group.required for group in query.groups.values()))
    for row in facts.aggregates():
        wants = {
            key.removeprefix(PREFIX)
            for key, value in row['metadata'].items()
            if key.startswith(PREFIX) and value == 'required'
        }
        if not wants <= required:
            query.unnamed.forbidden_aggregates.add(row['uuid'])
