"""Aggregates that ask for traits are left to the servers that require them."""
from __future__ import annotations

from kilonova.objects import RequestSpec
from kilonova.scheduler.query import Facts, Query

PREFIX = 'trait:'


def isolated_aggregates(query: Query, spec: RequestSpec, facts: Facts) -> None:
    """With [scheduler]enable_isolated_aggregate_filtering: metadata trait:<name>=required, all of them."""
    if not facts.conf.scheduler.enable_isolated_aggregate_filtering:
        return
    required = query.root_required.union(*(group.required for group in query.groups.values()))
    for row in facts.aggregates():
        wants = {key.removeprefix(PREFIX) for key, value in row['metadata'].items()
                 if key.startswith(PREFIX) and value == 'required'}
        if not wants <= required:
            query.unnamed.forbidden_aggregates.add(row['uuid'])
