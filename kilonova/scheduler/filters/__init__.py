"""Filters: they decide which of the offered hosts may take a request.

A filter is a class with ``host_passes(host_state, spec_obj)``. Add it to the entry point group
``kilonova.scheduler.filters``, or its path to ``[filter_scheduler]available_filters``, and its class name to
``enabled_filters``:

    class DumpFilter(filters.BaseHostFilter):
        def host_passes(self, host_state, spec_obj):
            LOG.debug('%s: %s MiB free', host_state.host, host_state.free_ram_mb)
            return True

A filter that uses only columns of ``table.Table`` has ``mask(arrays, spec_obj)`` instead. It returns the results for
all hosts at once (True where a host passes), None if the filter does not apply to this request, or PER_HOST if this
request needs ``host_passes``. If a filter has only ``mask``, its ``host_passes`` uses the mask.

If a filter raises an error for a host, the host is rejected for this request, and this is logged once
(``plugins.guard``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, ClassVar

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.plugins.guard import Guard

LOG = logging.getLogger(__name__)

# A filter's ``mask`` returns this object if the request needs ``host_passes``, which checks one host at a time.
PER_HOST: Any = object()
_FORMS = ('mask', 'host_passes', '_filter_one', 'filter_all')

GROUP = 'kilonova.scheduler.filters'
# Values of the option available_filters that mean all installed filters.
ALL_FILTERS = ('kilonova.scheduler.filters.all_filters', 'nova.scheduler.filters.all_filters')


class BaseFilter:
    """Base class of filters.

    If ``run_filter_once_per_request`` is True, the filter runs only for the first server of a request.
    """

    run_filter_once_per_request: ClassVar[bool] = False

    def _filter_one(self, obj: HostState, spec_obj: RequestSpec) -> bool:
        return True

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: RequestSpec) -> Iterator[Any]:
        """Yield the hosts that pass. A subclass may return None to reject all hosts and skip the remaining filters."""
        for obj in filter_obj_list:
            if self._filter_one(obj, spec_obj):
                yield obj

    def run_filter_for_index(self, index: int) -> bool:
        """Return whether the filter runs for the server with this number (from 0) of a request."""
        return not (self.run_filter_once_per_request and index > 0)


class BaseHostFilter(BaseFilter):
    """Base class of the filters. ``conf`` is set before the first use.

    If ``RUN_ON_REBUILD`` is True, the filter also checks the host of a server that is rebuilt. If ``at_most`` is True,
    ``mask`` may be True for hosts that do not pass. The scheduler then also calls ``host_passes`` for each host before
    it chooses the host.
    """

    RUN_ON_REBUILD: ClassVar[bool] = False
    at_most: ClassVar[bool] = False
    conf: cfg.ConfigOpts

    def _filter_one(self, obj: HostState, spec_obj: RequestSpec) -> bool:
        if not self.RUN_ON_REBUILD and is_rebuild(spec_obj):
            return True
        return self.host_passes(obj, spec_obj)

    def host_passes(self, host_state: HostState, filter_properties: RequestSpec) -> bool:
        """Return whether the host may take the request.

        This implementation is for filters with a method ``mask``. It returns the host's entry in the array that
        ``mask`` returns.
        """
        if host_state.arrays is None or array_form(self) is None:
            raise TypeError(f'{type(self).__name__} has no method host_passes')
        found = host_state.arrays.answer(self, 'mask', filter_properties)
        return found is None or bool(found[host_state.host_index])


def all_filters() -> list[type[BaseFilter]]:
    """Return Kilonova's own filter classes, sorted by name.

    Operators may name a function in the option available_filters. Such a function can call ``all_filters`` and add
    filters to its result.
    """
    points = {point.name: point for point in metadata.entry_points(group=GROUP) if point.value.startswith('kilonova.')}
    return [points[name].load() for name in sorted(points)]


def is_rebuild(spec_obj: RequestSpec) -> bool:
    """Return whether the request is a rebuild.

    A server that is rebuilt stays on its host, and only its image is checked again.
    """
    return _hint(spec_obj, '_nova_check_type') == ['rebuild']


def is_forced_move(spec_obj: RequestSpec) -> bool:
    """Return whether an administrator forces the move of a server to a host (``force`` in the API request).

    The scheduler then runs no filters and only checks that the host is up. The creation of a server on a named host
    also uses ``force_hosts``, but is not a forced move.
    """
    forced = 'force_hosts' in spec_obj and bool(spec_obj.force_hosts)
    return forced and _hint(spec_obj, '_nova_forced_move') == ['true']


def _hint(spec_obj: RequestSpec, name: str) -> list[str] | None:
    """Return the value of a scheduler hint that only Kilonova sets, or None if the request does not have it.

    Such hints are ``_nova_check_type`` and ``_nova_forced_move``. Users cannot set them.
    """
    hints = (spec_obj.scheduler_hints if 'scheduler_hints' in spec_obj else None) or {}
    found: list[str] | None = hints.get(name)
    return found


def array_form(one: Any) -> Any:
    """Return the filter's method ``mask``, or None if the filter must check each host alone.

    None is also returned for a subclass that inherits ``mask`` but overrides another method, for example
    ``host_passes``, because the inherited ``mask`` would not call this method.
    """
    owner = next((cls for cls in type(one).__mro__ if any(name in vars(cls) for name in _FORMS)), None)
    return one.mask if owner is not None and 'mask' in vars(owner) else None


def mask_of(one: BaseFilter, arrays: HostArrays, spec_obj: RequestSpec, guard: Guard) -> Any:
    """Return a boolean array that is True for the hosts that pass, or None if all hosts pass.

    Return PER_HOST if the filter must check each host alone.
    """
    form = array_form(one)
    if form is None:
        return PER_HOST
    if is_rebuild(spec_obj) and not getattr(one, 'RUN_ON_REBUILD', False):
        return None
    with guard:
        return form(arrays, spec_obj)
    return PER_HOST


def passing(one: BaseFilter, hosts: Sequence[Any], spec_obj: RequestSpec, guard: Guard) -> list[Any] | None:
    """Return the hosts that pass a filter that checks each host alone.

    A host for which the filter raises an error does not pass. Return None if ``filter_all`` returns None: all hosts are
    rejected, and the remaining filters are skipped.
    """
    if type(one).filter_all is BaseFilter.filter_all:
        return [host for host in hosts if guard.call(one._filter_one, host, spec_obj, default=False)]  # noqa: SLF001
    kept: list[Any] = []

    def all_at_once() -> bool:
        found = one.filter_all(hosts, spec_obj)
        if found is not None:
            # If ``found`` is a generator that raises an error, only the hosts that it yielded before pass.
            kept.extend(found)
        return found is not None

    return kept if guard.call(all_at_once, default=True) else None
