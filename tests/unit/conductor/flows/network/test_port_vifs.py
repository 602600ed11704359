"""What the info cache says of a port."""

from __future__ import annotations

from typing import Any

import pytest

from kilonova.clients.neutron.ports import Port
from kilonova.conductor.flows.network import port_vifs
from kilonova.objects.vif import Vif, VifAddress, VifSubnet
from tests.fixtures.neutron import FakeNeutron
from tests.unit.conductor.site import SERVER, Site


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


@pytest.mark.parametrize('is_own', [True, False])
def test_an_interface_has_all_that_the_network_service_says_of_its_port(
    site: Site, neutron: FakeNeutron, is_own: bool
) -> None:
    """Include the floating IP of the address that has one, and leave out subnets that cannot be read."""
    provider = {'provider:network_type': 'vlan', 'provider:physical_network': 'net1'}
    network = neutron.add_network('web', 'demo', cidr='10.9.0.0/24', mtu=1400, **provider)
    (subnet,) = neutron.networks[network]['subnets']
    routes = [{'destination': '10.8.0.0/16', 'nexthop': '10.9.0.2'}]
    neutron.subnets[subnet].update({'host_routes': routes, 'enable_dhcp': False})
    port_id = neutron.add_port(network, 'demo', device_id=SERVER, **{'binding:host_id': 'gpu1'})
    port, other = neutron.ports[port_id], neutron.add_port(network, 'demo', device_id=SERVER)
    neutron.add_floating_ip('198.51.100.7', port_id)
    neutron.add_floating_ip('198.51.100.8', other)
    (address,) = [one['ip_address'] for one in port['fixed_ips']]
    port['fixed_ips'] = [*port['fixed_ips'], {'subnet_id': 'hidden', 'ip_address': '10.7.0.1'}]
    port['binding:profile'] = {'a': 'b'}
    neutron.guarantee(port_id, 600)
    site.put('active')
    site.accept('stop')
    (found,) = port_vifs.described(
        site.work(),
        site.env.networks.ports(ids=[port_id]),
        [port_id] if is_own else [other],
        {port_id: ('default', 'web')},
        is_new=False,
    )
    assert found == Vif(
        id=port_id,
        mac=port['mac_address'],
        network_id=network,
        label='web',
        project_id='demo',
        type='ovs',
        mtu=1400,
        details=port['binding:vif_details'],
        profile={'a': 'b'},
        vnic_type='normal',
        active=True,
        preserve_on_delete=is_own,
        physical_network='net1',
        tunneled=False,
        subnets=(
            VifSubnet(
                cidr='10.9.0.0/24',
                version=4,
                gateway='10.9.0.1',
                dns=('9.9.9.9',),
                routes=(('10.8.0.0/16', '10.9.0.2'),),
                dhcp=False,
                ipv6_mode=None,
                addresses=(VifAddress(address, ('198.51.100.7',)),),
                id=subnet,
            ),
        ),
        security_groups=('default', 'web'),
        resource_request=port['resource_request'],
    )


def test_floating_ips_of_ports_that_were_just_created_are_not_read(site: Site, neutron: FakeNeutron) -> None:
    """Read them for the user's own port, which may have one already."""
    (network,) = neutron.networks
    ports = [neutron.add_port(network, 'demo', device_id=SERVER) for _ in range(2)]
    for number, port_id in enumerate(ports):
        neutron.add_floating_ip(f'198.51.100.{number}', port_id)
    site.put('active')
    site.accept('stop')
    read = sorted(site.env.networks.ports(ids=ports), key=lambda port: ports.index(port.id))
    found = port_vifs.described(site.work(), read, [ports[0]], {}, is_new=True)
    assert [one.subnets[0].addresses[0].floating for one in found] == [('198.51.100.0',), ()]
    neutron.asked.clear()
    port_vifs.described(site.work(), read, [], {}, is_new=True)
    assert not [path for _, path in neutron.asked if path.startswith('/floatingips')]


@pytest.mark.parametrize(('kind', 'stored'), [('hostdev_physical', 'hostdev_physical'), (None, '')])
def test_an_interface_that_moved_has_the_present_binding_of_its_port_and_all_else_as_it_was(
    kind: str | None, stored: str
) -> None:
    before = Vif(
        id='p',
        mac='old',
        network_id='n',
        label='web',
        project_id='demo',
        type='ovs',
        mtu=1400,
        details={'bridge_name': 'br-int'},
        profile={'pci_slot': 'old'},
        vnic_type='direct-physical',
        preserve_on_delete=True,
        security_groups=('default',),
        resource_request={'old': 1},
        before={'move': {'g': 'rp'}},
        tag='data',
    )
    port = Port(
        id='p',
        network_id='n',
        project_id='demo',
        mac='new',
        status='ACTIVE',
        admin_state_up=True,
        device_id=SERVER,
        device_owner='compute:zone0',
        vnic_type='direct-physical',
        resource_request={'new': 1},
        vif_type=kind,
        vif_details={'vlan': '5'},
        profile={'pci_slot': 'new'},
        host='gpu2',
    )
    assert port_vifs.moved(before, port) == Vif(
        id='p',
        mac='new',
        network_id='n',
        label='web',
        project_id='demo',
        type=stored,
        mtu=1400,
        details={'vlan': '5'},
        profile={'pci_slot': 'new'},
        vnic_type='direct-physical',
        active=True,
        preserve_on_delete=True,
        security_groups=('default',),
        resource_request={'new': 1},
        before={'move': {'g': 'rp'}},
        tag='data',
    )


def vif(site: Site, port_id: str) -> Any:
    site.put('active')
    site.accept('stop')
    (found,) = port_vifs.described(site.work(), site.env.networks.ports(ids=[port_id]), [], {}, is_new=False)
    return found
