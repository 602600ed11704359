"""PCI functions from libvirt's node devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kilonova.virt.libvirt.devices import pci
from tests.fixtures.vpd import made
from tests.unit.virt.builders import MDEV_TYPES


def node(bus: int, function: int = 0, *, domain: int = 0, extra: str = '', product: str = '0x2330') -> str:
    return f"""<device><name>pci_{domain:04x}_{bus:02x}_00_{function}</name><parent>computer</parent>
      <capability type='pci'><class>0x030200</class><domain>{domain}</domain><bus>{bus}</bus><slot>0</slot>
      <function>{function}</function><product id='{product}'>GH100</product><vendor id='0x10de'>NVIDIA</vendor>
      {extra}</capability></device>"""


PF = """<capability type='virt_functions' maxCount='16'>
  <address domain='0x0000' bus='0x3b' slot='0x00' function='0x4'/>
  <address domain='0x0000' bus='0x3b' slot='0x00' function='0x5'/></capability>"""
VF = """<capability type='phys_function'>
  <address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></capability>"""
NET = """<device><name>net_enp59s0_aa_bb</name><parent>pci_0000_3b_00_0</parent><capability type='net'>
  <interface>enp59s0</interface><address>aa:bb:cc:dd:ee:ff</address><feature name='tso'/><feature name='gso'/>
  </capability></device>"""


def one(text: str) -> dict[str, Any]:
    found = pci.discover([text])
    assert len(found) == 1
    return found[0]


def test_a_plain_function() -> None:
    assert one(node(8, extra="<numa node='1'/>", product='0x13f1')) == {
        'dev_id': 'pci_0000_08_00_0',
        'address': '0000:08:00.0',
        'vendor_id': '10de',
        'product_id': '13f1',
        'numa_node': 1,
        'label': 'label_10de_13f1',
        'dev_type': 'type-PCI',
        'capabilities': {},
    }


def test_the_iommu_group() -> None:
    assert one(node(8, extra="<iommuGroup number='31'><address bus='8'/></iommuGroup>"))['iommu_group'] == 31


@pytest.mark.parametrize('extra', ['', "<numa node='-1'/>", '<numa/>'])
def test_no_numa_node(extra: str) -> None:
    assert one(node(8, extra=extra))['numa_node'] is None


def test_short_ids_are_padded() -> None:
    assert one(node(8, product='0xfbb'))['product_id'] == '0fbb'


def test_physical_and_virtual_functions_in_address_order() -> None:
    found = pci.discover([node(0x3B, 5, extra=VF), node(0x3B, 4, extra=VF), node(0x3B, extra=PF)])
    assert [(function['address'], function['dev_type'], function.get('parent_addr')) for function in found] == [
        ('0000:3b:00.0', 'type-PF', None),
        ('0000:3b:00.4', 'type-VF', '0000:3b:00.0'),
        ('0000:3b:00.5', 'type-VF', '0000:3b:00.0'),
    ]


def test_a_physical_function_without_any_virtual_one() -> None:
    assert one(node(0x3B, extra="<capability type='virt_functions' maxCount='16'/>"))['dev_type'] == 'type-PF'


def test_a_phys_function_that_names_nobody_is_a_plain_function() -> None:
    assert one(node(0x3B, extra="<capability type='phys_function'/>"))['dev_type'] == 'type-PCI'


def test_network_functions_know_their_parents_interface() -> None:
    parent, child = pci.discover([NET, node(0x3B, extra=PF), node(0x3B, 5, extra=VF)])
    assert parent['capabilities'] == {'network': ['gso', 'tso']}
    assert (parent['mac_address'], 'mac_address' in child) == ('aa:bb:cc:dd:ee:ff', False)
    assert child['parent_ifname'] == 'enp59s0'
    assert child['capabilities'] == {'sriov': {'pf_mac_address': 'aa:bb:cc:dd:ee:ff', 'vf_num': 1}}


@pytest.mark.parametrize('named', ['p0', 'pf0vf1', ''])
def test_a_card_that_is_a_switch(tmp_path: Path, named: str) -> None:
    """Its virtual functions have representors, interfaces of the physical one that aren't its own; what the kernel does
    not name is."""
    other = NET.replace('enp59s0', 'eth7').replace('aa:bb:cc:dd:ee:ff', '02:00:00:00:00:07').replace('gso', 'switchdev')
    for name, port in (('eth7', named), ('enp59s0', 'p0')):
        (tmp_path / 'class/net' / name).mkdir(parents=True)
        if port:
            (tmp_path / 'class/net' / name / 'phys_port_name').write_text(f'{port}\n')
    parent, child = pci.discover(
        [other, NET.replace('gso', 'switchdev'), node(0x3B, extra=PF), node(0x3B, 5, extra=VF)], str(tmp_path)
    )
    assert parent['mac_address'] == ('aa:bb:cc:dd:ee:ff' if 'vf' in named else '02:00:00:00:00:07')
    assert child['parent_ifname'] == ('enp59s0' if 'vf' in named else 'eth7')
    assert (child['switchdev'], 'switchdev' in parent) == ('true', False)


def test_vdpa() -> None:
    vdpa = "<device><name>vdpa_vdpa0</name><parent>pci_0000_3b_00_4</parent><capability type='vdpa'/></device>"
    assert [
        function['dev_type'] for function in pci.discover([vdpa, node(0x3B, extra=PF), node(0x3B, 4, extra=VF)])
    ] == ['type-PF', 'vdpa']


def vpd(serial: str) -> str:
    return (
        f"<capability type='vpd'><name>x</name><fields access='readonly'><serial_number>{serial}</serial_number>"
        '</fields></capability>'
    )


def serials(found: list[dict[str, Any]]) -> list[str | None]:
    return [function['capabilities'].get('vpd', {}).get('card_serial_number') for function in found]


def test_serial_number_of_the_card() -> None:
    """A virtual function has its own, or that of its physical one."""
    found = pci.discover(
        [
            node(8, extra=vpd('MT1')),
            node(0x3B, extra=PF + vpd('MT2')),
            node(0x3B, 4, extra=VF),
            node(0x3B, 5, extra=VF + vpd('MT3')),
        ]
    )
    assert serials(found) == ['MT1', 'MT2', 'MT2', 'MT3']


def test_a_serial_number_that_libvirt_does_not_tell(tmp_path: Path) -> None:
    """Of virtual functions, from the kernel; each file is read once."""
    found = pci.discover([node(8), node(0x3B, extra=PF), node(0x3B, 4, extra=VF), node(0x3B, 5, extra=VF)])
    found.append({'dev_type': 'mdev', 'parent_addr': '0000:3b:00.0', 'capabilities': {}, 'address': 'a'})
    for address, serial in (('0000:08:00.0', b'MT1'), ('0000:3b:00.0', b'MT2'), ('0000:3b:00.5', b'MT3')):
        home = tmp_path / 'bus/pci/devices' / address
        home.mkdir(parents=True)
        (home / 'vpd').write_bytes(made(SN=serial))
    pci.read_serials(found, str(tmp_path))
    assert serials(found) == [None, None, 'MT2', 'MT3', None]
    pci.read_serials(found, str(tmp_path / 'nothing'))
    assert serials(found) == [None, None, 'MT2', 'MT3', None]


def test_a_32_bit_domain_is_skipped_with_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('DEBUG')
    assert pci.discover([node(8, domain=0x10000)]) == []
    assert 'pci_10000_08_00_0' in caplog.text


def test_devices_that_are_no_functions_are_not_listed() -> None:
    assert (
        pci.discover(
            ["<device><name>computer</name><capability type='system'/></device>", '<device><name>odd</name></device>']
        )
        == []
    )


def test_a_function_that_mediated_devices_can_be_made_on() -> None:
    assert one(node(0x84, extra=MDEV_TYPES))['mdev_types'] == {
        'nvidia-35': {'available': 16, 'api': 'vfio-pci'},
        'nvidia-36': {'available': 0, 'api': 'vfio-pci'},
    }
