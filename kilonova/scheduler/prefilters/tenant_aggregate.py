"""Prefilter for projects that have aggregates of their own."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters.aggregates import TENANT, words
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, RequestFilterFailed


def tenant_aggregate(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require an aggregate whose metadata filter_tenant_id… names the project.

    The prefilter does nothing if [scheduler]limit_tenants_to_placement_aggregate is off. A project without such an
    aggregate gets any host, or RequestFilterFailed is raised if [scheduler]placement_aggregate_required_for_tenants is
    on.
    """
    section = facts.conf.scheduler
    if not section.limit_tenants_to_placement_aggregate:
        return
    own = [
        row['uuid']
        for row in facts.aggregates()
        if any(key.startswith(TENANT) and spec.project_id in words(value) for key, value in row['metadata'].items())
    ]
    if own:
        query.unnamed.aggregates.append(own)
    elif section.placement_aggregate_required_for_tenants:
        raise RequestFilterFailed(reason='No hosts available for tenant')
