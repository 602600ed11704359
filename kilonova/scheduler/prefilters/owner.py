"""Providers of other services (accelerators) may look like ours: ask for those that computes report."""
from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Facts, Query

OWNER = 'OWNER_NOVA'


def owner(query: Query, spec: RequestSpec, facts: Facts) -> None:
    """Always on: each compute puts the trait on its root and on its PCI devices."""
    query.root_required.add(OWNER)
    for suffix in query.pci_groups:
        query.groups[suffix].required.add(OWNER)
