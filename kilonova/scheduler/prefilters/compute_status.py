"""Prefilter for disabled hosts, which have the trait COMPUTE_STATUS_DISABLED in Placement."""
from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Facts, Query

DISABLED = 'COMPUTE_STATUS_DISABLED'


def compute_status(query: Query, spec: RequestSpec, facts: Facts) -> None:
    """Exclude hosts whose compute service is disabled. It is always on.

    ComputeFilter checks the service itself again.
    """
    query.root_forbidden.add(DISABLED)
