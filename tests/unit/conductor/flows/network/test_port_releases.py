"""Ports that a server gives up: at once, or later if the network service does not answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from kilonova.conductor.flows.network import port_releases
from kilonova.objects.port_resources import PortResources
from tests.fixtures.neutron import EGRESS, FakeNeutron
from tests.unit.conductor.site import SERVER, Site


def holders(neutron: FakeNeutron, ports: list[str]) -> list[str | None]:
    """Return for each port the server that has it, '' for a port without a server and None for a deleted port."""
    return [neutron.ports[port_id]['device_id'] if port_id in neutron.ports else None for port_id in ports]


def break_service(neutron: FakeNeutron) -> None:
    """Let no request reach the network service from now on."""

    def broken(method: str, path: str) -> None:
        raise neutron.broken()

    neutron.before = broken


@pytest.mark.parametrize('answers', [True, False])
def test_all_ports_but_those_to_keep_are_released(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], answers: bool
) -> None:
    """Unbind the port that the user created, delete the other one, and keep the third."""
    work = begin('delete')
    if not answers:
        break_service(neutron)
    port_releases.drop(work, [ports[0]], [ports[2]])
    assert holders(neutron, ports) == (['', None, SERVER] if answers else [SERVER] * 3)
    assert site.releases() == ([] if answers else [(None, {'ports_of': SERVER, 'ports_given': [ports[0]]})])


@pytest.mark.parametrize('answers', [True, False])
@pytest.mark.parametrize('is_own', [True, False])
def test_one_port_is_released_and_the_others_stay(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], is_own: bool, answers: bool
) -> None:
    """Unbind the port if the user created it, and delete it in all other cases."""
    work = begin('detach_interface')
    vif = dataclasses.replace(next(vif for vif in work.vifs() if vif.id == ports[1]), preserve_on_delete=is_own)
    if not answers:
        break_service(neutron)
    port_releases.drop_one(work, vif)
    given = [ports[1]] if is_own else []
    assert holders(neutron, ports) == [SERVER, ('' if is_own else None) if answers else SERVER, SERVER]
    assert site.releases() == ([] if answers else [(None, {'ports_of': SERVER, 'ports_given': given})])


def test_a_port_that_another_server_has_by_now_is_not_released(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any]
) -> None:
    work = begin('detach_interface')
    neutron.ports[ports[0]]['device_id'] = 'another'
    port_releases.drop_one(work, next(vif for vif in work.vifs() if vif.id == ports[0]))
    assert holders(neutron, ports) == ['another', SERVER, SERVER] and site.releases() == []


@pytest.mark.parametrize('answers', [True, False])
def test_what_a_port_guarantees_is_released(
    site: Site, neutron: FakeNeutron, ports: list[str], begin: Callable[..., Any], answers: bool
) -> None:
    """Leave the server's other resources, and do nothing for a port that guarantees nothing."""
    site.inventory()
    bridge = neutron.report(site.placement.client, 'gpu1')['gpu1:OVN Controller agent:br-ex']
    client = site.placement.client
    held = client.get_allocations(SERVER)
    allocations = {name: {'resources': given['resources']} for name, given in held['allocations'].items()}
    client.claim(
        SERVER,
        {**allocations, bridge: {'resources': {EGRESS: 600}}},
        project_id='demo',
        user_id='alice',
        generation=held['consumer_generation'],
    )
    work = begin('detach_interface')
    if not answers:
        break_service(neutron)
    port_releases.drop_guarantees(work, ports[0], None)
    assert site.releases() == [] and bridge in client.get_allocations(SERVER)['allocations']
    port_releases.drop_guarantees(work, ports[0], PortResources({'g': {EGRESS: 600}}, {'g': ()}))
    assert (bridge in client.get_allocations(SERVER)['allocations']) is not answers
    assert allocations.keys() <= client.get_allocations(SERVER)['allocations'].keys()
    later = [(None, {'resources_of': ports[0], 'classes': [EGRESS]})]
    assert site.releases() == ([] if answers else later)
