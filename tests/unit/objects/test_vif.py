"""``Vif``: what the info cache says of an interface is what comes back from it."""

from __future__ import annotations

import json

from kilonova.objects import Instance
from kilonova.objects.vif import Vif, VifAddress, VifSubnet

PORT = '1eeb6c43-4f11-4d55-9d26-9b0f3ff6a1d5'
VIF = Vif(
    id=PORT,
    mac='fa:16:3e:00:00:01',
    network_id='3a8e46f0-3d8c-4f44-8a4f-6a3b5c2d1e0f',
    label='private',
    project_id='p1',
    type='ovs',
    mtu=1442,
    details={'bridge_name': 'br-int', 'ovs_create_tap': True},
    profile={'a': 1},
    active=True,
    preserve_on_delete=True,
    tunneled=True,
    security_groups=('web',),
    tag='nic1',
    subnets=(
        VifSubnet(
            '10.2.0.0/24',
            4,
            gateway='10.2.0.1',
            dns=('9.9.9.9',),
            routes=(('10.9.0.0/16', '10.2.0.9'),),
            dhcp=False,
            addresses=(VifAddress('10.2.0.43', ('198.51.100.7',)),),
        ),
        VifSubnet('2001:db8::/64', 6, ipv6_mode='slaac', addresses=(VifAddress('2001:db8::5'),)),
    ),
)


def test_what_is_stored_is_read_again() -> None:
    assert Vif.read(json.loads(json.dumps(VIF.stored()))) == VIF


def test_the_stored_form_is_the_fields() -> None:
    stored = VIF.stored()
    assert stored['devname'] == 'tap1eeb6c43-4f' and stored['ovs_interfaceid'] == PORT
    assert stored['network']['bridge'] == 'br-int' and stored['network']['meta']['mtu'] == 1442
    (first, _) = stored['network']['subnets']
    assert first['ips'] == [
        {
            'address': '10.2.0.43',
            'type': 'fixed',
            'version': 4,
            'meta': {},
            'floating_ips': [{'address': '198.51.100.7', 'type': 'floating', 'version': 4, 'meta': {}}],
        }
    ]
    assert first['gateway'] == {'address': '10.2.0.1', 'type': 'gateway', 'version': 4, 'meta': {}}


def test_a_server_has_those_of_its_cache() -> None:
    uuid = '6c1b9ad2-95c2-4d2e-a1c2-0a4a1f5c1b11'
    assert Instance.from_row(None, {'uuid': uuid}, {'network_info': json.dumps([VIF.stored()])}).vifs == [VIF]
    assert Instance.from_row(None, {'uuid': uuid}, {'network_info': None}).vifs == []
    assert Instance.from_row(None, {'uuid': uuid}).vifs == []
