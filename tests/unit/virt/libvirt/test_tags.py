"""Where a guest finds the disks and interfaces that have tags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from kilonova import objects
from kilonova.virt.guest_metadata import GuestFacts, meta_data
from kilonova.virt.libvirt.devices import tags
from tests.unit.virt.builders import PORT2, image_meta, new_instance, new_vif
from tests.unit.virt.conftest import LibvirtRig

DOMAIN = """<domain><devices>
  <disk type='file' device='disk'><source file='/u/disk'/><target dev='{dev}' bus='{bus}'/>{more}</disk>
  <disk type='file' device='disk'><source file='/u/disk.swap'/><target dev='vdb' bus='virtio'/></disk>
  <disk type='file' device='cdrom'><target dev='sdz' bus='sata'/></disk>
</devices></domain>"""


@pytest.mark.parametrize(
    ('bus', 'dev', 'more', 'shown'),
    [
        (
            'virtio',
            'vda',
            "<address type='pci' domain='0x0001' bus='0x0a' slot='0x1f' function='0x7'/>",
            {'bus': 'pci', 'address': '0001:0a:1f.7'},
        ),
        (
            'scsi',
            'sda',
            "<address type='drive' controller='1' bus='2' target='3' unit='4'/><serial>s-1</serial>",
            {'bus': 'scsi', 'address': '1:2:3:4', 'serial': 's-1'},
        ),
        (
            'ide',
            'hda',
            "<address type='drive' controller='0' bus='1' target='0' unit='1'/>",
            {'bus': 'ide', 'address': '1:1'},
        ),
        ('usb', 'sda', "<address type='usb' bus='0' port='2'/>", {'bus': 'usb', 'address': '0:2'}),
        (
            'sata',
            'sda',
            "<address type='drive' controller='0' bus='0' target='0' unit='1'/>",
            {'bus': 'none', 'address': 'none'},
        ),
        ('virtio', 'vda', '', {'bus': 'none', 'address': 'none'}),
    ],
)
def test_what_a_guest_is_told(bus: str, dev: str, more: str, shown: dict[str, str]) -> None:
    """Through the column that keeps it."""
    domain = ElementTree.fromstring(DOMAIN.format(bus=bus, dev=dev, more=more))
    found = tags.places(domain, {'/u/disk': 'mine'})
    kept = objects.InstanceDeviceMetadata.from_json(found.to_json())
    instance: Any = new_instance(device_metadata=kept)
    assert meta_data(GuestFacts.of(instance, ''), 'latest')['devices'] == [
        {'type': 'disk', 'path': f'/dev/{dev}', 'tags': ['mine'], **shown}
    ]


def test_functions_in_vlans() -> None:
    """A virtual one and a physical one that the guest has whole; not what is behind macvtap, or in no VLAN."""
    domain = ElementTree.fromstring("""<domain><devices>
      <interface type='hostdev' managed='yes'><mac address='fa:16:3e:00:00:01'/><source>
        <address type='pci' domain='0x0000' bus='0x81' slot='0x02' function='0x1'/></source>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x05' function='0x0'/></interface>
      <hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x82' slot='0x00' function='0x0'/>
        </source></hostdev></devices></domain>""")
    vlan = {'vlan': '101'}
    vifs = [
        new_vif(vnic_type='direct', profile={'pci_slot': '0000:81:02.1'}, details=vlan),
        new_vif(vnic_type='direct-physical', profile={'pci_slot': '0000:82:00.0'}, details={'vlan': '7'}),
        new_vif(vnic_type='direct', profile={'pci_slot': '0000:81:02.1'}, details={}),
        new_vif(vnic_type='direct', profile={'pci_slot': '0000:99:00.0'}, details=vlan),
        new_vif(vnic_type='macvtap', details=vlan),
        new_vif(details=vlan),
    ]
    assert tags.told(vifs) == [vifs[0], vifs[1], vifs[3]]
    found = tags.places(domain, {}, tags.told(vifs))
    instance: Any = new_instance(device_metadata=objects.InstanceDeviceMetadata.from_json(found.to_json()))
    known = {'type': 'nic', 'mac': 'fa:16:3e:00:00:01', 'tags': [], 'vf_trusted': False}
    assert meta_data(GuestFacts.of(instance, ''), 'latest')['devices'] == [
        {**known, 'bus': 'pci', 'address': '0000:00:05.0', 'vlan': 101},
        {**known, 'bus': 'none', 'address': 'none', 'vlan': 7},
    ]


def test_interfaces_with_tags() -> None:
    """Each is found by what its kind is known by; a function in no VLAN, and one behind macvtap, say only whether they
    are trusted."""
    domain = ElementTree.fromstring("""<domain><devices>
      <interface type='bridge'><mac address='fa:16:3e:00:00:01'/><target dev='tap7d2f3c11-8a'/>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x02' function='0x0'/></interface>
      <interface type='bridge'><mac address='fa:16:3e:00:00:01'/><target dev='tap1eeb6c43-4f'/>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/></interface>
      <interface type='direct'><mac address='fa:16:3e:00:00:02'/><source dev='nic1' mode='passthrough'/>
        <target dev='macvtap0'/>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x04' function='0x0'/></interface>
      <interface type='hostdev' managed='yes'><mac address='fa:16:3e:00:00:03'/><source>
        <address type='pci' domain='0x0000' bus='0x81' slot='0x02' function='0x1'/></source>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x05' function='0x0'/></interface>
      <hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x82' slot='0x00' function='0x2'/>
        </source><address type='pci' domain='0x0000' bus='0x00' slot='0x06' function='0x0'/></hostdev></devices>
      </domain>""")
    vifs = [
        new_vif(tag='front'),
        new_vif(id=PORT2),
        new_vif(id='gone', tag='gone'),
        new_vif(vnic_type='macvtap', mac='fa:16:3e:00:00:02', details={'vlan': '7'}, tag='behind'),
        new_vif(
            vnic_type='direct',
            mac='fa:16:3e:00:00:03',
            details={},
            tag='fast',
            profile={'pci_slot': '0000:81:02.1', 'trusted': 'true'},
        ),
        new_vif(
            vnic_type='direct',
            type='ib_hostdev',
            mac='fa:16:3e:00:00:04',
            details={},
            tag='infiniband',
            profile={'pci_slot': '0000:82:00.2'},
        ),
    ]
    found = tags.places(domain, {}, tags.told(vifs))
    instance: Any = new_instance(device_metadata=objects.InstanceDeviceMetadata.from_json(found.to_json()))
    assert meta_data(GuestFacts.of(instance, ''), 'latest')['devices'] == [
        {'type': 'nic', 'bus': 'pci', 'address': '0000:00:03.0', 'mac': 'fa:16:3e:00:00:01', 'tags': ['front']},
        {
            'type': 'nic',
            'bus': 'pci',
            'address': '0000:00:04.0',
            'mac': 'fa:16:3e:00:00:02',
            'tags': ['behind'],
            'vf_trusted': False,
        },
        {
            'type': 'nic',
            'bus': 'pci',
            'address': '0000:00:05.0',
            'mac': 'fa:16:3e:00:00:03',
            'tags': ['fast'],
            'vf_trusted': True,
        },
        {
            'type': 'nic',
            'bus': 'pci',
            'address': '0000:00:06.0',
            'mac': 'fa:16:3e:00:00:04',
            'tags': ['infiniband'],
            'vf_trusted': False,
        },
    ]


def test_a_driver_notes_it_again_whenever_it_makes_the_domain(libvirt_rig: LibvirtRig) -> None:
    rig, instance = libvirt_rig, new_instance(device_metadata=None)
    root = SimpleNamespace(
        source_type='image',
        destination_type='local',
        guest_format=None,
        volume_size=None,
        disk_bus='scsi',
        device_type=None,
        tag='system',
    )
    rig.here.guests.spawn(instance, image_meta(), block_devices=[root])

    def noted() -> list[tuple[str, list[str]]]:
        known, instance.device_metadata = instance.device_metadata, None
        return [(device.bus.address, device.tags) for device in known.devices]

    assert noted() == [('0:0:0:0', ['system'])]
    rig.here.guests.rebuild(instance, image_meta(), pci_devices=(), power_on=True)
    assert noted() == [('0:0:0:0', ['system'])]
    info = rig.here.moves.migrate_disk_and_power_off(instance, rig.there.moves.prepare_move(), instance.flavor)
    rig.there.moves.finish_migration(instance, image_meta(), (), True, info)
    assert noted() == [('0:0:0:0', ['system'])]
    plain = new_instance(device_metadata=None)
    rig.here.guests.spawn(plain, image_meta())
    assert plain.device_metadata is None
