"""Hosts whose service is disabled carry COMPUTE_STATUS_DISABLED: Placement leaves them out."""
from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Facts, Query

DISABLED = 'COMPUTE_STATUS_DISABLED'


def compute_status(query: Query, spec: RequestSpec, facts: Facts) -> None:
    """Always on; ComputeFilter looks again at the service itself."""
    query.root_forbidden.add(DISABLED)
