"""Prefilter for disabled hosts, which have the trait COMPUTE_STATUS_DISABLED in Placement."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts

DISABLED = 'COMPUTE_STATUS_DISABLED'


def compute_status(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Exclude hosts whose compute service is disabled. This prefilter cannot be turned off.

    It reads a trait in Placement, which may be out of date. So ``ComputeFilter`` later checks the service's row.
    """
    query.root_forbidden.add(DISABLED)
