"""Where a guest's CPUs and memory lie: on the host's NUMA cells, and how the guest sees them; its CPUs' limits."""
from __future__ import annotations

from dataclasses import dataclass, field

from kilonova.virt.libvirt.xml.element import Element, node


@dataclass
class MemoryBacking:
    """``pages``: {guest cell: size of its pages in KiB}; ``locked``: memory that the host must not swap out."""

    pages: dict[int, int] = field(default_factory=dict)
    locked: bool = False

    def element(self) -> Element:
        pages = [node('page', size=size, unit='KiB', nodeset=str(cell)) for cell, size in sorted(self.pages.items())]
        return node('memoryBacking', node('hugepages', *pages) if pages else None,
                    node('locked') if self.locked else None)


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
    ``limits``: shares, period and quota."""

    pins: dict[int, str] = field(default_factory=dict)
    emulator: str | None = None
    limits: dict[str, int] = field(default_factory=dict)

    def element(self) -> Element:
        return node('cputune', *(node(name, str(value)) for name, value in self.limits.items()),
                    *(node('vcpupin', vcpu=vcpu, cpuset=cpus) for vcpu, cpus in sorted(self.pins.items())),
                    node('emulatorpin', cpuset=self.emulator) if self.emulator else None)


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
