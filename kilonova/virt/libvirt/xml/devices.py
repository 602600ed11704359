"""Elements below <devices> except disks and network cards: controllers, host devices, consoles and more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kilonova.virt.libvirt.xml.base import Element, node


@dataclass
class Controller:
    """A bus controller of a type and model.

    All controllers of one USB bus have the same ``index``: a main controller (USB 2) and its companions for slow
    devices. ``start`` is the number of the bus's port at which the ports of a companion begin (startport in libvirt).
    """

    type: str
    model: str | None = None
    index: int | None = None
    packed: bool = False
    start: int | None = None

    def element(self) -> Element:
        """Return the <controller> element."""
        return node(
            'controller',
            node('master', startport=self.start) if self.start is not None else None,
            node('driver', packed='on') if self.packed else None,
            type=self.type,
            index=self.index,
            model=self.model,
        )


@dataclass
class PciHostDevice:
    """A PCI function of the host that the guest gets, identified by its address.

    If ``managed`` is True, libvirt detaches the function from its host driver before the guest uses it.
    """

    address: str
    managed: bool = True

    def element(self) -> Element:
        """Return the <hostdev> element."""
        domain, bus, rest = self.address.split(':')
        slot, function = rest.split('.')
        return node(
            'hostdev',
            node(
                'source',
                node('address', domain=f'0x{domain}', bus=f'0x{bus}', slot=f'0x{slot}', function=f'0x{function}'),
            ),
            mode='subsystem',
            type='pci',
            managed='yes' if self.managed else 'no',
        )


@dataclass
class MediatedHostDevice:
    """A mediated device of the host that the guest gets as a PCI device, identified by its uuid."""

    uuid: str

    def element(self) -> Element:
        """Return the <hostdev> element."""
        return node(
            'hostdev',
            node('source', node('address', uuid=self.uuid)),
            mode='subsystem',
            type='mdev',
            managed='no',
            model='vfio-pci',
        )


@dataclass
class Serial:
    """A serial port. If ``log`` is set, the port's output is also written to this file of the host."""

    log: str | None
    port: int = 0
    # The address and the TCP port of the host on which the serial port listens.
    tcp: tuple[str, int] | None = None

    def element(self) -> Element:
        """Return the <serial> element."""
        source = node('source', mode='bind', host=self.tcp[0], service=self.tcp[1]) if self.tcp else None
        return node(
            'serial',
            source,
            node('log', file=self.log, append='off') if self.log else None,
            node('target', port=self.port),
            type='tcp' if self.tcp else 'pty',
        )


@dataclass
class Graphics:
    """A VNC or SPICE server that shows the guest's screen.

    ``kind`` is vnc or spice. The server listens at the host's address ``listen``, on a port that libvirt chooses.
    ``settings`` are pairs of element name and value for SPICE.
    """

    kind: str
    listen: str
    secure: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    # The attribute for a setting's value is 'mode' in the element <streaming>, and 'compression' in all other elements.
    ATTRIBUTES: ClassVar[dict[str, str]] = {'streaming': 'mode'}

    def element(self) -> Element:
        """Return the <graphics> element."""
        children = [node(name, **{self.ATTRIBUTES.get(name, 'compression'): value}) for name, value in self.settings]
        return node(
            'graphics',
            node('listen', type='address', address=self.listen),
            *children,
            type=self.kind,
            autoport='yes',
            defaultMode='secure' if self.secure else None,
        )


@dataclass
class Input:
    """A tablet or keyboard on a bus."""

    kind: str
    bus: str

    def element(self) -> Element:
        """Return the <input> element."""
        return node('input', type=self.kind, bus=self.bus)


@dataclass
class SpiceChannel:
    """The channel of SPICE's agent in the guest."""

    def element(self) -> Element:
        """Return the <channel> element."""
        return node('channel', node('target', type='virtio', name='com.redhat.spice.0'), type='spicevmc')


@dataclass
class AgentChannel:
    """The channel of QEMU's guest agent. libvirt creates its socket."""

    def element(self) -> Element:
        """Return the <channel> element."""
        return node('channel', node('target', type='virtio', name='org.qemu.guest_agent.0'), type='unix')


@dataclass
class Video:
    """A video adapter. ``vram`` is in KiB."""

    model: str
    vram: int | None = None

    def element(self) -> Element:
        """Return the <video> element."""
        return node('video', node('model', type=self.model, vram=self.vram))


@dataclass
class Sound:
    """A sound card."""

    model: str

    def element(self) -> Element:
        """Return the <sound> element."""
        return node('sound', model=self.model)


@dataclass
class Iommu:
    """The IOMMU between the guest's devices and its memory. ``driver`` has the attributes of its <driver> element."""

    model: str
    driver: dict[str, str] = field(default_factory=dict)

    def element(self) -> Element:
        """Return the <iommu> element."""
        return node('iommu', node('driver', **self.driver) if self.driver else None, model=self.model)


@dataclass
class WatchdogElement:
    """A watchdog device, and the action that QEMU takes if the guest no longer resets the device."""

    model: str
    action: str

    def element(self) -> Element:
        """Return the <watchdog> element."""
        return node('watchdog', model=self.model, action=self.action)


@dataclass
class Rng:
    """A random number generator. ``rate`` is a limit as (bytes, period in milliseconds)."""

    source: str
    rate: tuple[int, int | None] | None = None

    def element(self) -> Element:
        """Return the <rng> element."""
        limit = node('rate', period=self.rate[1], bytes=self.rate[0]) if self.rate else None
        return node('rng', limit, node('backend', self.source, model='random'), model='virtio')


@dataclass
class MemoryBalloon:
    """The memory balloon.

    ``period`` is the interval of the balloon's statistics in seconds. None means that the guest has no balloon.
    """

    period: int | None

    def element(self) -> Element:
        """Return the <memballoon> element."""
        if self.period is None:
            return node('memballoon', model='none')
        return node(
            'memballoon', node('stats', period=self.period), model='virtio', autodeflate='on', freePageReporting='on'
        )
