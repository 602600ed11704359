"""What ports that are functions of PCI devices ask of hosts, and what their bindings say."""

from __future__ import annotations

import pytest

from kilonova.pci.placement import guarantors
from kilonova.pci.pools import PciDeviceRequestFailed
from kilonova.pci.ports import asking, profiles, request_of, requests_of_ports, words
from kilonova.pci.request import with_allocation
from tests.unit.pci.builders import found, functions, host, request

PF = '0000:81:00.0'
PORT, PORT2 = '1eeb6c43-4f11-4d55-9d26-9b0f3ff6a1d5', '7d2f3c11-8a01-4a51-b2c3-0c9be2f1d4aa'


def card(physical_network: str = '"physnet1"', remote: str = 'false', **more: str):
    """A network card with two virtual functions that its spec gives to that network."""
    capabilities = {'sriov': {'pf_mac_address': '52:54:00:00:00:01', 'vf_num': 1}, 'vpd': {'card_serial_number': 'MT1'}}
    return host(
        [
            found(PF, dev_type='type-PF', vendor_id='8086', product_id='1520', mac_address='52:54:00:00:00:01'),
            *functions(PF, 2, vendor_id='8086', product_id='1520', capabilities=capabilities, **more),
        ],
        f'[{{"address": "0000:81:10.*", "physical_network": {physical_network}, "remote_managed": '
        f'"{remote}"}}, {{"vendor_id": "8086", "physical_network": {physical_network}}}]',
    )


@pytest.mark.parametrize(
    ('vnic_type', 'asked', 'offered', 'kind'),
    [
        ('direct', 'physnet1', '"physnet1"', 'type-VF'),
        ('macvtap', 'PHYSNET1', '"physnet1"', 'type-VF'),
        ('direct-physical', 'physnet1', '"physnet1"', 'type-PF'),
        ('direct', None, 'null', 'type-VF'),
        ('direct', 'physnet2', '"physnet1"', None),
        ('direct', None, '"physnet1"', None),
        ('direct', 'physnet1', 'null', None),
    ],
)
def test_what_serves_a_port(vnic_type, asked, offered, kind):
    pools, wanted = card(offered).pools, [request_of(PORT, vnic_type, asked, None)]
    if kind is None:
        with pytest.raises(PciDeviceRequestFailed):
            pools.consume_requests(wanted)
    else:
        assert [device.dev_type for device, _ in pools.consume_requests(wanted)] == [kind]


def test_what_the_request_of_a_port_says():
    """It is stored with the server, and hosts and schedulers of other releases read it."""
    wanted = request_of(PORT, 'direct', 'physnet1', 'required', trusted=True, offloaded=True)
    assert wanted.spec == [
        {'physical_network': 'physnet1', 'dev_type': 'type-VF', 'trusted': 'true', 'switchdev': 'true'}
    ]
    assert (wanted.requester_id, wanted.numa_policy, wanted.count) == (PORT, 'required', 1)
    assert request_of(PORT, 'direct', None, None).numa_policy is None


def test_flavors_get_no_network_devices():
    wanted = request(1, vendor_id='8086', product_id='1520', dev_type='type-VF')
    assert not card().pools.support_requests([wanted])
    assert not card('null').pools.support_requests([wanted])


def test_profiles():
    """Only the requests of ports have a profile, one for each device."""
    pools = card().pools
    wanted = [
        request_of(PORT, 'direct', 'physnet1', None),
        request(1),
        request_of(PORT2, 'direct', 'physnet1', 'required'),
    ]
    devices = []
    for one, (device, request_id) in zip(
        (wanted[0], wanted[2]), pools.consume_requests([wanted[0], wanted[2]]), strict=True
    ):
        device.request_id = request_id
        assert request_id == one.request_id
        devices.append(device)
    assert requests_of_ports(wanted) == [wanted[0], wanted[2]]
    known = {
        'pci_vendor_info': '8086:1520',
        'physical_network': 'physnet1',
        'pf_mac_address': '52:54:00:00:00:01',
        'vf_num': 1,
    }
    assert profiles(wanted, devices) == {
        PORT: {'pci_slot': '0000:81:10.0', **known},
        PORT2: {'pci_slot': '0000:81:10.1', **known},
    }
    assert profiles(wanted, devices[1:]).keys() == {PORT2}
    assert profiles(None, devices) == {}


@pytest.mark.parametrize(
    ('vnic_type', 'offloaded', 'found', 'served'),
    [
        ('direct', True, {'switchdev': 'true'}, True),
        ('direct', True, {}, False),
        ('direct', False, {'switchdev': 'true'}, False),
        ('macvtap', False, {'switchdev': 'true'}, False),
        ('direct-physical', False, {'switchdev': 'true'}, True),
        ('remote-managed', False, {'switchdev': 'true', 'remote': 'true'}, True),
    ],
)
def test_functions_with_representors(vnic_type, offloaded, found, served):
    """Are for ports that are to be Open vSwitch's, which get no others; as such a function has no network by itself."""
    wanted = request_of(PORT, vnic_type, 'physnet1', None, offloaded=offloaded)
    assert card(**found).pools.support_requests([wanted]) is served
    assert words(wanted).startswith('switchdev type-VF') is offloaded


def test_functions_that_are_vdpa():
    """Are for ports of that type, which get no others."""
    vdpa, direct = (request_of(PORT, kind, 'physnet1', None, offloaded=True) for kind in ('vdpa', 'direct'))
    virtual, offered = (
        [{**one, 'dev_type': kind, 'switchdev': 'true'} for one in functions(PF, 1)] for kind in ('type-VF', 'vdpa')
    )
    for devices, wanted, other in ((offered, vdpa, direct), (virtual, direct, vdpa)):
        pools = host(devices, '{"physical_network": "physnet1"}').pools
        assert pools.support_requests([wanted]) and not pools.support_requests([other])
    assert words(vdpa) == 'switchdev vdpa devices of physical network physnet1'


def test_what_is_managed_from_its_card():
    """Only ports that say so get it, and nothing else; their profiles say of which card it is."""
    remote, direct = (request_of(PORT, vnic_type, 'physnet1', None) for vnic_type in ('remote-managed', 'direct'))
    assert not card().pools.support_requests([remote]) and not card(remote='true').pools.support_requests([direct])
    ((device, request_id),) = card(remote='true').pools.consume_requests([remote])
    device.request_id = request_id
    assert words(remote) == 'remote-managed type-VF devices of physical network physnet1'
    assert profiles([remote], [device])[PORT] == {
        'pci_slot': '0000:81:10.0',
        'pci_vendor_info': '8086:1520',
        'physical_network': 'physnet1',
        'card_serial_number': 'MT1',
        'pf_mac_address': '52:54:00:00:00:01',
        'vf_num': 1,
    }


@pytest.mark.parametrize('mac', [True, False])
def test_a_physical_function_brings_its_address(mac):
    """Where it has an interface; one that is a guest's shows none."""
    ((device, request_id),) = card().pools.consume_requests(
        [wanted := request_of(PORT, 'direct-physical', 'physnet1', None)]
    )
    device.request_id = request_id
    if not mac:
        device.extra_info = {}
    assert profiles([wanted], [device]) == {
        PORT: {
            'pci_slot': PF,
            'pci_vendor_info': '8086:1520',
            'physical_network': 'physnet1',
            **({'device_mac_address': '52:54:00:00:00:01'} if mac else {}),
        }
    }


def test_a_port_that_guarantees_something():
    """Its function is of a card that Placement chose for it, said by mappings or, on the host, by the request."""
    wanted, taken = request_of(PORT, 'direct', 'physnet1', None, groups=['bandwidth', 'packets']), {'': ['card']}
    pools = card().pools
    assert pools.support_requests([wanted]) and pools.support_requests([wanted], taken)
    mappings = {'': ['root'], 'bandwidth': ['card'], 'packets': ['agent']}
    assert not pools.support_requests([wanted], mappings)
    on_host = with_allocation([wanted], mappings).requests
    assert not pools.support_requests(on_host) and pools.support_requests(asking(on_host, {}))
    for pool in pools.pools:
        pool.keys = {**pool.keys, 'port_rp_uuids': 'other,card'}
    assert pools.support_requests([wanted], mappings) and pools.support_requests(on_host)
    assert not pools.support_requests([wanted], {**mappings, 'bandwidth': ['elsewhere']})
    (again,) = asking(on_host, {PORT: ['later']})
    assert again.spec == [{'physical_network': 'physnet1', 'dev_type': 'type-VF', 'port_groups': 'later'}]


def test_the_providers_of_interfaces():
    assert guarantors(
        {'h': 'root', 'h:NIC Switch agent': 'agent', 'h:NIC Switch agent:ens1': '2', 'h:Other:ens1': '1'}
    ) == {'ens1': '1,2'}
