"""Detaching an interface: how the operation ends, when it is cancelled as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import Site

EVENT = 'compute_detach_interface'


@pytest.fixture
def detach(site: Site, ports: list[str], begin: Callable[..., Any]) -> Callable[[], Any]:
    """Detach the first of the server's three interfaces: the row of the server afterwards."""
    vif = begin('detach_interface', {'vif': None, 'port_id': ports[0]}).vifs()[0]
    site.update(args=json.dumps({'vif': vif.stored()}))
    site.sent.clear()

    def run() -> list[str]:
        site.go()
        return [one['id'] for one in json.loads(site.row()['extra_network_info'])]

    return run


def test_the_guest_releases_the_interface_before_its_port_goes(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    there: list[int] = []
    site.answers['detach_interface'] = lambda sent: there.append(len(neutron.bound()))
    assert detach() == ports[1:] and there == [3] and len(neutron.bound()) == 2
    assert site.asked() == ['gpu1 detach_interface'] and site.kept() is None
    assert site.action() == 'done' and site.events() == [(EVENT, 'Success', 'gpu1', None)]


def test_a_detach_that_is_cancelled_after_the_guest_released_the_interface_is_completed(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    """Its action says that it was cancelled."""
    site.answers['detach_interface'] = lambda sent: site.update(cancelled=True)
    assert detach() == ports[1:] and len(neutron.bound()) == 2
    assert site.asked() == ['gpu1 detach_interface'] and site.kept() is None and site.action() == 'Error'
    ((event, result, _, _),) = site.events()
    assert (event, result) == (EVENT, 'Success')


def test_a_detach_that_is_cancelled_before_leaves_the_interface(
    site: Site, neutron: FakeNeutron, ports: list[str], detach: Callable[[], list[str]]
) -> None:
    site.update(cancelled=True)
    assert detach() == ports and len(neutron.bound()) == 3
    assert site.kept() is None and site.action() == 'Error'
    assert [(event, result) for event, result, *_ in site.events()] == [(EVENT, 'Error')]
