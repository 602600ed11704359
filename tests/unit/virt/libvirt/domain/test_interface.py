"""Network cards: as the field's guests have them, and how each kind of port is plugged."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from kilonova import errors
from kilonova.objects.vif import Plug, Vif
from kilonova.virt.libvirt.devices.pci import PciFunction
from kilonova.virt.libvirt.domain.interface import InterfaceConfigurator, card
from kilonova.virt.parts.guests import InterfaceUnsupported, UnsupportedHardware
from tests.unit.virt.builders import PORT, PORT2, new_vif
from tests.unit.virt.libvirt.domain.conftest import Configure, text

SLOT = '0000:81:02.1'
OFF = 'csum="off" tso4="off" tso6="off" ecn="off" ufo="off"'
USER_SPACE = {'bridge_name': 'br-int', 'datapath_type': 'netdev'}
# As ML2/OVS binds ports where its agent has Open vSwitch with DPDK.
SOCKET = {
    **USER_SPACE,
    'vhostuser_ovs_plug': True,
    'vhostuser_mode': 'server',
    'vhostuser_socket': '/run/openvswitch/vhu1eeb6c43-4f',
}


def interfaces(configure: Configure, *vifs: Any, **more: Any) -> list[str]:
    domain = configure(InterfaceConfigurator(), instance={'vifs': list(vifs)}, **more)
    return [text(found) for found in domain.iterfind('devices/interface')]


def drivers(configure: Configure, **more: Any) -> list[str]:
    """The same, their <driver> alone."""
    return [text(found) for found in configure(InterfaceConfigurator(), **more).iterfind('devices/interface/driver')]


def test_a_port_of_open_vswitch(configure: Configure) -> None:
    (found,) = interfaces(configure, new_vif())
    assert found == (
        '<interface type="bridge"><mac address="fa:16:3e:00:00:01"/><source bridge="br-int"/>'
        f'<virtualport type="openvswitch"><parameters interfaceid="{PORT}"/></virtualport>'
        '<target dev="tap1eeb6c43-4f"/><model type="virtio"/><mtu size="1442"/></interface>'
    )


def test_a_port_behind_a_bridge_of_its_own(configure: Configure) -> None:
    """Where Neutron's rules are those of Linux: ovs_hybrid_plug."""
    (found,) = interfaces(configure, new_vif(details={'bridge_name': 'br-int', 'ovs_hybrid_plug': True}))
    assert found == (
        '<interface type="bridge"><mac address="fa:16:3e:00:00:01"/><source bridge="qbr1eeb6c43-4f"/>'
        '<target dev="tap1eeb6c43-4f"/><model type="virtio"/><mtu size="1442"/></interface>'
    )


@pytest.mark.parametrize(('mode', 'plugged'), [('server', True), ('client', True), ('server', None)])
def test_a_port_that_is_a_socket(configure: Configure, mode: str, plugged: bool | None) -> None:
    """Open vSwitch with DPDK, or another switch in user space."""
    vif = new_vif(type='vhostuser', details={**SOCKET, 'vhostuser_mode': mode, 'vhostuser_ovs_plug': plugged})
    (found,) = interfaces(configure, vif)
    assert found == (
        '<interface type="vhostuser"><mac address="fa:16:3e:00:00:01"/>'
        f'<source type="unix" path="/run/openvswitch/vhu1eeb6c43-4f" mode="{mode}"/><model type="virtio"/>'
        '</interface>'
    )
    asked = {
        'extra_specs': {'hw:vif_multiqueue_enabled': 'true', 'hw:virtio_packed_ring': 'true'},
        'flavor': {'vcpus': 4},
    }
    assert drivers(configure, instance={'vifs': [vif]}, **asked) == ['<driver queues="4" packed="on"/>']
    with pytest.raises(InterfaceUnsupported, match='vhostuser with hw_vif_model e1000, but needs virtio'):
        interfaces(configure, vif, properties={'hw_vif_model': 'e1000'})


@pytest.mark.parametrize(
    ('values', 'plug'),
    [
        ({}, None),
        ({'type': 'bridge', 'details': {'ovs_hybrid_plug': True}}, None),
        ({'details': {'ovs_hybrid_plug': True}}, Plug.HYBRID),
        ({'details': {'ovs_hybrid_plug': False}}, None),
        ({'details': {'bridge_name': 'tbr-1eeb6c43-4'}}, Plug.TRUNK),
        ({'details': {'bridge_name': 'tbr-1eeb6c43-4', 'ovs_hybrid_plug': True}}, Plug.HYBRID),
        ({'type': 'vhostuser', 'details': SOCKET}, Plug.VHOST_USER),
        ({'type': 'vhostuser', 'details': {**SOCKET, 'vhostuser_ovs_plug': False}}, None),
        ({'vnic_type': 'direct', 'details': {'ovs_hybrid_plug': True}}, None),
    ],
)
def test_what_the_host_connects_itself(values: dict[str, Any], plug: Plug | None) -> None:
    assert new_vif(**values).plug is plug


@pytest.mark.parametrize(('details', 'bridge'), [({}, 'brq3a8e46f0-3d'), ({'bridge_name': 'brq-vlan7'}, 'brq-vlan7')])
def test_a_port_of_a_linux_bridge(configure: Configure, details: dict[str, str], bridge: str) -> None:
    (found,) = interfaces(configure, new_vif(type='bridge', details=details, mtu=None))
    assert found == (
        f'<interface type="bridge"><mac address="fa:16:3e:00:00:01"/><source bridge="{bridge}"/>'
        '<target dev="tap1eeb6c43-4f"/><model type="virtio"/></interface>'
    )


def test_a_device_that_an_agent_connects(configure: Configure) -> None:
    (found,) = interfaces(configure, new_vif(type='tap', details={}))
    assert found == (
        '<interface type="ethernet"><mac address="fa:16:3e:00:00:01"/><target dev="tap1eeb6c43-4f"/>'
        '<model type="virtio"/><mtu size="1442"/></interface>'
    )


def test_a_device_on_an_interface_of_the_host(configure: Configure) -> None:
    (found,) = interfaces(
        configure,
        new_vif(
            type='macvtap', details={'macvtap_source': 'eth1', 'macvtap_mode': 'bridge', 'physical_interface': 'eth1'}
        ),
    )
    assert found == (
        '<interface type="direct"><mac address="fa:16:3e:00:00:01"/><source dev="eth1" mode="bridge"/>'
        '<model type="virtio"/></interface>'
    )


def test_the_order_is_that_of_the_ports(configure: Configure) -> None:
    first, second = interfaces(configure, new_vif(id=PORT2), new_vif())
    assert PORT2 in first and PORT in second


def test_open_vswitch_in_user_space_computes_no_checksums(configure: Configure) -> None:
    instance = {'vifs': [new_vif(details=USER_SPACE)]}
    assert drivers(configure, instance=instance) == [f'<driver><host gso="off" {OFF}/><guest {OFF}/></driver>']
    assert drivers(configure, instance=instance, properties={'hw_vif_model': 'e1000'}) == []


@pytest.mark.parametrize(
    ('asked', 'vcpus', 'driver'),
    [
        ({}, 4, []),
        ({'extra_specs': {'hw:vif_multiqueue_enabled': 'true'}}, 4, ['<driver queues="4"/>']),
        ({'properties': {'hw_vif_multiqueue_enabled': 'yes'}}, 4, ['<driver queues="4"/>']),
        ({'extra_specs': {'hw:vif_multiqueue_enabled': 'false'}}, 4, []),
        ({'extra_specs': {'hw:vif_multiqueue_enabled': 'true'}}, 1, []),
        ({'extra_specs': {'hw:vif_multiqueue_enabled': 'true'}}, 300, ['<driver queues="256"/>']),
        ({'extra_specs': {'hw:vif_multiqueue_enabled': 'true'}, 'properties': {'hw_vif_model': 'e1000'}}, 4, []),
        ({'extra_specs': {'hw:virtio_packed_ring': 'true'}}, 4, ['<driver packed="on"/>']),
        ({'properties': {'hw_virtio_packed_ring': 'true', 'hw_vif_model': 'rtl8139'}}, 4, []),
    ],
)
def test_queues_and_rings_of_virtio(configure: Configure, asked: dict[str, Any], vcpus: int, driver: list[str]) -> None:
    """hw:vif_multiqueue_enabled hw_vif_multiqueue_enabled hw:virtio_packed_ring hw_virtio_packed_ring"""
    assert drivers(configure, instance={'vifs': [new_vif()]}, flavor={'vcpus': vcpus}, **asked) == driver


@pytest.mark.parametrize(
    ('arch', 'model'), [('x86_64', 'e1000'), ('x86_64', 'vmxnet3'), ('i686', 'pcnet'), ('aarch64', 'e1000e')]
)
def test_models(configure: Configure, arch: str, model: str) -> None:
    """hw_vif_model"""
    (found,) = interfaces(configure, new_vif(), settings={'arch': arch}, properties={'hw_vif_model': model})
    assert f'<model type="{model}"/>' in found


@pytest.mark.parametrize(('arch', 'model'), [('x86_64', 'netfront'), ('aarch64', 'pcnet'), ('x86_64', 'spapr-vlan')])
def test_models_that_qemu_does_not_have_there(configure: Configure, arch: str, model: str) -> None:
    properties = {'hw_vif_model': model}
    with pytest.raises(UnsupportedHardware, match=f"'network card {model}' is not supported"):
        interfaces(configure, new_vif(), settings={'arch': arch}, properties=properties)
    assert interfaces(configure, settings={'arch': arch}, properties=properties) == []


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        (
            {'type': 'vhostuser', 'details': {**SOCKET, 'vhostuser_mode': None}},
            'as vhostuser with vhostuser_mode None;',
        ),
        (
            {'type': 'vhostuser', 'details': {**SOCKET, 'vhostuser_socket': f'/{"s" * 107}'}},
            f"bound as vhostuser with vhostuser_socket '/{'s' * 107}';",
        ),
        ({'type': 'vhostuser', 'details': {**SOCKET, 'vhostuser_socket': 'vhu1'}}, "with vhostuser_socket 'vhu1';"),
        ({'type': 'vhostuser', 'details': {**SOCKET, 'vhostuser_fp_plug': True}}, 'vhostuser with vhostuser_fp_plug;'),
        ({'type': 'vrouter'}, 'bound as vrouter;'),
        ({'type': '802.1qbg', 'vnic_type': 'direct'}, 'bound as 802.1qbg for'),
        ({'type': 'agilio_ovs'}, 'bound as agilio_ovs;'),
        ({'type': 'ib_hostdev'}, 'bound as ib_hostdev;'),
        ({'type': 'ib_hostdev', 'vnic_type': 'macvtap'}, 'bound as ib_hostdev for vnic_type macvtap;'),
        ({'type': '802.1qbh'}, 'bound as 802.1qbh;'),
        *(
            (
                {'type': '802.1qbh', 'vnic_type': 'direct', 'details': {'profileid': profile}},
                f'profileid {said} (1 to 39 b',
            )
            for profile, said in (
                (None, 'None'),
                ('', "''"),
                ('\x00', r"'\x00'"),
                (7, '7'),
                ('p' * 40, f"'{'p' * 40}'"),
                ('p' * 5000, f"'{'p' * 77}"),
                ('ß' * 20, f"'{'ß' * 20}'"),
                ('\ud800', r"'\ud800'"),
            )
        ),
        (
            {'type': '802.1qbh', 'vnic_type': 'macvtap', 'details': {'profileid': 'p', 'vlan': '7'}},
            '802.1qbh in VLAN 7;',
        ),
        ({'type': 'vhostuser', 'details': SOCKET, 'vnic_type': 'direct'}, 'bound as vhostuser for vnic_type direct;'),
        ({'type': 'binding_failed'}, 'bound as binding_failed;'),
        ({'type': 'hw_veb', 'vnic_type': 'direct-physical'}, 'bound as hw_veb for vnic_type direct-physical;'),
        ({'type': 'hw_veb'}, 'bound as hw_veb;'),
        ({'vnic_type': 'direct'}, 'bound as ovs for vnic_type direct;'),
        (
            {'type': 'hw_veb', 'vnic_type': 'macvtap', 'profile': {'pci_slot': SLOT}},
            f'bound as hw_veb on {SLOT}, which has no network interface;',
        ),
        ({'type': 'macvtap', 'details': {'vlan': 7}}, 'bound as macvtap in VLAN 7;'),
        ({'type': 'hw_veb', 'vnic_type': 'vdpa'}, 'bound as hw_veb for vnic_type vdpa;'),
        (
            {'vnic_type': 'vdpa', 'profile': {'pci_slot': SLOT}},
            f'bound as ovs on {SLOT}, whose vhost-vdpa file is none; it must be a file in /dev;',
        ),
    ],
)
def test_ports_that_no_guest_can_have(configure: Configure, values: dict[str, Any], said: str) -> None:
    """Another host may have its ports in another way."""
    with pytest.raises(InterfaceUnsupported, match=f'Port {PORT} is .*{re.escape(said)}') as caught:
        interfaces(configure, new_vif(id=PORT2), new_vif(**values), functions={SLOT: PciFunction(SLOT)})
    assert isinstance(caught.value, errors.HostRejected)


def function(vnic_type: str, type_: str = 'hw_veb', **details: str) -> Vif:
    return new_vif(type=type_, vnic_type=vnic_type, profile={'pci_slot': SLOT}, details=details)


ADDRESS = '<address type="pci" domain="0x0000" bus="0x81" slot="0x02" function="0x1"/>'


@pytest.mark.parametrize(('managed', 'word'), [(True, 'yes'), (False, 'no')])
@pytest.mark.parametrize(
    ('details', 'vlan'), [({'vlan': '101'}, '<vlan><tag id="101"/></vlan>'), ({'vlan': '0'}, ''), ({}, '')]
)
def test_a_virtual_function(configure: Configure, managed: bool, word: str, details: dict[str, str], vlan: str) -> None:
    """hw_vif_model says nothing of it: the guest sees the card itself."""
    (found,) = interfaces(
        configure,
        function('direct', **details),
        functions={SLOT: PciFunction(SLOT, managed)},
        properties={'hw_vif_model': 'e1000'},
    )
    assert found == (
        f'<interface type="hostdev" managed="{word}"><mac address="fa:16:3e:00:00:01"/>'
        f'<source>{ADDRESS}</source>{vlan}</interface>'
    )


def test_a_function_through_macvtap(configure: Configure) -> None:
    (found,) = interfaces(
        configure,
        function('macvtap', vlan='7'),
        functions={SLOT: PciFunction(SLOT)},
        ends={SLOT: 'nic3'},
        properties={'hw_vif_model': 'e1000'},
    )
    assert found == (
        '<interface type="direct"><mac address="fa:16:3e:00:00:01"/>'
        '<source dev="nic3" mode="passthrough"/><vlan><tag id="7"/></vlan>'
        '<model type="e1000"/></interface>'
    )


def vdpa(configure: Configure, path: str = '/dev/vhost-vdpa-12', **properties: str) -> list[str]:
    return interfaces(
        configure,
        function('vdpa', 'ovs'),
        functions={SLOT: PciFunction(SLOT)},
        ends={SLOT: path},
        properties=properties,
    )


def test_a_function_through_vdpa(configure: Configure) -> None:
    (found,) = vdpa(configure)
    assert found == (
        '<interface type="vdpa"><mac address="fa:16:3e:00:00:01"/><source dev="/dev/vhost-vdpa-12"/>'
        '<model type="virtio"/></interface>'
    )
    for path in ('/etc/passwd', '/dev/../etc/passwd', '/dev/', '/dev/..', 'vhost-vdpa-1', f'/dev/{"v" * 101}'):
        with pytest.raises(InterfaceUnsupported, match=re.escape(f"is '{path}'; it must be a file in /dev;")):
            vdpa(configure, path)
    with pytest.raises(InterfaceUnsupported, match='ovs for vnic_type vdpa with hw_vif_model e1000'):
        vdpa(configure, hw_vif_model='e1000')


@pytest.mark.parametrize(
    ('vnic_type', 'kind', 'source', 'model'),
    [
        ('direct', 'type="hostdev" managed="yes"', f'<source>{ADDRESS}</source>', ''),
        ('macvtap', 'type="direct"', '<source dev="nic3" mode="passthrough"/>', '<model type="virtio"/>'),
    ],
)
def test_a_function_with_a_port_profile(
    configure: Configure, vnic_type: str, kind: str, source: str, model: str
) -> None:
    """VM-FEX. libvirt's schema takes the longest name that we take."""
    profile = 'ß<' * 13
    (found,) = interfaces(
        configure,
        function(vnic_type, '802.1qbh', profileid=profile),
        functions={SLOT: PciFunction(SLOT)},
        ends={SLOT: 'nic3'},
    )
    assert found == (
        f'<interface {kind}><mac address="fa:16:3e:00:00:01"/>{source}<virtualport type="802.1Qbh">'
        f'<parameters profileid="{profile.replace("<", "&lt;")}"/></virtualport>{model}</interface>'
    )
    with contextlib.closing(libvirt.open('test:///default')) as connection:
        domain = connection.defineXMLFlags(
            '<domain type="test"><name>one</name><memory>1</memory><os><type>hvm</type></os>'
            f'<devices>{found}</devices></domain>',
            libvirt.VIR_DOMAIN_DEFINE_VALIDATE,
        )
        assert "<virtualport type='802.1Qbh'>" in domain.XMLDesc()


@pytest.mark.parametrize(('vnic_type', 'type_'), [('direct-physical', 'hostdev_physical'), ('direct', 'ib_hostdev')])
def test_a_function_that_is_given_as_other_devices_is_no_interface(
    configure: Configure, vnic_type: str, type_: str
) -> None:
    """Physical ones, and those of InfiniBand; an attached one is the device that a guest has from its start."""
    vif, functions = function(vnic_type, type_), {SLOT: PciFunction(SLOT, managed=False)}
    domain = configure(InterfaceConfigurator(), instance={'vifs': [vif]}, functions=functions)
    assert domain.findall('devices/*') == []
    guest: Any = SimpleNamespace(functions=functions)
    assert text(card(guest, vif).element()) == (
        '<hostdev mode="subsystem" type="pci" managed="no"><source>'
        '<address domain="0x0000" bus="0x81" slot="0x02" function="0x1"/></source></hostdev>'
    )


@pytest.mark.parametrize(
    ('vnic_type', 'type_'), [('direct', 'hw_veb'), ('direct-physical', 'hostdev_physical'), ('direct', 'ib_hostdev')]
)
def test_a_function_that_the_server_does_not_hold(configure: Configure, vnic_type: str, type_: str) -> None:
    with pytest.raises(errors.KilonovaError, match=f'is bound to device {SLOT}, which is not allocated to .* u-1'):
        interfaces(configure, function(vnic_type, type_), functions={'0000:81:02.0': PciFunction('0000:81:02.0')})
