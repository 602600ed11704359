"""AllHostsFilter: it rejects no host."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.hosts.host_state import HostState


class AllHostsFilter(BaseHostFilter):
    """Pass every host."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return True."""
        return True
