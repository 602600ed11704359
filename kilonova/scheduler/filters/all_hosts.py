"""AllHostsFilter: no opinion."""
from __future__ import annotations

from typing import Any

from kilonova.scheduler.filters import BaseHostFilter


class AllHostsFilter(BaseHostFilter):
    """Every host passes."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        return True
