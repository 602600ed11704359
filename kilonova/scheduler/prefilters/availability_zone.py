"""Prefilter for availability zones, whose aggregates are copied to Placement."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, RequestFilterFailed


def availability_zone(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require an aggregate of the requested availability zone. It is always on.

    The default zone consists of hosts without a zone, so it has no aggregate and adds no condition. Raises
    RequestFilterFailed if another zone has no aggregates.
    """
    zone = spec.availability_zone if 'availability_zone' in spec else None
    if not zone:
        return
    aggregates = facts.zone_aggregates(zone)
    if aggregates:
        query.unnamed.aggregates.append(aggregates)
    elif zone != facts.conf.default_availability_zone:
        raise RequestFilterFailed(reason=f'availability zone {zone} has no hosts')
