"""The DNS names of a renamed server's ports, while others change or delete the ports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import Site


def names(neutron: FakeNeutron) -> list[str]:
    """The DNS names of the ports, in the order of their ids."""
    return [neutron.ports[port_id]['dns_name'] for port_id in sorted(neutron.ports)]


@pytest.fixture
def rename(site: Site, begin: Callable[..., Any]) -> Callable[[], None]:
    begin('network_changed', {'renamed': True})
    return site.go


def test_every_port_gets_the_name_of_the_server(neutron: FakeNeutron, rename: Callable[[], Any]) -> None:
    rename()
    assert names(neutron) == ['web', 'web', 'web']


def test_a_port_that_is_deleted_meanwhile_does_not_keep_the_others_from_their_names(
    site: Site, neutron: FakeNeutron, ports: list[str], rename: Callable[[], Any]
) -> None:
    neutron.before = lambda method, path: method == 'PUT' and path.endswith(ports[0]) and neutron.ports.pop(ports[0], 0)
    rename()
    assert names(neutron) == ['web', 'web'] and site.kept() is None


def test_a_network_service_without_dns_names_gets_none(
    site: Site, neutron: FakeNeutron, rename: Callable[[], Any]
) -> None:
    neutron.extensions -= {'dns-integration'}
    for port in neutron.ports.values():
        del port['dns_name']
    rename()
    assert 'PUT' not in {method for method, _ in neutron.asked} and site.kept() is None


def test_a_port_that_is_changed_meanwhile_gets_its_name_in_the_next_try(
    site: Site, neutron: FakeNeutron, ports: list[str], rename: Callable[[], Any]
) -> None:
    def change(method: str, path: str) -> None:
        if method == 'PUT':
            neutron.before = None
            neutron.ports[ports[0]]['revision_number'] += 1

    neutron.before = change
    rename()
    row = site.kept()
    assert row is not None and 'it was changed meanwhile' in row.outputs['reason']
    assert names(neutron)[0] == ''
    rename()
    assert names(neutron) == ['web', 'web', 'web'] and site.kept() is None
