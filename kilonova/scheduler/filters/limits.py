"""Filters that limit the number of servers, or of builds and moves under way, on a host."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.filters.aggregates import Metadata, lowest
from kilonova.scheduler.hosts.arrays import HostArrays

LOG = logging.getLogger(__name__)


class _Limit(BaseHostFilter):
    """Base class of filters that pass hosts whose value in ``column`` of the host table is below the limit.

    The limit is the value of the configured ``option``.
    """

    column: ClassVar[str]
    option: ClassVar[str]

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts whose value is below the limit."""
        return arrays.table[self.column] < self.conf.filter_scheduler[self.option]


class _AggregateLimit(_Limit):
    """Base class of filters whose limit is set by an option or by the metadata of the host's aggregates.

    The metadata key is the option's name. Metadata has priority over the configuration. The lowest of several values is
    used.
    """

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts whose value is below the limit.

        The limit of a host is set by the metadata of its aggregates, or else by the configuration.
        """
        return arrays.table[self.column] < arrays.by_aggregates(self._limit, np.float64)

    def _limit(self, metadata: Metadata) -> float:
        configured: float = self.conf.filter_scheduler[self.option]
        values = sorted({one[self.option] for one in metadata if self.option in one})
        try:
            found: float = lowest(values, configured)
            return found
        except ValueError as error:
            LOG.warning(
                'Could not decode %(option)s of aggregates, using the configured value: %(error)s',
                {'option': self.option, 'error': error},
            )
            return configured


class IoOpsFilter(_Limit):
    """Pass only hosts with fewer than [filter_scheduler]max_io_ops_per_host builds and moves under way."""

    column, option = 'num_io_ops', 'max_io_ops_per_host'


class AggregateIoOpsFilter(_AggregateLimit):
    """Pass only hosts with fewer builds and moves under way than max_io_ops_per_host in their aggregates' metadata."""

    column, option = 'num_io_ops', 'max_io_ops_per_host'


class NumInstancesFilter(_Limit):
    """Pass only hosts with fewer than [filter_scheduler]max_instances_per_host servers."""

    column, option = 'num_instances', 'max_instances_per_host'


class AggregateNumInstancesFilter(_AggregateLimit):
    """Pass only hosts with fewer servers than max_instances_per_host in their aggregates' metadata."""

    column, option = 'num_instances', 'max_instances_per_host'
