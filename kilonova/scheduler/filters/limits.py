"""Filters that keep a host from getting too much: work under way, servers."""
from __future__ import annotations

from typing import Any

from kilonova.scheduler.filters import BaseHostFilter


class IoOpsFilter(BaseHostFilter):
    """Fewer than [filter_scheduler]max_io_ops_per_host builds and moves under way."""

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        return host_state.num_io_ops < self.conf.filter_scheduler.max_io_ops_per_host


class NumInstancesFilter(BaseHostFilter):
    """Fewer than [filter_scheduler]max_instances_per_host servers."""

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        return host_state.num_instances < self.conf.filter_scheduler.max_instances_per_host
