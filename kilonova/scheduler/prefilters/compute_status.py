"""Hosts whose service is disabled carry COMPUTE_STATUS_DISABLED: Placement leaves them out."""
from __future__ import annotations

from typing import Any

from kilonova import objects
from kilonova.scheduler.query import Query


def compute_status(query: Query, spec: objects.RequestSpec, facts: Any) -> None:
    """Always on; ComputeFilter looks again at the service itself."""
    query.root_forbidden.add('COMPUTE_STATUS_DISABLED')
