"""Filters: which of Placement's hosts may take a request.

A filter is a class with ``host_passes(host_state, spec_obj)``; put its name into an entry point of group
``kilonova.scheduler.filters``, or its path into ``[filter_scheduler]available_filters``, and its class name into
``enabled_filters``:

    class DumpFilter(filters.BaseHostFilter):
        def host_passes(self, host_state, spec_obj):
            LOG.debug('%s: %s MiB free', host_state.host, host_state.free_ram_mb)
            return True

A filter that decides by columns of ``table.Table`` has ``mask(look, spec_obj)`` instead: it gives all hosts' answers
at once (True where a host passes), None when it asks nothing of this request, LOOP when this request needs
``host_passes`` after all. ``host_passes`` of a filter that has only a mask is made from it.

A filter that raises rejects the host, for this request; the log tells it once (``scheduler.guard``).
"""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, ClassVar

from oslo_config import cfg

from kilonova.objects import RequestSpec
from kilonova.scheduler.guard import Guard
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look

LOG = logging.getLogger(__name__)

# What ``mask`` returns for a request that only ``host_passes`` can answer.
LOOP: Any = object()
_FORMS = ('mask', 'host_passes', '_filter_one', 'filter_all')

GROUP = 'kilonova.scheduler.filters'
# The word in available_filters that means: every filter that is installed.
ALL_FILTERS = ('kilonova.scheduler.filters.all_filters', 'nova.scheduler.filters.all_filters')


class BaseFilter:
    """What the handler calls. ``run_filter_once_per_request``: leave it out for further servers of one request."""

    run_filter_once_per_request: ClassVar[bool] = False

    def _filter_one(self, obj: HostState, spec_obj: RequestSpec) -> bool:
        return True

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: RequestSpec) -> Iterator[Any]:
        """Those that pass; None says that no further filter shall run."""
        for obj in filter_obj_list:
            if self._filter_one(obj, spec_obj):
                yield obj

    def run_filter_for_index(self, index: int) -> bool:
        """Whether it runs for the server of this number (from 0) of a request."""
        return not (self.run_filter_once_per_request and index > 0)


class BaseHostFilter(BaseFilter):
    """Base of host filters. ``conf`` is set before the first use. ``RUN_ON_REBUILD``: look at rebuilds in place too.
    ``at_most``: ``mask`` is an upper bound; ``host_passes`` is asked about the host that would be taken."""

    RUN_ON_REBUILD: ClassVar[bool] = False
    at_most: ClassVar[bool] = False
    conf: cfg.ConfigOpts

    def _filter_one(self, obj: HostState, spec_obj: RequestSpec) -> bool:
        if not self.RUN_ON_REBUILD and is_rebuild(spec_obj):
            return True
        return self.host_passes(obj, spec_obj)

    def host_passes(self, host_state: HostState, filter_properties: RequestSpec) -> bool:
        """Whether the host may take the request; where a filter has only ``mask``, by that."""
        if host_state.look is None or array_form(self) is None:
            raise TypeError(f'{type(self).__name__} has no host_passes')
        found = host_state.look.answer(self, 'mask', filter_properties)
        return found is None or bool(found[host_state.place])


def all_filters() -> list[type[BaseFilter]]:
    """Ours, by name: for a function in available_filters that adds some to them."""
    points = {point.name: point for point in metadata.entry_points(group=GROUP)
              if point.value.startswith('kilonova.')}
    return [points[name].load() for name in sorted(points)]


def is_rebuild(spec_obj: RequestSpec) -> bool:
    """Whether the server stays where it is and only its image is checked again."""
    return _hint(spec_obj, '_nova_check_type') == ['rebuild']


def is_forced_move(spec_obj: RequestSpec) -> bool:
    """Whether an administrator moves the server to a host whatever operators say of that, if it is up; a create to
    a named host isn't so."""
    forced = 'force_hosts' in spec_obj and bool(spec_obj.force_hosts)
    return forced and _hint(spec_obj, '_nova_forced_move') == ['true']


def _hint(spec_obj: RequestSpec, name: str) -> list[str] | None:
    """A hint that users can't give."""
    hints = (spec_obj.scheduler_hints if 'scheduler_hints' in spec_obj else None) or {}
    found: list[str] | None = hints.get(name)
    return found


def array_form(one: Any) -> Any:
    """The filter's ``mask``, or None: a subclass that changes how single hosts pass has no array form of its own."""
    owner = next((cls for cls in type(one).__mro__ if any(name in vars(cls) for name in _FORMS)), None)
    return one.mask if owner is not None and 'mask' in vars(owner) else None


def mask_of(one: BaseFilter, look: Look, spec_obj: RequestSpec, guard: Guard) -> Any:
    """The hosts that pass, None: all of them, or LOOP: the filter looks at one host after the other."""
    form = array_form(one)
    if form is None:
        return LOOP
    if is_rebuild(spec_obj) and not getattr(one, 'RUN_ON_REBUILD', False):
        return None
    with guard:
        return form(look, spec_obj)
    return LOOP


def passing(one: BaseFilter, hosts: Sequence[Any], spec_obj: RequestSpec, guard: Guard) -> list[Any] | None:
    """The hosts that pass a filter which looks at one after the other; those for which it raises don't. None: no
    further filter shall run."""
    if type(one).filter_all is BaseFilter.filter_all:
        return [host for host in hosts if guard.call(one._filter_one, host, spec_obj, default=False)]  # noqa: SLF001
    kept: list[Any] = []

    def all_at_once() -> bool:
        found = one.filter_all(hosts, spec_obj)
        if found is not None:
            # Those that it gave before it raised stay.
            kept.extend(found)
        return found is not None
    return kept if guard.call(all_at_once, default=True) else None
