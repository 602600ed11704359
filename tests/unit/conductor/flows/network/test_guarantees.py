"""The allocation of a server whose ports guarantee a bandwidth, while others write the same allocation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.conductor.flows.network import guarantees
from kilonova.errors import PlacementConflict
from kilonova.objects.port_resources import PortResources
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


def test_a_server_without_an_allocation_gets_none(site: Site, neutron: FakeNeutron, bridge: str) -> None:
    """It was deleted, or shelved and offloaded."""
    site.placement.client.delete_allocations(SERVER)
    assert not settle(site, bridge, 600, lambda: pytest.fail('nothing is written'))
    assert SERVER not in site.placement.allocations()


def test_a_provider_that_is_full_meanwhile_is_passed_over(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    full: list[str] = ['rp1', 'rp2']
    tried: list[Any] = []

    def settle(*args: Any, more: Any = None, **kwargs: Any) -> bool:
        tried.append(more)
        if more is not None and next(iter(more)) in full:
            raise PlacementConflict('full')
        return True

    site.put('active')
    site.accept('attach_interface')
    work = site.work()
    offers = {'allocation_requests': [{'mappings': {'g': [name]}} for name in ('rp1', 'rp2', 'rp3')]}
    monkeypatch.setattr(guarantees, 'settle', settle)
    monkeypatch.setattr(site.env, '_placement', None, raising=False)
    monkeypatch.setattr(site.env, 'placement', SimpleNamespace(allocation_candidates=lambda query: offers))
    wanted = PortResources({'g': {EGRESS: 5}}, {'g': ()})
    assert guarantees.add(work, 'p', wanted, None) == {'g': ['rp3']}
    assert tried == [None, *({name: {EGRESS: 5}} for name in ('rp1', 'rp2', 'rp3'))]
    full.append('rp3')
    with pytest.raises(guarantees.NoRoomForPort, match='gpu1'):
        guarantees.add(work, 'p', wanted, None)
