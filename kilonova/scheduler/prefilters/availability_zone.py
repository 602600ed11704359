"""Servers of an availability zone go to hosts of its aggregates (mirrored in Placement)."""
from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Facts, Query, RequestFilterFailed


def availability_zone(query: Query, spec: RequestSpec, facts: Facts) -> None:
    """Always on. The default zone is where hosts without a zone are, so it has no aggregate and asks for nothing."""
    zone = spec.availability_zone if 'availability_zone' in spec else None
    if not zone:
        return
    aggregates = facts.zone_aggregates(zone)
    if aggregates:
        query.unnamed.aggregates.append(aggregates)
    elif zone != facts.conf.default_availability_zone:
        raise RequestFilterFailed(reason=f'availability zone {zone} has no hosts')
