"""Weighers: they decide which of the hosts that passed all filters is the best.

A weigher is a class with ``_weigh_object(host_state, spec)`` and a multiplier. Add it to the entry point group
``kilonova.scheduler.weighers``, or its path to ``[filter_scheduler]weight_classes``. The values of a weigher are scaled
to 0..1 over all hosts and multiplied by the multiplier of each host. The host with the greatest sum over all weighers
is the best.

A weigher that uses only columns of the host table (``table.Table``) has ``values(arrays, spec)`` in place of
``_weigh_object``. It returns an array with the values of all hosts, or LOOP if this request needs ``_weigh_object``.

If a weigher raises an error for a host, the host is rejected for this request. If it raises an error for all hosts at
once, the weigher is ignored. Errors are logged once (``plugins.guard``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from oslo_config import cfg
from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.plugins.guard import Guard

LOG = logging.getLogger(__name__)

GROUP = 'kilonova.scheduler.weighers'
# Values of the option weight_classes that mean all installed weighers.
ALL_WEIGHERS = ('kilonova.scheduler.weighers.all_weighers', 'nova.scheduler.weights.all_weighers')


# A weigher's ``values`` returns this object if the request needs ``_weigh_object``, which weighs one host at a time.
LOOP: Any = object()
_FORMS = ('values', '_weigh_object', 'weigh_objects', 'weight_multiplier')


class WeighedHost:
    """A host and its weight."""

    __slots__ = ('obj', 'weight')

    def __init__(self, obj: Any, weight: float = 0.0) -> None:
        self.obj, self.weight = obj, weight

    def __repr__(self) -> str:
        return f'WeighedHost [host: {self.obj!r}, weight: {self.weight}]'


class BaseHostWeigher:
    """Base class of weighers.

    ``multiplier`` is the name of the weigher's option in [filter_scheduler]; metadata of host aggregates may override
    the option. ``minval`` and ``maxval`` are the lower and the upper end of the scale. If they are None, the ends are
    the lowest and the highest value of the hosts.
    """

    multiplier: ClassVar[str | None] = None
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    conf: cfg.ConfigOpts

    def weight_multiplier(self, host_state: HostState) -> float:
        """Return the multiplier for this host."""
        if self.multiplier is None:
            return 1.0
        return multiplier_of(host_state, self.multiplier, self.configured_multiplier())

    def configured_multiplier(self) -> float:
        """Return the multiplier from the configuration, which aggregates may override."""
        found: float = self.conf.filter_scheduler[self.multiplier]
        return found

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        """Return the host's value, on any scale; a greater value is better.

        This implementation is for weighers with a method ``values``. It returns the host's entry in the array that
        ``values`` returns.
        """
        if host_state.arrays is None or array_form(self) is None:
            raise TypeError(f'{type(self).__name__} has no method _weigh_object')
        return float(host_state.arrays.answer(self, 'values', weight_properties)[host_state.host_index])

    def weigh_objects(self, weighed_obj_list: Sequence[WeighedHost], weight_properties: RequestSpec) -> list[float]:
        """Return the value of each host, in the order of ``weighed_obj_list``."""
        return [self._weigh_object(weighed.obj, weight_properties) for weighed in weighed_obj_list]


def all_weighers() -> list[type[BaseHostWeigher]]:
    """Return Kilonova's own weigher classes, sorted by name.

    Operators may name a function in the option weight_classes. Such a function can call ``all_weighers`` and add
    weighers to its result.
    """
    points = {point.name: point for point in metadata.entry_points(group=GROUP) if point.value.startswith('kilonova.')}
    return [points[name].load() for name in sorted(points)]


def multiplier_of(host_state: HostState, name: str, configured: float) -> float:
    """Return the lowest value that the metadata of the host's aggregates has for a multiplier.

    Return ``configured`` if there is no value or an invalid one.
    """
    values = host_state.metadata(name)
    if not values:
        return configured
    try:
        return min(_finite(value) for value in values)
    except ValueError:
        LOG.warning('Could not decode the %s weight multiplier of %s: %s', name, host_state.host, values)
        return configured


def array_form(one: Any) -> Any:
    """Return the weigher's method ``values``, or None if the weigher must handle each host alone.

    None is also returned for a subclass that inherits ``values`` but overrides another method, for example
    ``_weigh_object``, because the inherited ``values`` would not call this method.
    """
    owner = next((cls for cls in type(one).__mro__ if any(name in vars(cls) for name in _FORMS)), None)
    return one.values if owner is not None and 'values' in vars(owner) else None


def multipliers_of(weigher: BaseHostWeigher, hosts: Sequence[Any], guard: Guard) -> list[float]:
    """Return the weigher's multiplier for each host, or NaN for a host for which the weigher raised an error."""
    return [guard.call(lambda host: _finite(weigher.weight_multiplier(host)), host, default=math.nan) for host in hosts]


def values_of(
    weigher: BaseHostWeigher, weighed: Sequence[WeighedHost], spec_obj: RequestSpec, guard: Guard
) -> list[float]:
    """Return the hosts' values in the order of the hosts.

    The value is NaN for a host for which the weigher raised an error. All values are 0 if the weigher raised an error
    for all hosts at once.
    """
    if type(weigher).weigh_objects is BaseHostWeigher.weigh_objects:
        return [
            guard.call(
                lambda host: _finite(weigher._weigh_object(host, spec_obj)),  # noqa: SLF001
                one.obj,
                default=math.nan,
            )
            for one in weighed
        ]

    def all_at_once() -> list[float]:
        found = [_finite(value) for value in weigher.weigh_objects(weighed, spec_obj)]
        if len(found) != len(weighed):
            raise ValueError(f'the weigher returned {len(found)} values for {len(weighed)} hosts')
        return found

    return guard.call(all_at_once, default=[0.0] * len(weighed))


def _finite(value: str | float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f'{value} is not a finite number')
    return number


def normalize(values: ArrayLike, minval: float | None = None, maxval: float | None = None) -> NDArray[np.float64]:
    """Scale values to 0..1. All results are 0 if the lowest and the highest value are equal.

    The result 0 stands for the lowest value, or for ``minval`` if it is lower. The result 1 stands for the highest
    value, or for ``maxval`` if it is higher.
    """
    given = np.asarray(values, np.float64)
    if not len(given):
        return given
    low = given.min() if minval is None else min(minval, given.min())
    high = given.max() if maxval is None else max(maxval, given.max())
    return (given - low) / (high - low) if high != low else np.zeros(len(given))
