"""MetricsFilter: it passes hosts that report all metrics that MetricsWeigher needs."""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.ratios import ratios

LOG = logging.getLogger(__name__)


class MetricsFilter(BaseHostFilter):
    """Pass only hosts that report all metrics named in [metrics]weight_setting. Use it together with MetricsWeigher."""

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host reports all metrics of [metrics]weight_setting."""
        missing = self._wanted() - {metric.name for metric in host_state.metrics}
        if missing:
            LOG.debug('%(host)s lacks the metrics %(missing)s', {'host': host_state, 'missing': sorted(missing)})
        return not missing

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return PER_HOST (check host by host) if any metric is configured, otherwise None (all hosts pass)."""
        return PER_HOST if self._wanted() else None

    def _wanted(self) -> set[str]:
        return set(ratios(tuple(self.conf.metrics.weight_setting), '[metrics]weight_setting'))
