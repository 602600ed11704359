"""What of a domain's XML comes and goes while the guest is there: network cards, each known by its device on the host,
the PCI function or the socket that it is, or, behind a macvtap device or vDPA, its MAC address; functions that are
given as such, by their addresses; and volumes, each by its id.

    kind, name = of_port(vif)                   # (CARDS, 'tap1eeb6c43-4f')
    kind.found(xml, name)                       # {'tap1eeb6c43-4f': '<interface …'}, or {}
    VOLUMES.put(definition, disk)               # behind the others; the same text where it is there
    VOLUMES.without(definition, volume_id)
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

from kilonova.objects.vif import BEHIND, ON_INTERFACE, VDPA, VHOST_USER, WHOLE, Vif
from kilonova.virt.libvirt.devices import pci


@dataclass(frozen=True)
class Kind:
    """Elements ``tag`` below <devices>, each known by what ``name`` finds in it; ``words``: for people."""

    tag: str
    words: str
    name: Callable[[ElementTree.Element], str | None]

    def found(self, xml: str, name: str) -> dict[str, str]:
        """The one of that name as text, by its name."""
        named = ((self.name(one), one) for one in ElementTree.fromstring(xml).iterfind(f'devices/{self.tag}'))
        return {known: ElementTree.tostring(one, encoding='unicode') for known, one in named if known == name}

    def put(self, definition: str, element: str) -> str:
        """The definition with that one, behind those that it has."""
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
        """The definition without that one."""
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
        # libvirt names its device on the host.
        mac = element.find('mac')
        return None if mac is None else mac.get('address')
    if element.get('type') == VHOST_USER:
        # Only Open vSwitch has a device by some name.
        source = element.find('source')
        return None if source is None else source.get('path')
    return _function(element) or _device(element)


def _serial(disk: ElementTree.Element) -> str | None:
    return disk.findtext('serial')


def targets(xml: str) -> dict[str | None, str | None]:
    """{volume: by which name the guest has it: 'vdb'}."""
    return {_serial(disk): _device(disk) for disk in ElementTree.fromstring(xml).iterfind('devices/disk')}


def place(disk: str) -> tuple[str | None, ...]:
    """Where a disk is, of its element."""
    element = ElementTree.fromstring(disk)
    source = element.find('source')
    return element.get('type'), *(None if source is None else source.get(name)
                                  for name in ('protocol', 'name', 'file', 'dev'))


def relocated(definition: str, name: str, disk: str) -> str:
    """The definition whose volume of that name is where ``disk`` is, and otherwise what it was."""
    domain, new = ElementTree.fromstring(definition), ElementTree.fromstring(disk)
    for known in domain.iterfind('devices/disk'):
        if _serial(known) == name:
            known.set('type', new.get('type', ''))
            # What it reads from besides is in its new place.
            for tag in ('driver', 'auth', 'source', 'iotune', 'backingStore'):
                for old in known.findall(tag):
                    known.remove(old)
                known.extend(new.findall(tag))
    return ElementTree.tostring(domain, encoding='unicode')


def of_host(domain: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Return a domain's devices of its host, in its order: {PCI address, or uuid of a mediated device: <hostdev>}, and
    after them the <interface> of each network card that is a PCI function."""
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


def of_port(vif: Vif) -> tuple[Kind, str]:
    """What a port is in its guest's domain, and by which name."""
    if vif.is_device:
        return FUNCTIONS, vif.slot or ''
    if vif.vnic_type in BEHIND or vif.type == ON_INTERFACE:
        return CARDS, vif.mac
    if vif.type == VHOST_USER:
        return CARDS, vif.socket or ''
    return CARDS, (vif.slot or '') if vif.vnic_type in WHOLE else vif.device_name


CARDS = Kind('interface', 'a network card', _card)
FUNCTIONS = Kind('hostdev', 'a function of a network device', _function)
VOLUMES = Kind('disk', 'a volume', _serial)
