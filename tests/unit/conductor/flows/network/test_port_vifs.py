"""What the info cache says of a port."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.conductor.flows.network import port_vifs
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import Site


@pytest.mark.parametrize(
    ('kind', 'tunneled'),
    [('geneve', True), ('gre', True), ('vxlan', True), ('vlan', False), ('flat', False), ('local', False)],
)
def test_networks_inside_another_network_are_called_tunneled(
    site: Site, neutron: FakeNeutron, kind: str, tunneled: bool
) -> None:
    network = neutron.add_network('of a kind', 'demo', **{'provider:network_type': kind})
    port_id = neutron.add_port(network, 'demo')
    assert vif(site, port_id).tunneled is tunneled


def test_a_port_whose_network_can_not_be_read_is_not_tunneled(site: Site, neutron: FakeNeutron) -> None:
    """It has the network's id for a name."""
    (network,) = neutron.networks
    port_id = neutron.add_port(network, 'demo')
    del neutron.networks[network]
    found = vif(site, port_id)
    assert (found.tunneled, found.label, found.physical_network, found.mtu) == (False, network, None, None)


def vif(site: Site, port_id: str) -> Any:
    site.put('active')
    site.accept('stop')
    (found,) = port_vifs.described(site.work(), site.env.networks.ports(ids=[port_id]), [], {}, is_new=False)
    return found
