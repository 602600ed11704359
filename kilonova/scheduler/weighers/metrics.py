"""MetricsWeigher: it weighs hosts by values that monitors measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from kilonova import errors
from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.ratios import ratios
from kilonova.scheduler.weighers import LOOP, BaseHostWeigher


class ComputeHostMetricNotFound(errors.NotFound):
    """A host does not report a metric that is configured for weighing."""

    msg_fmt = 'Metric %(name)s could not be found on the compute host node %(host)s.%(node)s.'


class MetricsWeigher(BaseHostWeigher):
    """Weigh hosts by the sum of their metrics, each multiplied by its ratio in [metrics]weight_setting.

    A host that lacks a metric is rejected. If [metrics]required is False, the host is not rejected but gets the value
    weight_of_unavailable.
    """

    multiplier = 'metrics_weight_multiplier'

    def configured_multiplier(self) -> float:
        """Return the option [metrics]weight_multiplier."""
        found: float = self.conf.metrics.weight_multiplier
        return found

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        has = {metric.name: metric.value for metric in host_state.metrics}
        wanted = self._wanted()
        missing = next((name for name in wanted if name not in has), None)
        if missing is None:
            return float(sum(ratio * has[name] for name, ratio in wanted.items()))
        if self.conf.metrics.required:
            raise ComputeHostMetricNotFound(name=missing, host=host_state.host, node=host_state.nodename)
        return float(self.conf.metrics.weight_of_unavailable)

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return LOOP (weigh host by host) if any metric is configured, otherwise zeros."""
        return LOOP if self._wanted() else np.zeros(len(arrays.table['live']))

    def _wanted(self) -> Any:
        return ratios(tuple(self.conf.metrics.weight_setting), '[metrics]weight_setting')
