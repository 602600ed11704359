"""Prefilter that requires the trait OWNER_NOVA, because other services may have providers with the same resources."""

from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.placement.query import CandidateQuery, PrefilterFacts

OWNER = 'OWNER_NOVA'


def owner(query: CandidateQuery, spec: RequestSpec, facts: PrefilterFacts) -> None:
    """Require the trait OWNER_NOVA, which each compute sets on its root provider and its PCI devices.

    This prefilter cannot be turned off.
    """
    query.root_required.add(OWNER)
    for suffix in query.pci_groups:
        query.groups[suffix].required.add(OWNER)
