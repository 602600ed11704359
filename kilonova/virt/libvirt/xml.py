"""Typed elements of a domain's XML: dataclasses that know how they are written, and nothing else.

    node('source', file='/x/disk')                       # <source file="/x/disk"/>
    node('vcpu', '8', cpuset=None)                       # <vcpu>8</vcpu>
    node('os', node('type', 'hvm', arch='x86_64'))       # nested

Attributes that are None are left out, so are children that are None. The domain, its CPUs and its memory are here, what
is below <devices> in ``xml_disks``, ``xml_interfaces`` and ``xml_devices``.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from xml.etree import ElementTree

Element = ElementTree.Element


def node(tag: str, *children: Element | str | None, **attributes: str | int | None) -> Element:
    """An element; a str child is its text. ``type_`` and the like lose the underscore."""
    element = Element(tag, {name.rstrip('_'): str(value) for name, value in attributes.items() if value is not None})
    for child in children:
        if isinstance(child, str):
            element.text = child
        elif child is not None:
            element.append(child)
    return element


def on(switched: bool) -> str | None:
    """A switch that is left out where it is off."""
    return 'on' if switched else None


def to_text(element: Element) -> str:
    """Indented XML."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding='unicode')


class Device(Protocol):
    """Anything below <devices>."""

    def element(self) -> Element:
        """Its XML."""


@dataclass
class MemoryBacking:
    """``pages``: {guest cell: size of its pages in KiB}; ``locked``: memory that the host must not swap out;
    ``unshared``: nor merge with what is equal in other guests; ``mapped``: other processes may map it, which small
    pages must be a file for."""

    pages: dict[int, int] = field(default_factory=dict)
    locked: bool = False
    unshared: bool = False
    mapped: bool = False

    def element(self) -> Element:
        pages = [node('page', size=size, unit='KiB', nodeset=str(cell)) for cell, size in sorted(self.pages.items())]
        return node('memoryBacking', node('hugepages', *pages) if pages else None,
                    node('nosharepages') if self.unshared else None,
                    node('locked') if self.locked else None,
                    node('source', type='memfd') if self.mapped and not pages else None,
                    node('access', mode='shared') if self.mapped else None)


@dataclass
class NumaTune:
    """``nodes``: {guest cell: host cell that its memory must come from}."""

    nodes: dict[int, int]

    def element(self) -> Element:
        hosts = ','.join(str(host) for host in sorted(set(self.nodes.values())))
        return node('numatune', node('memory', mode='strict', nodeset=hosts), *(
            node('memnode', cellid=cell, mode='strict', nodeset=host) for cell, host in sorted(self.nodes.items())))


@dataclass
class CpuTune:
    """``pins``: {vCPU: host CPUs that it may run on}; ``emulator``: those of the emulator's threads. Sets as text.
    ``limits``: shares, period and quota; ``realtime``: vCPUs that run before all else, by priority ``priority``."""

    pins: dict[int, str] = field(default_factory=dict)
    emulator: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    realtime: str | None = None
    priority: int = 1

    def element(self) -> Element:
        return node('cputune', *(node(name, str(value)) for name, value in self.limits.items()),
                    *(node('vcpupin', vcpu=vcpu, cpuset=cpus) for vcpu, cpus in sorted(self.pins.items())),
                    node('emulatorpin', cpuset=self.emulator) if self.emulator else None,
                    node('vcpusched', vcpus=self.realtime, scheduler='fifo', priority=self.priority)
                    if self.realtime else None)


@dataclass
class GuestCell:
    """A NUMA cell as the guest sees it. ``cpus`` as text; ``shared``: memory that other processes may map."""

    id: int
    cpus: str
    memory_kib: int
    shared: bool = False

    def element(self) -> Element:
        return node('cell', id=self.id, cpus=self.cpus, memory=self.memory_kib, unit='KiB',
                    memAccess='shared' if self.shared else None)


@dataclass
class Timer:
    """A clock source of the guest."""

    name: str
    tickpolicy: str | None = None
    present: str | None = None

    def element(self) -> Element:
        return node('timer', name=self.name, tickpolicy=self.tickpolicy, present=self.present)


@dataclass
class Clock:
    """The guest's clock."""

    offset: str = 'utc'
    timers: list[Timer] = field(default_factory=list)

    def element(self) -> Element:
        return node('clock', *(timer.element() for timer in self.timers), offset=self.offset)


@dataclass
class Cpu:
    """The CPU that the guest sees. ``features``: (name, policy); ``cells``: its NUMA cells; ``addresses``: (mode, bits)
    of its physical addresses."""

    mode: str | None = None
    model: str | None = None
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    features: list[tuple[str, str]] = field(default_factory=list)
    cells: list[GuestCell] = field(default_factory=list)
    addresses: tuple[str, int | None] | None = None

    def element(self) -> Element:
        return node('cpu',
                    node('model', self.model) if self.model else None,
                    node('maxphysaddr', mode=self.addresses[0], bits=self.addresses[1]) if self.addresses else None,
                    node('topology', sockets=self.sockets, cores=self.cores, threads=self.threads),
                    *(node('feature', name=name, policy=policy) for name, policy in self.features),
                    node('numa', *(cell.element() for cell in self.cells)) if self.cells else None,
                    mode=self.mode, match='exact' if self.mode in ('host-model', 'custom') else None)


@dataclass
class Kernel:
    """What a guest starts instead of its disk's boot loader: files of the host."""

    path: str
    ramdisk: str | None
    command_line: str


@dataclass
class Os:
    """How the guest starts. ``firmware``: 'efi', which libvirt finds on the host; ``secure_boot`` counts with it."""

    arch: str
    machine: str | None = None
    boot: list[str] = field(default_factory=list)
    bootmenu: bool = False
    smbios: bool = False
    firmware: str | None = None
    secure_boot: bool = False
    kernel: Kernel | None = None

    def element(self) -> Element:
        kernel = self.kernel
        return node('os', node('type', 'hvm', arch=self.arch, machine=self.machine),
                    *(self._firmware() if self.firmware else ()),
                    *((node('kernel', kernel.path), node('initrd', kernel.ramdisk) if kernel.ramdisk else None,
                       node('cmdline', kernel.command_line)) if kernel else ()),
                    *(node('boot', dev=device) for device in self.boot),
                    node('bootmenu', enable='yes') if self.bootmenu else None,
                    node('smbios', mode='sysinfo') if self.smbios else None,
                    firmware=self.firmware)

    def _firmware(self) -> tuple[Element, ...]:
        if not self.secure_boot:
            # Said, as libvirt would take a firmware with secure boot where it finds that first.
            return (node('firmware', node('feature', enabled='no', name='secure-boot')),)
        return (node('firmware', node('feature', enabled='yes', name='secure-boot'),
                     node('feature', enabled='yes', name='enrolled-keys')), node('loader', secure='yes'))


@dataclass
class Domain:
    """A guest's definition. Everything that nobody asked for stays out of the XML."""

    type: str
    uuid: str
    name: str
    memory_kib: int = 0
    memory_backing: MemoryBacking | None = None
    numatune: NumaTune | None = None
    vcpus: int = 1
    cpuset: str | None = None
    cputune: CpuTune | None = None
    metadata: Element | None = None
    sysinfo: dict[str, str] = field(default_factory=dict)
    os: Os | None = None
    features: list[Element] = field(default_factory=list)
    clock: Clock | None = None
    cpu: Cpu | None = None
    devices: list[Device] = field(default_factory=list)

    def element(self) -> Element:
        return node(
            'domain',
            node('uuid', self.uuid), node('name', self.name), node('memory', str(self.memory_kib)),
            self.memory_backing.element() if self.memory_backing else None,
            self.numatune.element() if self.numatune else None,
            node('vcpu', str(self.vcpus), cpuset=self.cpuset),
            node('metadata', self.metadata) if self.metadata is not None else None,
            node('sysinfo', node('system', *(node('entry', value, name=name)
                                             for name, value in self.sysinfo.items())),
                 type='smbios') if self.sysinfo else None,
            self.os.element() if self.os else None,
            node('features', *self.features) if self.features else None,
            self.cputune.element() if self.cputune else None,
            self.clock.element() if self.clock else None,
            self.cpu.element() if self.cpu else None,
            node('devices', *(device.element() for device in self.devices)),
            type=self.type)

    def to_xml(self) -> str:
        return to_text(self.element())
