"""Prefilter for availability zones. The aggregates of zones are copied to Placement."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts, RequestFilterFailed


def availability_zone(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require a host in an aggregate of the requested availability zone. This prefilter cannot be turned off.

    Hosts without a zone form the default zone, which has no aggregate, so a request for the default zone adds no
    condition. Raises RequestFilterFailed if any other zone has no aggregates.
    """
    zone = spec.availability_zone if 'availability_zone' in spec else None
    if not zone:
        return
    aggregates = facts.zone_aggregates(zone)
    if aggregates:
        query.unnamed.aggregates.append(aggregates)
    elif zone != facts.conf.default_availability_zone:
        raise RequestFilterFailed(reason=f'availability zone {zone} has no hosts')
