"""Find the addresses of devices in a guest: of tagged disks, volumes and interfaces, and of PCI functions in a VLAN.

    found = places(domain, of(disks, volumes), told(vifs))      # domain: libvirt's XML with the assigned addresses

The result becomes a part of the metadata that the guest can read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from xml.etree import ElementTree

from kilonova import objects
from kilonova.objects.vif import ACCELERATED, DIRECT, PHYSICAL, Vif
from kilonova.objects.volume import AttachedVolume
from kilonova.virt.libvirt.devices.hotplug_xml import VOLUMES, of_port
from kilonova.virt.libvirt.domain.guest import GuestDisk

# For a disk on one of these buses, the attributes of libvirt's <address> that form its address in the guest's metadata.
_DRIVES = {'scsi': ('controller', 'bus', 'target', 'unit'), 'ide': ('bus', 'unit')}


def of(disks: Iterable[GuestDisk], volumes: Iterable[AttachedVolume]) -> dict[str, str]:
    """Return the tags of disks and volumes as a dict.

    The keys are paths of disks' files or images, and ids of volumes.
    """
    return {
        **{disk.path: disk.tag for disk in disks if disk.tag},
        **{volume.volume_id: volume.tag for volume in volumes if volume.tag},
    }


def told(vifs: Iterable[Vif]) -> list[Vif]:
    """Return the interfaces that the guest's metadata must describe.

    These are the interfaces with a tag, and PCI functions in a VLAN that are passed through to the guest.
    """
    return [vif for vif in vifs if vif.tag or _vlan(vif)]


def _vlan(vif: Vif) -> int | None:
    """Return the VLAN of a port that is passed through to the guest as a PCI function. Return None for other ports.

    The guest's metadata contains the VLAN of a physical function, because the guest must set it, and the VLAN of a
    virtual function, although the host has set it.
    """
    return vif.vlan if vif.vnic_type in (DIRECT, PHYSICAL, *ACCELERATED) else None


def places(
    domain: ElementTree.Element, tags: Mapping[str, str], vifs: Iterable[Vif] = ()
) -> objects.InstanceDeviceMetadata:
    """Return the guest's metadata: the addresses of the tagged disks and volumes, and of the interfaces ``vifs``.

    ``domain`` is libvirt's XML of the guest. ``tags`` is a dict from a disk's path or a volume's id to the tag.
    """
    cards = ((vif, _card(domain, vif)) for vif in vifs)
    found: list[objects.DeviceMetadata] = [
        _interface(vif, card.find('address')) for vif, card in cards if card is not None
    ]
    for disk in domain.iterfind('devices/disk'):
        source, target = disk.find('source'), disk.find('target')
        volume = tags.get(VOLUMES.name(disk) or '')
        tag = volume or (tags.get(source.get('file') or source.get('name') or '') if source is not None else None)
        if tag is not None and target is not None:
            found.append(
                objects.DiskMetadata(
                    bus=_bus(target.get('bus', ''), disk.find('address')),
                    tags=[tag],
                    serial=disk.findtext('serial'),
                    path=f'/dev/{target.get("dev")}',
                )
            )
    return objects.InstanceDeviceMetadata(devices=found)


def _card(domain: ElementTree.Element, vif: Vif) -> ElementTree.Element | None:
    kind, name = of_port(vif)
    return next((card for card in domain.iterfind(f'devices/{kind.tag}') if kind.name(card) == name), None)


def _interface(vif: Vif, address: ElementTree.Element | None) -> objects.NetworkInterfaceMetadata:
    found = objects.NetworkInterfaceMetadata(bus=_bus('', address), tags=[vif.tag] if vif.tag else [], mac=vif.mac)
    if (vlan := _vlan(vif)) is not None:
        found.vlan = vlan
    if vif.is_function:
        found.vf_trusted = vif.is_trusted
    return found


def _bus(name: str, address: ElementTree.Element | None) -> objects.DeviceBus:
    """Return the bus ``name`` of a device in the guest, with the device's address on this bus.

    The result is a DeviceBus without type and address in two cases: libvirt reports no address (its test driver reports
    none for PCI), or the metadata format does not know the bus (SATA).
    """
    if address is None:
        return objects.DeviceBus()
    if address.get('type') == 'pci':
        domain, bus, slot, function = (
            int(address.get(part, '0'), 16) for part in ('domain', 'bus', 'slot', 'function')
        )
        return objects.PCIDeviceBus(address=f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}')
    if address.get('type') == 'drive' and name in _DRIVES:
        place = ':'.join(address.get(part, '0') for part in _DRIVES[name])
        return objects.SCSIDeviceBus(address=place) if name == 'scsi' else objects.IDEDeviceBus(address=place)
    if address.get('type') == 'usb':
        return objects.USBDeviceBus(address=f'{address.get("bus", "0")}:{address.get("port", "0")}')
    return objects.DeviceBus()
