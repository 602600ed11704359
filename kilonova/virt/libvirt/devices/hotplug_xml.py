"""The elements of a domain's XML that can be added to and removed from a guest, and the names that identify them.

A network card is identified by its device on the host: its tap device, PCI function or socket. A macvtap or vDPA card
is identified by its MAC address. A PCI function that the guest gets as a PCI device is identified by its address, and a
volume by its id.

    kind, name = of_port(vif)                   # (CARDS, 'tap1eeb6c43-4f')
    kind.found(xml, name)                       # {'tap1eeb6c43-4f': '<interface …'}, or {}
    VOLUMES.put(definition, disk)               # adds the disk after the other disks, if it is missing
    VOLUMES.without(definition, volume_id)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

from kilonova.objects.vif import BEHIND, ON_INTERFACE, VDPA, VHOST_USER, WHOLE, Vif
from kilonova.virt.libvirt.devices import pci


@dataclass(frozen=True)
class ElementKind:
    """A kind of element below <devices> in a domain's XML: network cards, PCI functions or volumes.

    ``tag`` is the XML tag, ``name(element)`` returns the name that identifies an element among others of its kind, and
    ``words`` names the kind in error messages.
    """

    tag: str
    words: str
    name: Callable[[ElementTree.Element], str | None]

    def found(self, xml: str, name: str) -> dict[str, str]:
        """Return {name: element as XML text} if the domain has an element of this name, otherwise an empty dict."""
        named = ((self.name(one), one) for one in ElementTree.fromstring(xml).iterfind(f'devices/{self.tag}'))
        return {known: ElementTree.tostring(one, encoding='unicode') for known, one in named if known == name}

    def put(self, definition: str, element: str) -> str:
        """Return a domain's definition with ``element`` added after the other elements of this kind.

        The definition is returned unchanged if it has an element of the same name.
        """
        domain, new = ElementTree.fromstring(definition), ElementTree.fromstring(element)
        devices = domain.find('devices')
        if devices is None:
            devices = ElementTree.SubElement(domain, 'devices')
        if any(self.name(one) == self.name(new) for one in devices.iterfind(self.tag)):
            return definition
        places = [number for number, one in enumerate(devices, 1) if one.tag == self.tag]
        devices.insert(places[-1] if places else len(devices), new)
        return ElementTree.tostring(domain, encoding='unicode')

    def without(self, definition: str, name: str) -> str:
        """Return a domain's definition without the element of this name.

        A definition that has no such element is returned unchanged.
        """
        domain = ElementTree.fromstring(definition)
        devices = domain.find('devices')
        gone = [one for one in domain.iterfind(f'devices/{self.tag}') if self.name(one) == name]
        if devices is None or not gone:
            return definition
        for one in gone:
            devices.remove(one)
        return ElementTree.tostring(domain, encoding='unicode')


def _device(element: ElementTree.Element) -> str | None:
    target = element.find('target')
    return None if target is None else target.get('dev')


def _function(element: ElementTree.Element) -> str | None:
    address = element.find('source/address')
    return None if address is None or element.get('type') not in ('hostdev', 'pci') else pci.address_of(address)


def _card(element: ElementTree.Element) -> str | None:
    if element.get('type') in ('direct', VDPA):
        # libvirt chooses the names of macvtap and vDPA devices, so their MAC address identifies such cards.
        mac = element.find('mac')
        return None if mac is None else mac.get('address')
    if element.get('type') == VHOST_USER:
        # A vhostuser card has no network device on the host, so the path of its socket identifies the card.
        source = element.find('source')
        return None if source is None else source.get('path')
    return _function(element) or _device(element)


def _serial(disk: ElementTree.Element) -> str | None:
    return disk.findtext('serial')


def targets(xml: str) -> dict[str | None, str | None]:
    """Return a dict from volume id to the name under which the guest has the volume, such as 'vdb'."""
    return {_serial(disk): _device(disk) for disk in ElementTree.fromstring(xml).iterfind('devices/disk')}


def place(disk: str) -> tuple[str | None, ...]:
    """Return a tuple that identifies the storage of a <disk> element: two disks with equal tuples use the same storage.

    The tuple has the disk's type, and the attributes protocol, name, file and dev of its <source>. A missing value is
    None, as in ('block', None, None, None, '/dev/sdb').
    """
    element = ElementTree.fromstring(disk)
    source = element.find('source')
    return element.get('type'), *(
        None if source is None else source.get(name) for name in ('protocol', 'name', 'file', 'dev')
    )


def relocated(definition: str, name: str, disk: str) -> str:
    """Return a domain's definition in which the volume ``name`` has the storage that the element ``disk`` describes.

    All other settings of the volume are kept.
    """
    domain, new = ElementTree.fromstring(definition), ElementTree.fromstring(disk)
    for known in domain.iterfind('devices/disk'):
        if _serial(known) == name:
            known.set('type', new.get('type', ''))
            # These elements describe the storage of the disk, so they are replaced by the elements for the new storage.
            for tag in ('driver', 'auth', 'source', 'iotune', 'backingStore'):
                for old in known.findall(tag):
                    known.remove(old)
                known.extend(new.findall(tag))
    return ElementTree.tostring(domain, encoding='unicode')


def of_host(domain: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return the devices of the host that a domain has, as a dict from address or uuid to the XML element.

    First come the <hostdev> elements in the domain's order: PCI functions by their address, mediated devices by their
    uuid. After them come the <interface> elements of network cards that are PCI functions.
    """
    found = {}
    for element in domain.iterfind('./devices/hostdev'):
        address, kind = element.find('source/address'), element.get('type')
        if address is None:
            continue
        if kind == 'pci':
            found[pci.address_of(address)] = element
        elif kind == 'mdev':
            found[address.get('uuid', '')] = element
    for element in domain.iterfind("./devices/interface[@type='hostdev']"):
        address = element.find('source/address')
        if address is not None:
            found[pci.address_of(address)] = element
    return found


def of_port(vif: Vif) -> tuple[ElementKind, str]:
    """Return the element that describes a port in its guest's domain XML: the element's kind and its name.

    The kind is FUNCTIONS (<hostdev>) or CARDS (<interface>). Depending on the port's binding, the name is a PCI
    address, a MAC address, the path of a vhost-user socket, or the name of a tap device.
    """
    if vif.is_device:
        return FUNCTIONS, vif.slot or ''
    if vif.vnic_type in BEHIND or vif.type == ON_INTERFACE:
        return CARDS, vif.mac
    if vif.type == VHOST_USER:
        return CARDS, vif.socket or ''
    return CARDS, (vif.slot or '') if vif.vnic_type in WHOLE else vif.device_name


CARDS = ElementKind('interface', 'a network card', _card)
FUNCTIONS = ElementKind('hostdev', 'a function of a network device', _function)
VOLUMES = ElementKind('disk', 'a volume', _serial)
