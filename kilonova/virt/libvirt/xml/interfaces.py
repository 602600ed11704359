"""The <interface> elements of a domain's XML, for the guest's network cards."""

from __future__ import annotations

from dataclasses import dataclass

from kilonova.virt.libvirt.xml.base import Element, node, on


@dataclass
class InterfaceElement:
    """A network card that libvirt connects to a bridge of the host.

    Attributes:
        bridge: The bridge. None if an agent on the host connects the card instead.
        device: The name of the card's tap device on the host.
        ovs_port: The id of the port in Open vSwitch, if the bridge belongs to Open vSwitch.
        offloads: True if checksum offload and segmentation offload (TSO, GSO) between guest and host are switched on.
    """

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
        """Return the <interface> element."""
        return node(
            'interface',
            node('mac', address=self.mac),
            node('source', bridge=self.bridge) if self.bridge is not None else None,
            node('virtualport', node('parameters', interfaceid=self.ovs_port), type='openvswitch')
            if self.ovs_port
            else None,
            node('target', dev=self.device),
            node('model', type=self.model),
            self._driver(),
            node('mtu', size=self.mtu) if self.mtu else None,
            type='bridge' if self.bridge is not None else 'ethernet',
        )

    def _driver(self) -> Element | None:
        off = dict.fromkeys(('csum', 'tso4', 'tso6', 'ecn', 'ufo'), 'off')
        parts = [] if self.offloads else [node('host', gso='off', **off), node('guest', **off)]
        made = node('driver', *parts, queues=self.queues, packed=on(self.packed))
        return made if parts or made.attrib else None


@dataclass
class SocketInterface:
    """A virtio card that is connected to a switch in user space by a socket (``path``).

    The switch reads and writes the guest's memory. ``mode`` is 'server' if QEMU creates the socket, or
    'client' if QEMU connects to the socket. The element sets no MTU, because the host has no device for the card.
    """

    mac: str
    path: str
    mode: str
    queues: int | None = None
    packed: bool = False

    def element(self) -> Element:
        """Return the <interface> element."""
        driver = node('driver', queues=self.queues, packed=on(self.packed))
        return node(
            'interface',
            node('mac', address=self.mac),
            node('source', type='unix', path=self.path, mode=self.mode),
            node('model', type='virtio'),
            driver if driver.attrib else None,
            type='vhostuser',
        )


@dataclass
class FunctionInterface:
    """A network card that is a PCI function of the host, passed through to the guest.

    The host sets the card's MAC address and VLAN. If ``profile`` is set, the host sets no VLAN: the physical switch
    uses the VLAN of this port profile.
    """

    mac: str
    address: str
    vlan: int | None = None
    managed: bool = True
    profile: str | None = None

    def element(self) -> Element:
        """Return the <interface> element."""
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node(
            'interface',
            node('mac', address=self.mac),
            node(
                'source',
                node(
                    'address',
                    type='pci',
                    domain=f'0x{domain}',
                    bus=f'0x{bus}',
                    slot=f'0x{slot}',
                    function=f'0x{function}',
                ),
            ),
            _profile(self.profile),
            _vlan(self.vlan),
            type='hostdev',
            managed='yes' if self.managed else 'no',
        )


@dataclass
class MacvtapInterface:
    """A network card that is a macvtap device on ``device``, an interface of the host.

    With ``mode`` 'passthrough', no other macvtap device can use the interface. libvirt chooses the device's name.
    """

    mac: str
    device: str
    mode: str
    model: str
    vlan: int | None = None
    profile: str | None = None

    def element(self) -> Element:
        """Return the <interface> element."""
        return node(
            'interface',
            node('mac', address=self.mac),
            node('source', dev=self.device, mode=self.mode),
            _profile(self.profile),
            _vlan(self.vlan),
            node('model', type=self.model),
            type='direct',
        )


def _profile(profile: str | None) -> Element | None:
    return node('virtualport', node('parameters', profileid=profile), type='802.1Qbh') if profile is not None else None


@dataclass
class VdpaInterface:
    """A virtio card whose queues are served by a PCI function of the host (vDPA).

    ``path`` is the function's vhost-vdpa device file.
    """

    mac: str
    path: str

    def element(self) -> Element:
        """Return the <interface> element."""
        return node(
            'interface',
            node('mac', address=self.mac),
            node('source', dev=self.path),
            node('model', type='virtio'),
            type='vdpa',
        )


def _vlan(vlan: int | None) -> Element | None:
    return node('vlan', node('tag', id=vlan)) if vlan is not None else None
