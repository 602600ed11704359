"""The allocation of a server whose ports guarantee a bandwidth, while others write the same allocation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kilonova.conductor.flows.network import guarantees
from kilonova.errors import PlacementConflict
from tests.fixtures.neutron import EGRESS, FakeNeutron
from tests.unit.conductor.site import SERVER, Site


@pytest.fixture
def bridge(site: Site, neutron: FakeNeutron) -> str:
    """The uuid of the resource provider of a bridge of gpu1 with 1000 kbit/s. The server has its allocation on gpu1."""
    site.inventory()
    return neutron.report(site.placement.client, 'gpu1')['gpu1:OVN Controller agent:br-ex']


def settle(site: Site, bridge: str, kbits: int, check: Callable[[], None]) -> bool:
    return guarantees.settle(site.env, SERVER, [EGRESS], check, more={bridge: {EGRESS: kbits}})


def rewrite(site: Site) -> None:
    """Write the server's allocation as it is, as another client may do at any time."""
    client = site.placement.client
    there = client.get_allocations(SERVER)
    client.claim(
        SERVER,
        {provider: {'resources': given['resources']} for provider, given in there['allocations'].items()},
        project_id='demo',
        user_id='alice',
        generation=there['consumer_generation'],
    )


def held(site: Site, bridge: str) -> int:
    found = site.placement.client.get_allocations(SERVER)['allocations'].get(bridge)
    return found['resources'][EGRESS] if found else 0


def test_a_write_is_repeated_if_another_client_wrote_the_allocation_meanwhile(site: Site, bridge: str) -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 1:
            rewrite(site)

    assert settle(site, bridge, 600, check)
    assert len(checks) == 2 and held(site, bridge) == 600


def test_a_write_is_not_repeated_for_ever(site: Site, bridge: str) -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        rewrite(site)

    with pytest.raises(PlacementConflict):
        settle(site, bridge, 600, check)
    assert len(checks) == guarantees.WRITE_ATTEMPTS and held(site, bridge) == 0


def test_a_bandwidth_that_the_host_does_not_have_is_refused_at_once(site: Site, bridge: str) -> None:
    """Another try would not go better."""
    checks: list[int] = []
    with pytest.raises(PlacementConflict):
        settle(site, bridge, 1001, lambda: checks.append(1))
    assert checks == [1] and held(site, bridge) == 0
