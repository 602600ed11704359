"""What every request is asked of Placement besides its own needs (scheduler.md §4).

A prefilter is a function ``(query, spec, facts) -> None`` that adds to the query; ``facts`` are the settings and
look-ups it may need. ``query.RequestFilterFailed`` ends the scheduling.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oslo_config import cfg

from kilonova import objects
from kilonova.scheduler.prefilters.availability_zone import availability_zone
from kilonova.scheduler.prefilters.compute_status import compute_status
from kilonova.scheduler.prefilters.image_type import image_type
from kilonova.scheduler.prefilters.owner import owner
from kilonova.scheduler.query import Query


@dataclass(frozen=True)
class Facts:
    """``zone_aggregates(zone)`` → uuids of the aggregates of an availability zone."""

    conf: cfg.ConfigOpts
    zone_aggregates: Callable[[str], list[str]]


ALL: tuple[Callable[[Query, objects.RequestSpec, Facts], None], ...] = (
    availability_zone,
    image_type,
    compute_status,
    owner,
)
