"""Hosts whose service is disabled carry COMPUTE_STATUS_DISABLED: Placement leaves them out."""
from __future__ import annotations

from typing import Any

from kilonova.scheduler.query import Query, Spec

DISABLED = 'COMPUTE_STATUS_DISABLED'


def compute_status(query: Query, spec: Spec, facts: Any) -> None:
    """Always on; ComputeFilter looks again at the service itself."""
    query.root_forbidden.add(DISABLED)
