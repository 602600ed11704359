"""The allocation of a host, chosen without a query to Placement."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.scheduler.placement.local_candidates import LocalCandidates, Need
from tests.unit.scheduler.builders import GPU, spec

AMOUNTS = {'VCPU': 1}


def requests(
    found: dict[str, list[str]] | None, groups: list[str], gpus: tuple[int, ...] = (1,), suits: bool = True
) -> Any:
    """The allocation requests for a host whose pools offer these providers for the groups of a query."""
    pools = SimpleNamespace(providers=lambda given: found, support_requests=lambda given: suits)
    table = SimpleNamespace(devices=SimpleNamespace(pools=lambda index: pools))
    view: Any = SimpleNamespace(table=table)
    nothing: Any = None
    need = Need(AMOUNTS, (), dict.fromkeys(groups, GPU))
    host: Any = SimpleNamespace(uuid='root')
    return LocalCandidates(view, nothing, spec(gpus=gpus), need, nothing).requests(0, host)


@pytest.mark.parametrize('found', [None, {}, {'another': ['rp']}, {'group': ['rp'], 'another': ['rp']}])
def test_a_host_whose_devices_are_not_those_of_the_query_is_not_offered(found: dict[str, list[str]] | None) -> None:
    assert requests(found, ['group']) == []


def test_a_host_is_offered_with_the_providers_of_its_devices() -> None:
    (found,) = requests({'one': ['rp1'], 'two': ['rp1']}, ['one', 'two'])
    assert found == {
        'allocations': {'root': {'resources': AMOUNTS}, 'rp1': {'resources': {GPU: 2}}},
        'mappings': {'': ['root'], 'one': ['rp1'], 'two': ['rp1']},
    }


@pytest.mark.parametrize('suits', [True, False])
def test_devices_that_placement_does_not_know_are_looked_for_in_the_pools(suits: bool) -> None:
    found = requests(None, [], suits=suits)
    assert found == ([{'allocations': {'root': {'resources': AMOUNTS}}, 'mappings': {'': ['root']}}] if suits else [])


def test_a_server_without_devices_asks_no_pool() -> None:
    assert len(requests(None, [], gpus=(), suits=False)) == 1
