"""Hosts whose service is disabled carry COMPUTE_STATUS_DISABLED: Placement leaves them out."""
from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Query

DISABLED = 'COMPUTE_STATUS_DISABLED'


def compute_status(query: Query, spec: RequestSpec, facts: Any) -> None:
    """Always on; ComputeFilter looks again at the service itself."""
    query.root_forbidden.add(DISABLED)
