"""The devices of a domain."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kilonova.virt.libvirt.xml.element import Element, node


class Device(Protocol):
    """Anything below <devices>."""

    def element(self) -> Element:
        """Its XML."""


@dataclass
class FileDisk:
    """A disk, or a CD, that is a file of the host. ``limits``: elements of <iotune>."""

    path: str
    format: str
    target: str
    bus: str
    device: str = 'disk'
    cache: str | None = None
    io: str | None = None
    discard: str | None = None
    limits: dict[str, int] = field(default_factory=dict)

    def element(self) -> Element:
        return node('disk',
                    node('driver', name='qemu', type=self.format, cache=self.cache, io=self.io, discard=self.discard),
                    node('source', file=self.path),
                    node('target', dev=self.target, bus=self.bus),
                    node('iotune', *(node(name, str(value)) for name, value in self.limits.items()))
                    if self.limits else None,
                    node('readonly') if self.device == 'cdrom' else None,
                    type='file', device=self.device)


@dataclass
class Controller:
    """A bus controller, by kind and model."""

    type: str
    model: str | None = None
    index: int | None = None

    def element(self) -> Element:
        return node('controller', type=self.type, index=self.index, model=self.model)


@dataclass
class PciHostDevice:
    """A PCI function of the host, given to the guest: nothing but its address (pci.md §10)."""

    domain: str
    bus: str
    slot: str
    function: str
    managed: bool = True

    def element(self) -> Element:
        return node('hostdev',
                    node('source', node('address', domain=f'0x{self.domain}', bus=f'0x{self.bus}',
                                        slot=f'0x{self.slot}', function=f'0x{self.function}')),
                    mode='subsystem', type='pci', managed='yes' if self.managed else 'no')


@dataclass
class Serial:
    """A serial port; its output goes to the file ``log`` of the host besides, if there is one."""

    log: str | None
    port: int = 0

    def element(self) -> Element:
        return node('serial', node('log', file=self.log, append='off') if self.log else None,
                    node('target', port=self.port), type='pty')


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
