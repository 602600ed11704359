"""Elements of a domain's network cards, as ``xml`` writes them."""
from __future__ import annotations

from dataclasses import dataclass

from kilonova.virt.libvirt.xml import Element, node, on


@dataclass
class Interface:
    """A network card on a bridge of the host (None: on none, an agent there sees to the device): ``device`` there, and
    of Open vSwitch's bridges the port that it is. ``offloads``: host and guest may leave checksums and the cutting of
    large packets to each other."""

    mac: str
    bridge: str | None
    device: str
    model: str
    ovs_port: str | None = None
    mtu: int | None = None
    queues: int | None = None
    packed: bool = False
    offloads: bool = True

    def element(self) -> Element:
        return node('interface',
                    node('mac', address=self.mac),
                    node('source', bridge=self.bridge) if self.bridge is not None else None,
                    node('virtualport', node('parameters', interfaceid=self.ovs_port), type='openvswitch')
                    if self.ovs_port else None,
                    node('target', dev=self.device),
                    node('model', type=self.model),
                    self._driver(),
                    node('mtu', size=self.mtu) if self.mtu else None,
                    type='bridge' if self.bridge is not None else 'ethernet')

    def _driver(self) -> Element | None:
        off = dict.fromkeys(('csum', 'tso4', 'tso6', 'ecn', 'ufo'), 'off')
        parts = [] if self.offloads else [node('host', gso='off', **off), node('guest', **off)]
        made = node('driver', *parts, queues=self.queues, packed=on(self.packed))
        return made if parts or made.attrib else None


@dataclass
class SocketInterface:
    """A virtio card whose other end is a switch in user space, which speaks with QEMU by a socket (``path``) and reads
    and writes the guest's memory. ``mode``: QEMU's part, 'server' makes the socket, 'client' finds it. libvirt would
    look for a device of the host to give it an MTU."""

    mac: str
    path: str
    mode: str
    queues: int | None = None
    packed: bool = False

    def element(self) -> Element:
        driver = node('driver', queues=self.queues, packed=on(self.packed))
        return node('interface', node('mac', address=self.mac),
                    node('source', type='unix', path=self.path, mode=self.mode), node('model', type='virtio'),
                    driver if driver.attrib else None, type='vhostuser')


@dataclass
class FunctionInterface:
    """A network card that is a function of a PCI device of the host, given to the guest whole. The host sets its MAC
    address, and puts it into a VLAN, or its switch into that of a port profile."""

    mac: str
    address: str
    vlan: int | None = None
    managed: bool = True
    profile: str | None = None

    def element(self) -> Element:
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node('interface', node('mac', address=self.mac),
                    node('source', node('address', type='pci', domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}',
                                        function=f'0x{function}')),
                    _profile(self.profile), _vlan(self.vlan), type='hostdev', managed='yes' if self.managed else 'no')


@dataclass
class MacvtapInterface:
    """A network card that is a macvtap device on ``device``, an interface of the host, which in ``mode`` passthrough it
    has for itself. libvirt names it."""

    mac: str
    device: str
    mode: str
    model: str
    vlan: int | None = None
    profile: str | None = None

    def element(self) -> Element:
        return node('interface', node('mac', address=self.mac), node('source', dev=self.device, mode=self.mode),
                    _profile(self.profile), _vlan(self.vlan), node('model', type=self.model), type='direct')


def _profile(profile: str | None) -> Element | None:
    return node('virtualport', node('parameters', profileid=profile), type='802.1Qbh') if profile is not None else None


@dataclass
class VdpaInterface:
    """A virtio card whose rings a function of the host serves: QEMU drives it by ``path``, of vhost-vdpa. libvirt lets
    QEMU lock as much memory as that needs, as it does for devices that are given whole."""

    mac: str
    path: str

    def element(self) -> Element:
        return node('interface', node('mac', address=self.mac), node('source', dev=self.path),
                    node('model', type='virtio'), type='vdpa')


def _vlan(vlan: int | None) -> Element | None:
    return node('vlan', node('tag', id=vlan)) if vlan is not None else None
