"""ComputeFilter: it passes hosts whose compute service is enabled and up."""

from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays


class ComputeFilter(BaseHostFilter):
    """Pass only hosts whose compute service is enabled and up.

    A service is up if it is not forced down and its last heartbeat is at most [DEFAULT]service_down_time old by the
    database's clock.
    """

    run_filter_once_per_request = True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts whose service is up and not disabled."""
        return arrays.table['up'] & ~arrays.table['disabled']
