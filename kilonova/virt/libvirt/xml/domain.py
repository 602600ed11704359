"""The domain as a whole: what configurators fill in, and the order in which it is written (libvirt.md §7)."""
from __future__ import annotations

from dataclasses import dataclass, field

from kilonova.virt.libvirt.xml.devices import Device
from kilonova.virt.libvirt.xml.element import Element, node, to_text
from kilonova.virt.libvirt.xml.numa import CpuTune, GuestCell, MemoryBacking, NumaTune


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
    """The CPU that the guest sees. ``features``: (name, policy); ``cells``: its NUMA cells."""

    mode: str | None = None
    model: str | None = None
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    features: list[tuple[str, str]] = field(default_factory=list)
    cells: list[GuestCell] = field(default_factory=list)

    def element(self) -> Element:
        return node('cpu',
                    node('model', self.model) if self.model else None,
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
