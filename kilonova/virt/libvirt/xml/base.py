"""Elements of a domain's XML: each is a dataclass with a method that returns the XML.

    node('source', file='/x/disk')                       # <source file="/x/disk"/>
    node('vcpu', '8', cpuset=None)                       # <vcpu>8</vcpu>
    node('os', node('type', 'hvm', arch='x86_64'))       # nested

Attributes and children that are None are left out. This file has the domain, its CPUs and its memory. The elements
below <devices> are in the files ``disks``, ``interfaces`` and ``devices``. The classes in ``virt.libvirt.domain``
create the elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from xml.etree import ElementTree

Element = ElementTree.Element


def node(tag: str, *children: Element | str | None, **attributes: str | int | None) -> Element:
    """Return an XML element with children and attributes.

    A child that is a str becomes the element's text. A trailing underscore of an attribute's name is removed, so that
    Python keywords can be used (``class_``).
    """
    element = Element(tag, {name.rstrip('_'): str(value) for name, value in attributes.items() if value is not None})
    for child in children:
        if isinstance(child, str):
            element.text = child
        elif child is not None:
            element.append(child)
    return element


def on(switched: bool) -> str | None:
    """Return 'on' for True. Return None for False, so that ``node`` leaves the attribute out."""
    return 'on' if switched else None


def to_text(element: Element) -> str:
    """Return the text of an XML element, indented."""
    ElementTree.indent(element)
    return ElementTree.tostring(element, encoding='unicode')


class Device(Protocol):
    """A device of a guest: an element below <devices> in the domain's XML."""

    def element(self) -> Element:
        """Return the XML element."""


@dataclass
class MemoryBacking:
    """The way in which the host provides the guest's memory.

    Attributes:
        pages: A dict from the number of a guest's NUMA cell to the size of its large pages in KiB.
        locked: True if the host must not swap the memory out.
        unshared: True if the host must not merge pages with equal pages of other guests.
        mapped: True if other processes may map the memory. For this, memory of small pages is made from a memfd file.
    """

    pages: dict[int, int] = field(default_factory=dict)
    locked: bool = False
    unshared: bool = False
    mapped: bool = False

    def element(self) -> Element:
        """Return the <memoryBacking> element."""
        pages = [node('page', size=size, unit='KiB', nodeset=str(cell)) for cell, size in sorted(self.pages.items())]
        return node(
            'memoryBacking',
            node('hugepages', *pages) if pages else None,
            node('nosharepages') if self.unshared else None,
            node('locked') if self.locked else None,
            node('source', type='memfd') if self.mapped and not pages else None,
            node('access', mode='shared') if self.mapped else None,
        )


@dataclass
class NumaTune:
    """The NUMA cells of the host that provide the guest's memory.

    ``nodes`` is a dict from the number of the guest's cell to the number of the host's cell.
    """

    nodes: dict[int, int]

    def element(self) -> Element:
        """Return the <numatune> element."""
        hosts = ','.join(str(host) for host in sorted(set(self.nodes.values())))
        return node(
            'numatune',
            node('memory', mode='strict', nodeset=hosts),
            *(node('memnode', cellid=cell, mode='strict', nodeset=host) for cell, host in sorted(self.nodes.items())),
        )


@dataclass
class CpuTune:
    """The host CPUs that a guest uses, and its CPU limits. Sets of CPUs are texts such as '0-3,8'.

    Attributes:
        pins: A dict from vCPU to the host CPUs that it may run on.
        emulator: The host CPUs of the emulator threads.
        limits: A dict from the names shares, period and quota to their values.
        realtime: The vCPUs with realtime priority.
        priority: The realtime priority of these vCPUs.
    """

    pins: dict[int, str] = field(default_factory=dict)
    emulator: str | None = None
    limits: dict[str, int] = field(default_factory=dict)
    realtime: str | None = None
    priority: int = 1

    def element(self) -> Element:
        """Return the <cputune> element."""
        return node(
            'cputune',
            *(node(name, str(value)) for name, value in self.limits.items()),
            *(node('vcpupin', vcpu=vcpu, cpuset=cpus) for vcpu, cpus in sorted(self.pins.items())),
            node('emulatorpin', cpuset=self.emulator) if self.emulator else None,
            node('vcpusched', vcpus=self.realtime, scheduler='fifo', priority=self.priority) if self.realtime else None,
        )


@dataclass
class GuestCell:
    """A NUMA cell that the guest sees.

    ``cpus`` is the set of the cell's vCPUs as text, such as '0-3'. ``shared`` is True if other processes may map the
    memory.
    """

    id: int
    cpus: str
    memory_kib: int
    shared: bool = False

    def element(self) -> Element:
        """Return the <cell> element."""
        return node(
            'cell',
            id=self.id,
            cpus=self.cpus,
            memory=self.memory_kib,
            unit='KiB',
            memAccess='shared' if self.shared else None,
        )


@dataclass
class Timer:
    """A timer of the guest's clock."""

    name: str
    tickpolicy: str | None = None
    present: str | None = None

    def element(self) -> Element:
        """Return the <timer> element."""
        return node('timer', name=self.name, tickpolicy=self.tickpolicy, present=self.present)


@dataclass
class Clock:
    """The guest's clock with its timers."""

    offset: str = 'utc'
    timers: list[Timer] = field(default_factory=list)

    def element(self) -> Element:
        """Return the <clock> element."""
        return node('clock', *(timer.element() for timer in self.timers), offset=self.offset)


@dataclass
class Cpu:
    """The CPU that the guest sees.

    ``features`` are pairs of name and policy, and ``cells`` the guest's NUMA cells. ``addresses`` is the width of the
    guest's physical addresses as (mode, number of bits), or None for the default.
    """

    mode: str | None = None
    model: str | None = None
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    features: list[tuple[str, str]] = field(default_factory=list)
    cells: list[GuestCell] = field(default_factory=list)
    addresses: tuple[str, int | None] | None = None

    def element(self) -> Element:
        """Return the <cpu> element."""
        return node(
            'cpu',
            node('model', self.model) if self.model else None,
            node('maxphysaddr', mode=self.addresses[0], bits=self.addresses[1]) if self.addresses else None,
            node('topology', sockets=self.sockets, cores=self.cores, threads=self.threads),
            *(node('feature', name=name, policy=policy) for name, policy in self.features),
            node('numa', *(cell.element() for cell in self.cells)) if self.cells else None,
            mode=self.mode,
            match='exact' if self.mode in ('host-model', 'custom') else None,
        )


@dataclass
class Kernel:
    """The kernel that a guest boots instead of its disk's boot loader. The paths are files of the host."""

    path: str
    ramdisk: str | None
    command_line: str


@dataclass
class Os:
    """The machine type of the guest and how it boots.

    ``firmware`` is 'efi' for UEFI or None for BIOS; libvirt finds the firmware's file on the host. ``secure_boot`` is
    used only with UEFI. ``boot`` lists device types from which the guest boots, such as 'hd'.
    """

    arch: str
    machine: str | None = None
    boot: list[str] = field(default_factory=list)
    bootmenu: bool = False
    smbios: bool = False
    firmware: str | None = None
    secure_boot: bool = False
    kernel: Kernel | None = None

    def element(self) -> Element:
        """Return the <os> element."""
        kernel = self.kernel
        return node(
            'os',
            node('type', 'hvm', arch=self.arch, machine=self.machine),
            *(self._firmware() if self.firmware else ()),
            *(
                (
                    node('kernel', kernel.path),
                    node('initrd', kernel.ramdisk) if kernel.ramdisk else None,
                    node('cmdline', kernel.command_line),
                )
                if kernel
                else ()
            ),
            *(node('boot', dev=device) for device in self.boot),
            node('bootmenu', enable='yes') if self.bootmenu else None,
            node('smbios', mode='sysinfo') if self.smbios else None,
            firmware=self.firmware,
        )

    def _firmware(self) -> tuple[Element, ...]:
        if not self.secure_boot:
            # Without this element, libvirt might select a firmware with secure boot.
            return (node('firmware', node('feature', enabled='no', name='secure-boot')),)
        return (
            node(
                'firmware',
                node('feature', enabled='yes', name='secure-boot'),
                node('feature', enabled='yes', name='enrolled-keys'),
            ),
            node('loader', secure='yes'),
        )


@dataclass
class Domain:
    """A guest's definition for libvirt. Elements that the guest does not need are left out of the XML."""

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
        """Return the <domain> element."""
        return node(
            'domain',
            node('uuid', self.uuid),
            node('name', self.name),
            node('memory', str(self.memory_kib)),
            self.memory_backing.element() if self.memory_backing else None,
            self.numatune.element() if self.numatune else None,
            node('vcpu', str(self.vcpus), cpuset=self.cpuset),
            node('metadata', self.metadata) if self.metadata is not None else None,
            node(
                'sysinfo',
                node('system', *(node('entry', value, name=name) for name, value in self.sysinfo.items())),
                type='smbios',
            )
            if self.sysinfo
            else None,
            self.os.element() if self.os else None,
            node('features', *self.features) if self.features else None,
            self.cputune.element() if self.cputune else None,
            self.clock.element() if self.clock else None,
            self.cpu.element() if self.cpu else None,
            node('devices', *(device.element() for device in self.devices)),
            type=self.type,
        )

    def to_xml(self) -> str:
        """Return the domain's XML as text."""
        return to_text(self.element())
