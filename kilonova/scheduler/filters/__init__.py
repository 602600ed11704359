"""Filters: which of Placement's hosts may take a request (scheduler.md §3).

A filter is a class with ``host_passes(host_state, spec_obj)``; put its name into an entry point of group
``kilonova.scheduler.filters``, or its path into ``[filter_scheduler]available_filters``, and its class name into
``enabled_filters``:

    class DumpFilter(filters.BaseHostFilter):
        def host_passes(self, host_state, spec_obj):
            LOG.debug('%s: %s MiB free', host_state.host, host_state.free_ram_mb)
            return True
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from oslo_config import cfg

LOG = logging.getLogger(__name__)

# The word in available_filters that means: every filter that is installed.
ALL_FILTERS = ('kilonova.scheduler.filters.all_filters', 'nova.scheduler.filters.all_filters')


class BaseFilter:
    """What the handler calls. ``run_filter_once_per_request``: leave it out for further servers of one request."""

    run_filter_once_per_request: ClassVar[bool] = False

    def _filter_one(self, obj: Any, spec_obj: Any) -> bool:
        return True

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> Iterator[Any]:
        """Those that pass; None says that no further filter shall run."""
        for obj in filter_obj_list:
            if self._filter_one(obj, spec_obj):
                yield obj

    def run_filter_for_index(self, index: int) -> bool:
        """Whether it runs for the server of this number (from 0) of a request."""
        return not (self.run_filter_once_per_request and index > 0)


class BaseHostFilter(BaseFilter):
    """Base of host filters. ``conf`` is set before the first use. ``RUN_ON_REBUILD``: look at rebuilds in place too."""

    RUN_ON_REBUILD: ClassVar[bool] = False
    conf: cfg.ConfigOpts

    def _filter_one(self, obj: Any, spec_obj: Any) -> bool:
        if not self.RUN_ON_REBUILD and is_rebuild(spec_obj):
            return True
        return self.host_passes(obj, spec_obj)

    def host_passes(self, host_state: Any, filter_properties: Any) -> bool:
        """Whether the host may take the request."""
        raise TypeError(f'{type(self).__name__} has no host_passes')


def is_rebuild(spec_obj: Any) -> bool:
    """Whether the server stays where it is and only its image is checked again."""
    hints = (spec_obj.scheduler_hints if 'scheduler_hints' in spec_obj else None) or {}
    return hints.get('_nova_check_type') == ['rebuild']


def run(filters: Sequence[BaseFilter], hosts: Sequence[Any], spec_obj: Any, index: int = 0) -> list[Any]:
    """The hosts that pass all filters, in their order; logs who sorted out how many."""
    passing = list(hosts)
    LOG.debug('Starting with %d host(s)', len(hosts))
    results: list[tuple[str, list[tuple[str, str]]]] = []
    short: list[str] = []
    before = len(hosts)
    for one in filters:
        name = type(one).__name__
        if not one.run_filter_for_index(index):
            continue
        found: Iterable[Any] | None = one.filter_all(passing, spec_obj)
        if found is None:
            LOG.debug('Filter %s says to stop filtering', name)
            return []
        passing = list(found)
        short.append(f'{name}: (start: {before}, end: {len(passing)})')
        results.append((name, [(host.host, host.nodename) for host in passing]))
        before = len(passing)
        if not passing:
            LOG.info('Filter %s returned 0 hosts', name)
            _log_nothing_left(spec_obj, short, results)
            break
        LOG.debug('Filter %(name)s returned %(count)d host(s)', {'name': name, 'count': len(passing)})
    return passing


def _log_nothing_left(spec_obj: Any, short: list[str], results: list[tuple[str, list[tuple[str, str]]]]) -> None:
    message = ("Filtering removed all hosts for the request with instance ID '%(uuid)s'. "
               'Filter results: %(results)s')
    uuid = spec_obj.instance_uuid if 'instance_uuid' in spec_obj else None
    LOG.debug(message, {'uuid': uuid, 'results': results})
    LOG.info(message, {'uuid': uuid, 'results': short})
