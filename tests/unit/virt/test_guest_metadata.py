"""What a guest may know of itself, by version."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import pytest

from kilonova.objects.vif import VifAddress, VifSubnet
from kilonova.virt import guest_metadata
from kilonova.virt.guest_metadata import GuestFacts
from tests.unit.virt.builders import PORT, PORT2, new_instance, new_vif

SINCE = {
    '2013-04-04': {'random_seed'},
    '2015-10-15': {'project_id'},
    '2016-06-30': {'devices'},
    '2020-10-14': {'dedicated_cpus'},
}


def test_each_version_has_what_came_until_then() -> None:
    about, expected = (
        GuestFacts.of(new_instance(), ''),
        {'uuid', 'name', 'hostname', 'launch_index', 'availability_zone'},
    )
    for version in (*guest_metadata.VERSIONS, guest_metadata.LATEST):
        expected |= SINCE.get(version, set())
        assert set(guest_metadata.meta_data(about, version)) == expected, version
        found = guest_metadata.openstack(about, version)
        assert ('network_data.json' in found) == (version >= '2015-10-15')
    assert guest_metadata.vendor_files('2013-04-04') == ()
    assert guest_metadata.vendor_files('2016-10-06') == ('vendor_data.json', 'vendor_data2.json')


@pytest.mark.parametrize(('own', 'told'), [('west', 'west'), (None, 'east')])
def test_a_server_on_a_host_without_zone_is_in_the_default_one(own: str | None, told: str) -> None:
    about = GuestFacts.of(new_instance(availability_zone=own), '', 'east')
    assert guest_metadata.meta_data(about, 'latest')['availability_zone'] == told
    assert guest_metadata.ec2(about)['placement'] == {'availability-zone': told}


def test_the_seed_is_never_the_same() -> None:
    about = GuestFacts.of(new_instance(), '')
    seeds = {guest_metadata.meta_data(about, 'latest')['random_seed'] for _ in range(3)}
    assert len(seeds) == 3 and {len(base64.b64decode(seed)) for seed in seeds} == {512}


def test_keys_are_those_of_the_pair() -> None:
    few = SimpleNamespace(uuid='u-1', key_name='c', key_data='PEM', keypairs=[SimpleNamespace(name='c', type='x509')])
    meta = guest_metadata.meta_data(GuestFacts.of(few, ''), 'latest')
    assert (meta['keys'], meta['public_keys']) == ([{'name': 'c', 'type': 'x509', 'data': 'PEM'}], {'c': 'PEM'})
    assert guest_metadata.ec2(GuestFacts.of(few, ''))['public-keys'] == {'0=c': {'openssh-key': 'PEM'}}
    plain = GuestFacts.of(new_instance(key_name='k', key_data='ssh-rsa AAA'), '')
    assert plain.keys == [{'name': 'k', 'type': 'ssh', 'data': 'ssh-rsa AAA'}]


def test_a_server_that_came_with_few_fields() -> None:
    about = GuestFacts.of(SimpleNamespace(uuid='u-1'), 'novalocal')
    assert guest_metadata.meta_data(about, 'latest')['uuid'] == 'u-1' and about.hostname is None
    assert json.dumps(guest_metadata.ec2(about))


@pytest.mark.parametrize(('given', 'read'), [(None, None), ('', None), ('IyE=', b'#!'), ('x', None)])
def test_user_data_is_as_it_was_given(given: Any, read: bytes | None) -> None:
    assert GuestFacts.of(new_instance(user_data=given), '').user_data == read


def test_ec2_names() -> None:
    about = GuestFacts.of(
        new_instance(
            id=255,
            kernel_id='aaaaaaaa-1111',
            ramdisk_id='bbbbbbbb-2222',
            root_device_name='/dev/sda',
            reservation_id='r-1',
        ),
        'novalocal',
    )
    found = guest_metadata.ec2(about)
    assert found['instance-id'] == 'i-000000ff' and found['hostname'] == 'one.novalocal'
    assert (found['kernel-id'], found['ramdisk-id']) == ('aki-aaaaaaaa', 'ari-bbbbbbbb')
    assert found['block-device-mapping'] == {'ami': 'sda', 'root': '/dev/sda'}
    assert found['placement'] == {'availability-zone': 'nova'} and found['instance-type'] == 'tmp1'


def networks(*subnets: VifSubnet, **values: Any) -> dict[str, Any]:
    return guest_metadata.network_data([new_vif(subnets=subnets, **values)])


def test_a_link_for_each_interface() -> None:
    vifs = [new_vif(), new_vif(id=PORT2, mac='fa:16:3e:00:00:02', type='bridge', mtu=None)]
    about = GuestFacts.of(new_instance(vifs=vifs), '')
    assert json.loads(guest_metadata.openstack(about, 'latest')['network_data.json']) == {
        'links': [
            {
                'id': 'tap1eeb6c43-4f',
                'vif_id': PORT,
                'type': 'ovs',
                'mtu': 1442,
                'ethernet_mac_address': 'fa:16:3e:00:00:01',
            },
            {
                'id': 'tap7d2f3c11-8a',
                'vif_id': PORT2,
                'type': 'bridge',
                'mtu': None,
                'ethernet_mac_address': 'fa:16:3e:00:00:02',
            },
        ],
        'networks': [],
        'services': [],
    }


_ASKED = VifSubnet('10.2.0.0/24', 4, addresses=(VifAddress('10.2.0.43'),))
_TOLD = VifSubnet('10.3.0.0/24', 4, dhcp=False, addresses=(VifAddress('10.3.0.43'),))
_SLAAC = VifSubnet('2001:db8::/64', 6, ipv6_mode='slaac', addresses=(VifAddress('2001:db8::5'),))


@pytest.mark.parametrize(
    ('subnets', 'mtu'),
    [((_ASKED,), None), ((_TOLD, _ASKED), None), ((_TOLD, _SLAAC), None), ((_TOLD,), 1442), ((), 1442)],
)
def test_the_mtu_is_told_only_where_no_subnet_has_dhcp_found_1_8(
    subnets: tuple[VifSubnet, ...], mtu: int | None
) -> None:
    """A guest would write down what it is told, and never again take what DHCP says."""
    about = GuestFacts.of(new_instance(vifs=[new_vif(subnets=subnets)]), '')
    (link,) = json.loads(guest_metadata.openstack(about, 'latest')['network_data.json'])['links']
    assert link['mtu'] == mtu


@pytest.mark.parametrize(
    ('kind', 'told'),
    [
        *((name, name) for name in ('bridge', 'dvs', 'hw_veb', 'hyperv', 'ovs', 'tap', 'vhostuser', 'vif')),
        *(
            (name, 'phy')
            for name in (
                'macvtap',
                'hostdev_physical',
                'ib_hostdev',
                '802.1qbh',
                'unbound',
                'binding_failed',
                'a-later-one',
                None,
            )
        ),
    ],
)
def test_links_have_types_that_guests_know_found_1_9(kind: str | None, told: str) -> None:
    """cloud-init fails on others, and the guest is left without a network."""
    (link,) = networks(type=kind)['links']
    assert link['type'] == told


def test_addresses_that_guests_ask_for() -> None:
    four = VifSubnet(
        '10.2.0.0/24',
        4,
        gateway='10.2.0.1',
        dns=('9.9.9.9',),
        routes=(('10.9.0.0/16', '10.2.0.9'),),
        addresses=(VifAddress('10.2.0.43'), VifAddress('10.2.0.44')),
    )
    six = VifSubnet('2001:db8::/64', 6, dns=('2001:db8::1', '9.9.9.9'), addresses=(VifAddress('2001:db8::5'),))
    found = networks(four, six)
    common = {'link': 'tap1eeb6c43-4f', 'network_id': new_vif().network_id}
    assert found['networks'] == [
        {'id': 'network0', 'type': 'ipv4_dhcp', **common},
        {'id': 'network1', 'type': 'ipv6_dhcp', **common},
    ]
    # Each once.
    assert found['services'] == [{'type': 'dns', 'address': '9.9.9.9'}, {'type': 'dns', 'address': '2001:db8::1'}]


@pytest.mark.parametrize('mode', ['slaac', 'dhcpv6-stateless', 'dhcpv6-stateful'])
def test_ways_to_an_address_of_ipv6(mode: str) -> None:
    found = networks(VifSubnet('2001:db8::/64', 6, ipv6_mode=mode, addresses=(VifAddress('2001:db8::5'),)))
    assert [one['type'] for one in found['networks']] == [f'ipv6_{mode}']


@pytest.mark.parametrize(
    ('subnet', 'told'),
    [
        (
            VifSubnet(
                '10.2.0.0/20',
                4,
                gateway='10.2.0.1',
                dns=('9.9.9.9',),
                routes=(('10.9.0.0/16', '10.2.0.9'),),
                dhcp=False,
                addresses=(VifAddress('10.2.0.43'),),
            ),
            {
                'type': 'ipv4',
                'ip_address': '10.2.0.43',
                'netmask': '255.255.240.0',
                'routes': [
                    {'network': '0.0.0.0', 'netmask': '0.0.0.0', 'gateway': '10.2.0.1'},
                    {'network': '10.9.0.0', 'netmask': '255.255.0.0', 'gateway': '10.2.0.9'},
                ],
                'services': [{'type': 'dns', 'address': '9.9.9.9'}],
            },
        ),
        (
            VifSubnet('10.2.0.0/24', 4, dhcp=False, addresses=(VifAddress('10.2.0.43'),)),
            {'type': 'ipv4', 'ip_address': '10.2.0.43', 'netmask': '255.255.255.0', 'routes': [], 'services': []},
        ),
        (
            VifSubnet('2001:db8::/64', 6, gateway='2001:db8::1', dhcp=False, addresses=(VifAddress('2001:db8::5'),)),
            {
                'type': 'ipv6',
                'ip_address': '2001:db8::5',
                'netmask': 'ffff:ffff:ffff:ffff::',
                'routes': [{'network': '::', 'netmask': '::', 'gateway': '2001:db8::1'}],
                'services': [],
            },
        ),
    ],
)
def test_addresses_that_guests_are_told(subnet: VifSubnet, told: dict[str, Any]) -> None:
    (found,) = networks(subnet)['networks']
    assert found == {'id': 'network0', 'link': 'tap1eeb6c43-4f', 'network_id': new_vif().network_id, **told}


def test_each_address_is_told_on_the_link_that_has_it() -> None:
    subnet = VifSubnet('10.2.0.0/24', 4, dhcp=False, addresses=(VifAddress('10.2.0.43'), VifAddress('10.2.0.44')))
    found = guest_metadata.network_data([new_vif(subnets=[subnet]), new_vif(id=PORT2, subnets=[subnet])])['networks']
    assert [(one['id'], one['link'], one['ip_address']) for one in found] == [
        ('network0', 'tap1eeb6c43-4f', '10.2.0.43'),
        ('network1', 'tap1eeb6c43-4f', '10.2.0.44'),
        ('network2', 'tap7d2f3c11-8a', '10.2.0.43'),
        ('network3', 'tap7d2f3c11-8a', '10.2.0.44'),
    ]


def test_ec2_tells_the_first_address_of_ipv4_and_the_groups() -> None:
    plain = guest_metadata.ec2(GuestFacts.of(new_instance(), ''))
    assert (plain['local-ipv4'], plain['public-ipv4'], plain['security-groups']) == ('', '', 'default')
    six = VifSubnet('2001:db8::/64', 6, addresses=(VifAddress('2001:db8::5'),))
    four = VifSubnet('10.2.0.0/24', 4, addresses=(VifAddress('10.2.0.43', ('198.51.100.7',)), VifAddress('10.2.0.44')))
    vifs = [new_vif(subnets=[six], security_groups=('web',)), new_vif(subnets=[four], security_groups=('db', 'web'))]
    found = guest_metadata.ec2(GuestFacts.of(new_instance(vifs=vifs), ''))
    assert (found['local-ipv4'], found['public-ipv4'], found['security-groups']) == (
        '10.2.0.43',
        '198.51.100.7',
        'web\ndb',
    )
    assert guest_metadata.ec2(GuestFacts.of(new_instance(vifs=vifs[:1]), ''))['local-ipv4'] == ''


def test_what_services_are_told() -> None:
    about = GuestFacts.of(new_instance(user_data='IyE=', system_metadata={'boot_roles': 'member,reader'}), '')
    asked = guest_metadata.question(about)
    assert asked['user-data'] == '#!' and asked['boot-roles'] == 'member,reader'
    assert set(asked) == {'project-id', 'instance-id', 'image-id', 'user-data', 'hostname', 'metadata', 'boot-roles'}
