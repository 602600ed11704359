"""ComputeFilter: the host's compute service is enabled and was seen a moment ago."""
from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.look import Look


class ComputeFilter(BaseHostFilter):
    """Up means: not forced down, last heartbeat at most [DEFAULT]service_down_time old by the database's clock."""

    run_filter_once_per_request = True

    def mask(self, look: Look, spec_obj: RequestSpec) -> Any:
        return look.table['up'] & ~look.table['disabled']
