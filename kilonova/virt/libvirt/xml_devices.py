"""Elements of what else is below <devices>, as ``xml`` writes them: controllers, devices of the host, consoles …"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kilonova.virt.libvirt.xml import Element, node


@dataclass
class Controller:
    """A bus controller, by kind and model. ``start``: the first port that it serves for the controller of that index
    whose companion it is."""

    type: str
    model: str | None = None
    index: int | None = None
    packed: bool = False
    start: int | None = None

    def element(self) -> Element:
        return node('controller', node('master', startport=self.start) if self.start is not None else None,
                    node('driver', packed='on') if self.packed else None, type=self.type, index=self.index,
                    model=self.model)


@dataclass
class PciHostDevice:
    """A PCI function of the host, given to the guest: nothing but its address."""

    address: str
    managed: bool = True

    def element(self) -> Element:
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node('hostdev',
                    node('source', node('address', domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}',
                                        function=f'0x{function}')),
                    mode='subsystem', type='pci', managed='yes' if self.managed else 'no')


@dataclass
class MediatedHostDevice:
    """A mediated device of the host, given to the guest as a PCI device of its own: nothing but its uuid."""

    uuid: str

    def element(self) -> Element:
        return node('hostdev', node('source', node('address', uuid=self.uuid)), mode='subsystem', type='mdev',
                    managed='no', model='vfio-pci')


@dataclass
class Serial:
    """A serial port; its output goes to the file ``log`` of the host besides, if there is one."""

    log: str | None
    port: int = 0
    # Where its other end listens: an address and a TCP port of the host.
    tcp: tuple[str, int] | None = None

    def element(self) -> Element:
        source = node('source', mode='bind', host=self.tcp[0], service=self.tcp[1]) if self.tcp else None
        return node('serial', source, node('log', file=self.log, append='off') if self.log else None,
                    node('target', port=self.port), type='tcp' if self.tcp else 'pty')


@dataclass
class Graphics:
    """A server of the guest's screen: ``kind`` vnc or spice, at an address of the host and a port that libvirt
    chooses. ``settings``: SPICE's, element name → value."""

    kind: str
    listen: str
    secure: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    # The attribute that holds the value of each setting.
    ATTRIBUTES: ClassVar[dict[str, str]] = {'streaming': 'mode'}

    def element(self) -> Element:
        children = [node(name, **{self.ATTRIBUTES.get(name, 'compression'): value}) for name, value in self.settings]
        return node('graphics', node('listen', type='address', address=self.listen), *children, type=self.kind,
                    autoport='yes', defaultMode='secure' if self.secure else None)


@dataclass
class Input:
    """A tablet or keyboard on a bus."""

    kind: str
    bus: str

    def element(self) -> Element:
        return node('input', type=self.kind, bus=self.bus)


@dataclass
class SpiceChannel:
    """The port by which SPICE's agent is reached."""

    def element(self) -> Element:
        return node('channel', node('target', type='virtio', name='com.redhat.spice.0'), type='spicevmc')


@dataclass
class AgentChannel:
    """The port by which QEMU's guest agent is reached; libvirt makes the socket."""

    def element(self) -> Element:
        return node('channel', node('target', type='virtio', name='org.qemu.guest_agent.0'), type='unix')


@dataclass
class Video:
    """A graphics adapter; ``vram`` in KiB."""

    model: str
    vram: int | None = None

    def element(self) -> Element:
        return node('video', node('model', type=self.model, vram=self.vram))


@dataclass
class Sound:
    """A sound card."""

    model: str

    def element(self) -> Element:
        return node('sound', model=self.model)


@dataclass
class Iommu:
    """What stands between the guest's devices and its memory. ``driver``: attributes of <driver>."""

    model: str
    driver: dict[str, str] = field(default_factory=dict)

    def element(self) -> Element:
        return node('iommu', node('driver', **self.driver) if self.driver else None, model=self.model)


@dataclass
class Watchdog:
    """A watchdog, and what is done with a guest that no longer feeds it."""

    model: str
    action: str

    def element(self) -> Element:
        return node('watchdog', model=self.model, action=self.action)


@dataclass
class Rng:
    """A source of random numbers; ``rate`` is (bytes, period in milliseconds)."""

    source: str
    rate: tuple[int, int | None] | None = None

    def element(self) -> Element:
        limit = node('rate', period=self.rate[1], bytes=self.rate[0]) if self.rate else None
        return node('rng', limit, node('backend', self.source, model='random'), model='virtio')


@dataclass
class MemoryBalloon:
    """The balloon; ``period``: seconds between its statistics, None: no balloon."""

    period: int | None

    def element(self) -> Element:
        if self.period is None:
            return node('memballoon', model='none')
        return node('memballoon', node('stats', period=self.period), model='virtio', autodeflate='on',
                    freePageReporting='on')
