"""Weighers: which of the hosts that passed is best.

A weigher is a class with ``_weigh_object(host_state, spec)`` and a multiplier; put it into an entry point of group
``kilonova.scheduler.weighers`` or name its path in ``[filter_scheduler]weight_classes``. Its values are scaled to 0..1
over the hosts, times the multiplier of each host, and summed over the weighers; the greatest sum is best.

A weigher that needs only columns of ``table.Table`` has ``values(look, spec)`` instead: an array with all hosts'
values, or LOOP for a request that needs ``_weigh_object`` after all. That of a weigher that has only values is made
from them.

A weigher that raises for a host rejects it, for this request; one that raises for all of them at once counts for
nothing. The log tells it once (``scheduler.guard``).
"""
from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from oslo_config import cfg

from kilonova.objects import RequestSpec
from kilonova.scheduler.guard import Guard
from kilonova.scheduler.host_state import HostState

LOG = logging.getLogger(__name__)

GROUP = 'kilonova.scheduler.weighers'
# The word in weight_classes that means: every weigher that is installed.
ALL_WEIGHERS = ('kilonova.scheduler.weighers.all_weighers', 'nova.scheduler.weights.all_weighers')


# What ``values`` returns for a request that only ``_weigh_object`` can answer.
LOOP: Any = object()
_FORMS = ('values', '_weigh_object', 'weigh_objects', 'weight_multiplier')


class WeighedHost:
    """A host and its weight so far."""

    __slots__ = ('obj', 'weight')

    def __init__(self, obj: Any, weight: float = 0.0) -> None:
        self.obj, self.weight = obj, weight

    def __repr__(self) -> str:
        return f'WeighedHost [host: {self.obj!r}, weight: {self.weight}]'


class BaseHostWeigher:
    """``multiplier``: name of its option in [filter_scheduler], which metadata of host aggregates may override.

    ``minval`` and ``maxval`` fix an end of the scale that the hosts' own values would else set.
    """

    multiplier: ClassVar[str | None] = None
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    conf: cfg.ConfigOpts

    def weight_multiplier(self, host_state: HostState) -> float:
        """The multiplier for this host."""
        if self.multiplier is None:
            return 1.0
        return multiplier_of(host_state, self.multiplier, self.configured_multiplier())

    def configured_multiplier(self) -> float:
        """The option's value."""
        found: float = self.conf.filter_scheduler[self.multiplier]
        return found

    def _weigh_object(self, host_state: HostState, weight_properties: RequestSpec) -> float:
        """The host's value, on any scale; more is better. Where a weigher has only ``values``, by these."""
        if host_state.look is None or array_form(self) is None:
            raise TypeError(f'{type(self).__name__} has no _weigh_object')
        return float(host_state.look.answer(self, 'values', weight_properties)[host_state.place])

    def weigh_objects(self, weighed_obj_list: Sequence[WeighedHost], weight_properties: RequestSpec) -> list[float]:
        """The hosts' values, in their order."""
        return [self._weigh_object(weighed.obj, weight_properties) for weighed in weighed_obj_list]


def all_weighers() -> list[type[BaseHostWeigher]]:
    """Ours, by name: for a function in weight_classes that adds some to them."""
    points = {point.name: point for point in metadata.entry_points(group=GROUP)
              if point.value.startswith('kilonova.')}
    return [points[name].load() for name in sorted(points)]


def multiplier_of(host_state: HostState, name: str, configured: float) -> float:
    """The least that the host's aggregates say for this multiplier; ``configured`` where they say none or nonsense."""
    values = host_state.metadata(name)
    if not values:
        return configured
    try:
        return min(_finite(value) for value in values)
    except ValueError:
        LOG.warning('Could not decode the %s weight multiplier of %s: %s', name, host_state.host, values)
        return configured


def array_form(one: Any) -> Any:
    """The weigher's ``values``, or None: a subclass that weighs single hosts otherwise has no array form of its own."""
    owner = next((cls for cls in type(one).__mro__ if any(name in vars(cls) for name in _FORMS)), None)
    return one.values if owner is not None and 'values' in vars(owner) else None


def multipliers_of(weigher: BaseHostWeigher, hosts: Sequence[Any], guard: Guard) -> list[float]:
    """The weigher's multiplier for each host; NaN where it raised."""
    return [guard.call(lambda host: _finite(weigher.weight_multiplier(host)), host, default=math.nan)
            for host in hosts]


def values_of(weigher: BaseHostWeigher, weighed: Sequence[WeighedHost], spec_obj: RequestSpec,
              guard: Guard) -> list[float]:
    """The hosts' values, in their order; NaN where it raised, all 0 when it raised for all of them at once."""
    if type(weigher).weigh_objects is BaseHostWeigher.weigh_objects:
        return [guard.call(lambda host: _finite(weigher._weigh_object(host, spec_obj)), one.obj,  # noqa: SLF001
                           default=math.nan) for one in weighed]

    def all_at_once() -> list[float]:
        found = [_finite(value) for value in weigher.weigh_objects(weighed, spec_obj)]
        if len(found) != len(weighed):
            raise ValueError(f'{len(found)} weights for {len(weighed)} hosts')
        return found
    return guard.call(all_at_once, default=[0.0] * len(weighed))


def _finite(value: str | float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f'{value} is no weight')
    return number


def normalize(values: ArrayLike, minval: float | None = None, maxval: float | None = None) -> NDArray[np.float64]:
    """Scale to 0..1; all 0 when the ends are equal. A value beyond a fixed end moves that end."""
    given = np.asarray(values, np.float64)
    if not len(given):
        return given
    low = given.min() if minval is None else min(minval, given.min())
    high = given.max() if maxval is None else max(maxval, given.max())
    return (given - low) / (high - low) if high != low else np.zeros(len(given))
