"""What guests are given of a host's devices, PCI functions and mediated devices alike."""

from __future__ import annotations

from xml.etree import ElementTree

from kilonova.virt.libvirt.devices import hostdevs, hotplug_xml
from kilonova.virt.libvirt.devices.mdev import MediatedDevice
from kilonova.virt.libvirt.devices.pci import PciFunction
from tests.unit.virt.builders import GPU, GPU2, MDEV, VGPU, VGPU_PARENT, VGPUS, device, mediated


def test_host_devices_follow_the_managed_tag_and_the_type() -> None:
    given = hostdevs.host_devices([mediated(MDEV), device(GPU), device(GPU2, managed='false')])
    assert given == [MediatedDevice(MDEV, VGPU_PARENT, VGPU), PciFunction(GPU, True), PciFunction(GPU2, False)]


def test_functions_come_before_what_is_made_on_them() -> None:
    parent, mdev = VGPUS
    found = hostdevs.discover([mdev, parent])
    assert [one['address'] for one in found] == [VGPU_PARENT, MDEV]


def test_devices_that_a_domain_has() -> None:
    domain = ElementTree.fromstring(f"""<domain><devices>
      <hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x88' slot='0x00' function='0x0'/>
        </source><address type='pci' domain='0x0000' bus='0x00' slot='0x05' function='0x0'/></hostdev>
      <hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{MDEV}'/></source>
        <address type='pci' domain='0x0000' bus='0x00' slot='0x06' function='0x0'/></hostdev>
      <interface type='hostdev' managed='yes'><mac address='fa:16:3e:00:00:01'/><source>
        <address type='pci' domain='0x0000' bus='0x81' slot='0x02' function='0x1'/></source></interface>
      <interface type='bridge'><mac address='fa:16:3e:00:00:02'/><source bridge='br-int'/></interface>
      <hostdev mode='subsystem' type='usb'><source><address bus='1' device='2'/></source></hostdev>
      <hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x08' slot='0x00' function='0x0'/>
        </source></hostdev></devices></domain>""")
    assert hostdevs.given_to(domain) == [GPU, '0000:81:02.1', GPU2, MDEV]
    assert list(hotplug_xml.of_host(domain)) == [GPU2, MDEV, GPU, '0000:81:02.1']
