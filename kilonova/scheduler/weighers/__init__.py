"""Weighers: which of the hosts that passed is best (scheduler.md §5).

A weigher is a class with ``_weigh_object(host_state, spec)`` and a multiplier; put it into an entry point of group
``kilonova.scheduler.weighers`` or name its path in ``[filter_scheduler]weight_classes``. Its values are scaled to 0..1
over the hosts, times the multiplier of each host, and summed over the weighers; the greatest sum is best.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from oslo_config import cfg

LOG = logging.getLogger(__name__)

# The word in weight_classes that means: every weigher that is installed.
ALL_WEIGHERS = ('kilonova.scheduler.weighers.all_weighers', 'nova.scheduler.weights.all_weighers')


class WeighedHost:
    """A host and its weight so far."""

    __slots__ = ('obj', 'weight')

    def __init__(self, obj: Any, weight: float = 0.0) -> None:
        self.obj, self.weight = obj, weight

    def __repr__(self) -> str:
        return f'WeighedHost [host: {self.obj!r}, weight: {self.weight}]'


class BaseHostWeigher:
    """``multiplier``: name of its option in [filter_scheduler], which host aggregates may override.

    ``minval`` and ``maxval`` fix an end of the scale that the hosts' own values would else set.
    """

    multiplier: ClassVar[str | None] = None
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    conf: cfg.ConfigOpts

    def weight_multiplier(self, host_state: Any) -> float:
        """The multiplier for this host."""
        if self.multiplier is None:
            return 1.0
        configured = self.conf.filter_scheduler[self.multiplier]
        values = host_state.metadata(self.multiplier)
        if not values:
            return configured
        try:
            return min(float(value) for value in values)
        except ValueError:
            LOG.warning('Could not decode the %s weight multiplier of %s: %s', self.multiplier, host_state.host, values)
            return configured

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        """The host's value, on any scale; more is better."""
        raise TypeError(f'{type(self).__name__} has no _weigh_object')

    def weigh_objects(self, weighed_obj_list: Sequence[WeighedHost], weight_properties: Any) -> list[float]:
        """The hosts' values, in their order."""
        return [self._weigh_object(weighed.obj, weight_properties) for weighed in weighed_obj_list]


def weigh(weighers: Sequence[BaseHostWeigher], hosts: Sequence[Any], spec_obj: Any) -> list[WeighedHost]:
    """The hosts with their weights, best first; equal ones stay in their order."""
    weighed = [WeighedHost(host) for host in hosts]
    if len(weighed) > 1:
        for weigher in weighers:
            multipliers = [weigher.weight_multiplier(one.obj) for one in weighed]
            if not any(multipliers):
                continue
            values = normalize(weigher.weigh_objects(weighed, spec_obj), weigher.minval, weigher.maxval)
            for one, value, multiplier in zip(weighed, values, multipliers, strict=True):
                one.weight += value * multiplier
    return sorted(weighed, key=lambda one: one.weight, reverse=True)


def normalize(values: Sequence[float], minval: float | None = None, maxval: float | None = None) -> list[float]:
    """Scale to 0..1; all 0 when the ends are equal. A value beyond a fixed end moves that end."""
    if not values:
        return []
    low = min(values) if minval is None else min(minval, *values)
    high = max(values) if maxval is None else max(maxval, *values)
    if low == high:
        return [0.0] * len(values)
    return [(value - low) / (high - low) for value in values]
