"""Devices of the host that are passed through to guests: PCI functions and mediated devices.

    discover(host.node_devices())      # [{'address': '0000:08:00.0', 'dev_type': 'type-PCI', ...}, ...]
    host_devices(instance_devices)     # [PciFunction('0000:08:00.0', managed=True), MediatedDevice(uuid, ...)]
    given_to(domain)                   # ['0000:08:00.0', uuid]

The dicts of ``discover`` have the keys that ``parts.host.Host.get_available_resource`` describes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from oslo_utils import strutils

from kilonova.objects import PciDevice
from kilonova.pci import carved, sysfs
from kilonova.pci.device import MDEV, VGPU_TYPE
from kilonova.virt.libvirt.connection import Connection, translated
from kilonova.virt.libvirt.devices import mdev, pci
from kilonova.virt.libvirt.devices.hotplug_xml import of_host
from kilonova.virt.libvirt.devices.mdev import LibvirtMdevs, MediatedDevice
from kilonova.virt.libvirt.devices.pci import PciFunction, Virtual

HostDevice = PciFunction | MediatedDevice


def discover(node_devices: Sequence[str]) -> list[dict[str, Any]]:
    """Return all PCI functions among libvirt's node devices (XML texts), and their mediated devices.

    The functions are sorted by address. After them come the mediated devices, sorted by uuid.
    """
    functions = pci.discover(node_devices)
    return functions + mdev.discover(node_devices, functions)


def host_devices(pci_devices: Iterable[PciDevice]) -> list[HostDevice]:
    """Convert PciDevice objects to the devices that the guest gets: PciFunction or MediatedDevice objects, in order."""
    return [_mediated(device) if device.dev_type == MDEV else _function(device) for device in pci_devices]


def _function(device: PciDevice) -> PciFunction:
    # extra_info contains the tags that device_spec gives the device, such as managed.
    info = device.extra_info or {}
    return PciFunction(
        device.address, strutils.bool_from_string(info.get('managed', 'true'), default=True), _trustable(info)
    )


def _trustable(info: Mapping[str, str]) -> Virtual | None:
    about = json.loads(info.get('capabilities') or '{}').get('sriov') or {}
    if info.get('trusted') != 'true' or 'vf_num' not in about or 'parent_ifname' not in info:
        return None
    return Virtual(info['parent_ifname'], about['vf_num'])


def _mediated(device: PciDevice) -> MediatedDevice:
    return MediatedDevice(device.address, device.parent_addr, device.extra_info['mdev_type'])


def given_to(domain: ElementTree.Element) -> list[str]:
    """Return the addresses of the PCI functions and the uuids of the mediated devices in a domain's XML, sorted.

    They are in <hostdev> elements, in <interface type='hostdev'> elements, and in <disk type='nvme'> elements, which
    are NVMe disks that QEMU drives itself.
    """
    disks = domain.iterfind("./devices/disk[@type='nvme']/source/address")
    return sorted({*of_host(domain), *map(pci.address_of, disks)})


class LibvirtDevices:
    """The devices of one host that guests can get. Implements ``parts.host.Devices``."""

    def __init__(self, connection: Connection, mediated: LibvirtMdevs) -> None:
        self._libvirt, self._mediated = connection, mediated

    @translated
    def missing_devices(self, devices: Iterable[PciDevice]) -> list[str]:
        """Return the addresses of the devices that the host does not have now."""
        wanted = list(devices)
        made = self._mediated.uuids() if any(device.dev_type == MDEV for device in wanted) else set()
        return [device.address for device in wanted if device.address not in made and not self._has(device)]

    @translated
    def unusable(self, devices: Iterable[PciDevice]) -> dict[str, str]:
        """Return a dict from address to reason, for the devices that the host has, but that no guest can use now.

        The reason is a text. Either the function's vGPU type is not set or is not the one that the device had, or the
        function does not answer any more (it has fallen off the PCI bus).
        """
        found = {}
        for device in devices:
            info, function = device.extra_info or {}, device.parent_addr if device.dev_type == MDEV else device.address
            why = carved.problem(sysfs.vgpu_type(device.address), info.get(VGPU_TYPE))
            if why is None and function and sysfs.has_fallen_off(function):
                why = f'{function} does not answer any more: it has fallen off the bus'
            if why is not None:
                found[device.address] = why
        return found

    @translated
    def related(self, devices: Iterable[PciDevice]) -> dict[str, frozenset[str]]:
        """Return, for each device, the addresses that no other guest may have while a guest has the device.

        The result is a dict from the device's address to a set of addresses. For a PCI function, the set has the
        function itself, its physical function, its virtual functions, its IOMMU group, and the mediated devices on the
        function or on its virtual functions. For a mediated device, it has the device itself, its parent, and the
        parent's physical function.
        """
        wanted = list(devices)
        made = self._mediated.by_parent() if any(device.dev_type != MDEV for device in wanted) else {}
        return {device.address: frozenset({device.address, *self._family(device, made)}) for device in wanted}

    def _family(self, device: PciDevice, made: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Yield the addresses of the devices that share hardware with ``device``.

        For a mediated device, these are its parent function and the physical function of its parent. For a PCI
        function, these are its IOMMU group (with the function itself), its physical function, its virtual functions,
        and the mediated devices on the function or on its virtual functions.

        ``made`` is a dict from libvirt's name of a PCI function ('pci_0000_08_00_0') to the uuids of the mediated
        devices that exist on the function.
        """
        if device.dev_type == MDEV:
            yield device.parent_addr
            parent = self._function(device.parent_addr)
            yield from [parent.parent_addr] if parent is not None and parent.parent_addr else ()
            return
        function = self._function(device.address)
        if function is None:
            return
        yield from function.group
        yield from [function.parent_addr] if function.parent_addr else ()
        yield from function.virtual
        for address in (device.address, *function.virtual):
            yield from made.get(pci.node_name(address), ())

    def _function(self, address: str) -> pci.Family | None:
        text = self._libvirt.node_device(pci.node_name(address))
        return pci.family(text) if text is not None else None

    @translated
    def ids_of(self, addresses: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return a dict from address to (vendor id, product id) of the PCI functions that the host has now."""
        texts = [self._libvirt.node_device(pci.node_name(address)) for address in sorted(set(addresses))]
        return {
            one['address']: (one['vendor_id'], one['product_id'])
            for one in pci.discover(text for text in texts if text is not None)
        }

    @translated
    def remove_mdevs(self, uuids: Iterable[str]) -> None:
        """Remove the mediated devices with these uuids from the host. A device that cannot be removed is kept."""
        self._mediated.remove(uuids)

    def _has(self, device: PciDevice) -> bool:
        if device.dev_type == MDEV:
            return self._mediated.is_offered(_mediated(device))
        return self._libvirt.has_node_device(pci.node_name(device.address))
