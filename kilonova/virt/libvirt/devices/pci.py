"""PCI functions of the host: read them from libvirt's node devices, and describe them in the form that guests get.

    discover(host.node_devices())      # [{'address': '0000:08:00.0', 'dev_type': 'type-PCI', ...}, ...]
    read_serials(found)                # adds serial numbers of cards for which libvirt does not report them

The dicts have the keys that ``parts.host.Host.get_available_resource`` describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from oslo_log import log as logging

from kilonova.pci import sysfs
from kilonova.pci.device import CHILD_TYPES, SWITCHDEV, VGPU_TYPE
from kilonova.pci.vpd import serial_number

LOG = logging.getLogger(__name__)

# Functions in a PCI domain with a number above this (Intel VMD) cannot be passed through to a guest.
_MAX_DOMAIN = 0xFFFF


@dataclass(frozen=True)
class Virtual:
    """A virtual function, identified by its physical function's network interface and its number in that function."""

    interface: str
    number: int


@dataclass(frozen=True)
class PciFunction:
    """A PCI function of the host that is passed through to a guest.

    If ``managed`` is True, libvirt detaches the function from its host driver before use and reattaches it afterwards.
    ``trustable`` is set for a virtual function that the host may set to trusted. For all other functions it is None.
    """

    address: str
    managed: bool = True
    trustable: Virtual | None = None


@dataclass(frozen=True)
class _Network:
    """The network interface of a PCI function: its name, MAC address and offload features."""

    name: str | None
    mac: str | None
    features: tuple[str, ...]


def discover(node_devices: Iterable[str], root: str | None = None) -> list[dict[str, Any]]:
    """Return all PCI functions among libvirt's node devices (XML texts), as dicts sorted by address."""
    functions: list[tuple[str, ElementTree.Element]] = []
    interfaces: dict[str, list[_Network]] = {}
    vdpa_parents: set[str] = set()
    for text in node_devices:
        device = ElementTree.fromstring(text)
        capability = device.find('capability')
        if capability is None:
            continue
        kind, parent = capability.get('type'), device.findtext('parent') or ''
        if kind == 'pci':
            functions.append((device.findtext('name') or '', capability))
        elif kind == 'net':
            interfaces.setdefault(parent, []).append(
                _Network(
                    capability.findtext('interface'),
                    capability.findtext('address'),
                    tuple(feature.get('name', '') for feature in capability.findall('feature')),
                )
            )
        elif kind == 'vdpa':
            vdpa_parents.add(parent)
    networks = {parent: _own_interface(known, root or sysfs.ROOT) for parent, known in interfaces.items()}
    by_address = {_own_address(capability): name for name, capability in functions}
    virtual = {_own_address(capability): _virtual_functions(capability) for _name, capability in functions}
    serials: dict[str | None, str | None] = {
        _own_address(capability): capability.findtext("./capability[@type='vpd']/fields/serial_number")
        for _name, capability in functions
    }
    found = []
    for name, capability in functions:
        if _number(capability.findtext('domain')) > _MAX_DOMAIN:
            LOG.debug('Skipping PCI device %s: its domain has more than 16 bits', name)
            continue
        device_dict = _describe(name, capability)
        network = networks.get(name)
        if network and network.features:
            device_dict['capabilities']['network'] = sorted(network.features)
        if network and device_dict['dev_type'] == 'type-PF':
            _add_own(device_dict, network)
        parent_address = device_dict.get('parent_addr')
        # If the virtual function has no serial number, use the serial number of its physical function.
        _add_serial(device_dict, serials[device_dict['address']] or serials.get(parent_address))
        if parent_address:
            _add_parent(device_dict, networks.get(by_address.get(parent_address, '')), virtual.get(parent_address, []))
            if name in vdpa_parents:
                device_dict['dev_type'] = 'vdpa'
            vgpu_type = sysfs.vgpu_type(device_dict['address'], root)
            if vgpu_type is not None:
                device_dict[VGPU_TYPE] = vgpu_type
        found.append(device_dict)
    return sorted(found, key=lambda device: device['address'])


@dataclass(frozen=True)
class Family:
    """Addresses of the PCI functions that are related to one PCI function.

    ``parent_addr`` is the physical function of a virtual function, and None for all other functions. ``virtual`` are
    the virtual functions of a physical function. ``group`` are the functions of the IOMMU group, including the function
    itself.
    """

    parent_addr: str | None
    virtual: tuple[str, ...]
    group: tuple[str, ...]


def family(node_device: str) -> Family | None:
    """Return a PCI function's physical function, its virtual functions, and the functions of its IOMMU group.

    ``node_device`` is the XML of the function's node device. Return None if it is not a PCI function.
    """
    capability = ElementTree.fromstring(node_device).find("capability[@type='pci']")
    if capability is None:
        return None
    parent = capability.find("./capability[@type='phys_function']/address")
    return Family(
        address_of(parent) if parent is not None else None,
        tuple(_virtual_functions(capability)),
        tuple(map(address_of, capability.findall('./iommuGroup/address'))),
    )


def read_serials(found: Iterable[dict[str, Any]], root: str = sysfs.ROOT) -> None:
    """Add serial numbers of cards to the virtual functions in ``found`` for which libvirt has not reported them.

    The numbers are read from the kernel, in the card's vital product data (VPD). libvirt 9.0 reports nothing for a card
    whose VPD have no end tag or a truncated writable section.
    """
    read: dict[str, str | None] = {}
    for device in found:
        if device['dev_type'] not in CHILD_TYPES or 'vpd' in device['capabilities']:
            continue
        for address in (device['address'], device['parent_addr']):
            if address not in read:
                read[address] = serial_number(sysfs.vpd(address, root))
            _add_serial(device, read[address])


def node_name(address: str) -> str:
    """Return libvirt's name of a PCI function's node device, such as 'pci_0000_08_00_0'."""
    return 'pci_' + re.sub('[:.]', '_', address)


def _describe(name: str, capability: ElementTree.Element) -> dict[str, Any]:
    vendor, product = _id(capability, 'vendor'), _id(capability, 'product')
    described: dict[str, Any] = {
        'dev_id': name,
        'address': _own_address(capability),
        'vendor_id': vendor,
        'product_id': product,
        'numa_node': _numa_node(capability),
        'label': f'label_{vendor}_{product}',
        'dev_type': 'type-PCI',
        'capabilities': {},
    }
    parent = capability.find("./capability[@type='phys_function']/address")
    if parent is not None:
        described.update(dev_type='type-VF', parent_addr=address_of(parent))
    elif capability.find("./capability[@type='virt_functions']") is not None:
        # A function that can have virtual functions is a physical function, even if it has none yet.
        described['dev_type'] = 'type-PF'
    types = mdev_types(capability)
    if types is not None:
        described['mdev_types'] = types
    group = capability.find('iommuGroup')
    if group is not None:
        described['iommu_group'] = _number(group.get('number'))
    return described


def mdev_types(capability: ElementTree.Element) -> dict[str, dict[str, Any]] | None:
    """Return the types of mediated devices that a function supports, or None if it supports none.

    The result is a dict from type to {'available': how many more can be created, 'api': the API that guests see}.
    """
    offered = capability.find("./capability[@type='mdev_types']")
    if offered is None:
        return None
    return {
        kind.get('id', ''): {
            'available': _number(kind.findtext('availableInstances')),
            'api': kind.findtext('deviceAPI') or '',
        }
        for kind in offered.findall('type')
    }


def _add_own(device: dict[str, Any], network: _Network) -> None:
    """Add the MAC address and the name of a network interface to the dict of its physical function.

    ``device`` is the dict of the physical function, and ``network`` is its network interface.
    """
    if network.mac:
        device['mac_address'] = network.mac
    if network.name:
        device['parent_ifname'] = network.name


def _add_parent(device: dict[str, Any], parent: _Network | None, siblings: list[str]) -> None:
    """Add data of a physical function (``parent``) to the dict of one of its virtual functions (``device``).

    The data are the interface's name and MAC address, the switchdev flag, and the number of the virtual function.
    ``siblings`` are the addresses of all virtual functions of ``parent`` in the order of their numbers, so the number
    is the function's index in this list. Do nothing if ``parent`` is None.
    """
    if parent is None:
        return
    if parent.name:
        device['parent_ifname'] = parent.name
    if SWITCHDEV in parent.features:
        device[SWITCHDEV] = 'true'
    if parent.mac and device['address'] in siblings:
        device['capabilities']['sriov'] = {'pf_mac_address': parent.mac, 'vf_num': siblings.index(device['address'])}


def _own_interface(known: list[_Network], root: str) -> _Network:
    """Return a PCI function's own network interface. ``known`` are all network interfaces that the function has.

    If the card is in switchdev mode, ``known`` also has the representors of the card's virtual functions. A
    representor is recognized by the file phys_port_name of the interface in sysfs, whose directory is ``root``.
    """
    return next((one for one in known if len(known) == 1 or not sysfs.is_representor(one.name or '', root)), known[0])


def _add_serial(device: dict[str, Any], serial: str | None) -> None:
    if serial and 'vpd' not in device['capabilities']:
        device['capabilities']['vpd'] = {'card_serial_number': serial}


def _virtual_functions(capability: ElementTree.Element) -> list[str]:
    return [address_of(address) for address in capability.findall("./capability[@type='virt_functions']/address")]


def _number(text: str | None) -> int:
    return int(text or '0', 0)


def _own_address(capability: ElementTree.Element) -> str:
    """Return the PCI address of a function. libvirt writes each part of it as an element with a decimal number."""
    return _format(*(_number(capability.findtext(part)) for part in ('domain', 'bus', 'slot', 'function')))


def address_of(address: ElementTree.Element) -> str:
    """Return the PCI address that an <address> element describes. The element's attributes are hexadecimal numbers."""
    return _format(*(_number(address.get(part)) for part in ('domain', 'bus', 'slot', 'function')))


def _format(domain: int, bus: int, slot: int, function: int) -> str:
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function:x}'


def _id(capability: ElementTree.Element, kind: str) -> str:
    element = capability.find(kind)
    return f'{_number(element.get("id") if element is not None else None):04x}'


def _numa_node(capability: ElementTree.Element) -> int | None:
    element = capability.find('numa')
    node = int(element.get('node', '-1')) if element is not None else -1
    return node if node >= 0 else None
