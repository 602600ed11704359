"""NUMA cells of a host, and the cells on which a server fits.

The scheduler's NUMA filter and the claim on the host use this code.

    cells = spread(cells=2, sockets=1, cores=16, threads=2, memory_mb=262144)    # 2 cells, each of 32 CPUs and 128 GiB
    empty = topology_of(cells, Offer.read(conf, online))    # the host's objects.NUMATopology, without any server
    host = used(empty, topologies)                          # with the topologies of the servers that the host has
    wanted = constraints.of(flavor, image.properties)       # the topology that a new server needs
    placed = fit(host, wanted, CellLimits(cpu_ratio=4.0))   # ``wanted`` on cells of the host, or None if it can't fit
    consume(host, placed)                                   # count the new server's CPUs and memory as used

Each cell of a placed topology has these attributes:

- ``id``: the number of the host's cell
- ``cpu_pinning``: the host CPU of each dedicated vCPU
- ``cpuset_reserved``: the CPUs of isolated emulator threads
- ``pagesize``: the page size in KiB

Dedicated CPUs, and pages of a requested size, are given to only one server at a time. Shared CPUs and memory may be
overcommitted by the allocation ratios.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kilonova.objects import (
    InstanceNUMACell,
    InstanceNUMATopology,
    NetworkMetadata,
    NUMACell,
    NUMAPagesTopology,
    NUMATopology,
    VirtCPUTopology,
)
from kilonova.pci.pools import PciPools, ProviderMapping, Requests
from kilonova.pci.request import as_list
from kilonova.virt.hardware import pinning
from kilonova.virt.hardware.constraints import ANY, LARGE, SMALL
from kilonova.virt.hardware.offer import Offer


@dataclass(frozen=True)
class HostCell:
    """One NUMA cell of a host.

    ``cpus`` are CPU numbers, ``siblings`` sets of CPUs that are threads of one core, and ``pages`` is {size in KiB:
    number}.
    """

    id: int
    cpus: frozenset[int]
    memory_mb: int
    siblings: tuple[frozenset[int], ...] = ()
    socket: int | None = None
    pages: dict[int, int] = field(default_factory=dict)


def spread(cells: int, sockets: int, cores: int, threads: int, memory_mb: int) -> list[HostCell]:
    """Return the cells of a host that reports only their number and sizes. CPUs are numbered consecutively.

    ``sockets`` is the number per cell, ``cores`` the number per socket, and ``threads`` the number per core, as in
    libvirt's getInfo. ``memory_mb`` is the memory of the whole host.
    """
    found = []
    per_cell = sockets * cores * threads
    for number in range(cells):
        first = number * per_cell
        cpus = range(first, first + per_cell)
        pairs = tuple(frozenset(cpus[start : start + threads]) for start in range(0, per_cell, threads))
        memory = memory_mb // cells
        found.append(
            HostCell(number, frozenset(cpus), memory, pairs if threads > 1 else (), number * sockets, {4: memory * 256})
        )
    return found


def topology_of(cells: Sequence[HostCell], offer: Offer) -> NUMATopology | None:
    """Return the host's NUMA topology without any usage by servers, or None if the host reports no cells."""
    if not cells:
        return None
    return NUMATopology(
        cells=[
            NUMACell(
                id=cell.id,
                cpuset=set(cell.cpus & offer.shared),
                pcpuset=set(cell.cpus & offer.dedicated),
                memory=cell.memory_mb,
                cpu_usage=0,
                memory_usage=0,
                pinned_cpus=set(),
                siblings=[set(group) for group in cell.siblings],
                socket=cell.socket,
                mempages=[
                    NUMAPagesTopology(size_kb=size, total=total, used=0, reserved=offer.reserved_pages(cell.id, size))
                    for size, total in sorted(cell.pages.items())
                ],
                network_metadata=NetworkMetadata(physnets=set(), tunneled=False),
            )
            for cell in cells
        ]
    )


# -- the CPUs and memory that servers use ------------------------------------------------------------------------------
def used(host: NUMATopology, placed: Iterable[InstanceNUMATopology]) -> NUMATopology:
    """Return a copy of the host's topology in which the CPUs and memory of these placed servers count as used."""
    copy = host.obj_clone()
    for topology in placed:
        consume(copy, topology)
    return copy


def consume(host: NUMATopology, placed: InstanceNUMATopology) -> None:
    """Count the CPUs and memory of a placed server as used in ``host``. Ignore cells that the host no longer has."""
    cells = {cell.id: cell for cell in host.cells}
    for cell in placed.cells:
        if cell.id in cells:
            _consume(cells[cell.id], cell)


def _consume(host: NUMACell, cell: InstanceNUMACell) -> None:
    host.cpu_usage = host.cpu_usage + len(cell.cpuset)
    host.memory_usage = host.memory_usage + cell.memory
    host.pinned_cpus = set(host.pinned_cpus) | cpus_of(cell, host.siblings)
    size = _value(cell, 'pagesize')
    for pages in host.mempages:
        if pages.size_kb == size:
            pages.used = pages.used + cell.memory * 1024 // size


def cpus_of(cell: InstanceNUMACell, siblings: Sequence[Any] = ()) -> set[int]:
    """Return the host CPUs that a server's placed cell occupies: no other server may be pinned to them.

    ``siblings`` has, for each core of the host cell, the set of the core's threads.
    """
    pins = {int(vcpu): cpu for vcpu, cpu in (_value(cell, 'cpu_pinning_raw') or {}).items()}
    return pinning.occupied(pins, _value(cell, 'cpuset_reserved') or (), siblings, _value(cell, 'cpu_thread_policy'))


def _value(cell: InstanceNUMACell, name: str) -> Any:
    return getattr(cell, name) if name in cell else None


# -- the cells of a host on which a server fits ------------------------------------------------------------------------
@dataclass(frozen=True)
class CellLimits:
    """Overcommit ratios of shared CPUs and memory of a host's NUMA cells, and the order in which cells are used.

    ``pack`` is the option [compute]packing_host_numa_cells_allocation_strategy. If it is True, a server gets cells that
    other servers already use before it gets empty cells.
    """

    cpu_ratio: float = 1.0
    ram_ratio: float = 1.0
    pack: bool = False


class DeviceAffinity:
    """The PCI devices that a server requests, and whether the host can provide them near given NUMA cells."""

    def __init__(self, pools: PciPools, requests: Requests, mapping: ProviderMapping | None = None) -> None:
        self._pools, self._requests, self._mapping = pools, as_list(requests), mapping
        self._near = [request.replaced(numa_policy='required') for request in self._requests]
        self._answers: dict[tuple[tuple[int, ...], bool], bool] = {}

    def __bool__(self) -> bool:
        return bool(self._requests)

    def cells(self) -> set[int]:
        """Return the NUMA cells of the host that have free devices which match the requests.

        If the server requests no devices, return the cells that have any free device.
        """
        specs = [spec for request in self._requests for spec in request.spec]
        return {
            pool.keys['numa_node']
            for pool in self._pools.pools
            if pool.count
            and pool.keys.get('numa_node') is not None
            and (not specs or any(pool.matches(spec) for spec in specs))
        }

    def allow(self, cells: Collection[int], near: bool) -> bool:
        """Return whether the host has free devices for all requests of a server that is placed on these NUMA cells.

        With ``near``, all devices must be on these cells. Otherwise the NUMA policy of each request says whether its
        devices must be on these cells.
        """
        key = tuple(sorted(cells)), near
        if key not in self._answers:
            self._answers[key] = self._pools.support_requests(
                self._near if near else self._requests, self._mapping, key[0]
            )
        return self._answers[key]


def fit(
    host: NUMATopology,
    wanted: InstanceNUMATopology,
    limits: CellLimits = CellLimits(),
    devices: DeviceAffinity | None = None,
) -> InstanceNUMATopology | None:
    """Return the guest's NUMA topology ``wanted`` with a host cell and pinned CPUs for each cell, or None if none fit.

    The arguments are not changed, and an earlier placement in ``wanted`` is ignored. Each guest cell gets a host cell
    of its own, and all cells use pages of the same size. ``devices`` are the PCI devices that the server requests: host
    cells with matching devices are tried first, and a placement without room for the devices is not returned. If the
    server requests no devices, host cells without devices are tried first.
    """
    if not wanted.cells or len(wanted.cells) > len(host.cells):
        return None
    for size in _page_sizes(host, wanted):
        table = _CellTable(host, wanted, size, limits)
        order = [cell for cell in _order(host, wanted, limits, devices) if table.takes_any(cell)]
        for near in (True, False) if devices else (False,):
            for placed in table.placements(order):
                if not devices or devices.allow([cell.id for cell in placed], near):
                    return _assembled(wanted, placed)
    return None


def _assembled(wanted: InstanceNUMATopology, cells: list[InstanceNUMACell]) -> InstanceNUMATopology:
    return wanted.replaced(cells=cells)


def _page_sizes(host: NUMATopology, wanted: InstanceNUMATopology) -> list[int | None]:
    """Return the page sizes to try, best first. The result is [None] if the server requests no page size."""
    asked = _value(wanted.cells[0], 'pagesize')
    if asked is None:
        return [None]
    sizes = sorted({pages.size_kb for cell in host.cells for pages in cell.mempages})
    if asked == SMALL:
        return list(sizes[:1])
    if asked in (LARGE, ANY):
        return list(reversed(sizes[1:] if asked == LARGE else sizes))
    return [size for size in sizes if size == asked]


def _order(
    host: NUMATopology, wanted: InstanceNUMATopology, limits: CellLimits, devices: DeviceAffinity | None
) -> list[NUMACell]:
    """Return the host's NUMA cells, with the cells that are most suitable for the server first."""
    pinned = any(cell.pcpuset for cell in wanted.cells)
    gpus = devices.cells() if devices is not None else set()
    asks = bool(devices)

    def room(cell: NUMACell) -> tuple[int, int, int]:
        return len(cell.free_pcpus) if pinned else 0, -cell.cpu_usage, cell.avail_memory

    cells = sorted(host.cells, key=lambda cell: cell.id)
    cells.sort(key=room, reverse=not limits.pack)
    cells.sort(key=lambda cell: (cell.id in gpus) != asks)
    return cells


class _CellTable:
    """A cache of placements: the result of placing each NUMA cell of a server on each NUMA cell of a host.

    Each placement is computed when it is first needed.
    """

    def __init__(self, host: NUMATopology, wanted: InstanceNUMATopology, size: int | None, limits: CellLimits) -> None:
        self._wanted, self._size, self._limits = wanted.cells, size, limits
        isolated = 'emulator_threads_policy' in wanted and wanted.emulator_threads_policy == pinning.ISOLATE
        # The first cell of a server with isolated emulator threads needs one more CPU. All other cells need none.
        self._reserve = [int(isolated and not number) for number in range(len(wanted.cells))]
        self._found: dict[tuple[int, int], InstanceNUMACell | None] = {}

    def at(self, number: int, host: NUMACell) -> InstanceNUMACell | None:
        """Return the guest's NUMA cell ``number`` with the id and pinned CPUs of the host's NUMA cell ``host``.

        Return None if the guest's cell does not fit on this host cell.
        """
        key = number, host.id
        if key not in self._found:
            self._found[key] = _fit_cell(host, self._wanted[number], self._size, self._reserve[number], self._limits)
        return self._found[key]

    def takes_any(self, host: NUMACell) -> bool:
        """Return whether the host cell can take at least one of the server's cells."""
        return any(self.at(number, host) is not None for number in range(len(self._wanted)))

    def placements(self, order: Sequence[NUMACell]) -> Iterator[list[InstanceNUMACell]]:
        """Yield one placement of the server for each combination of host cells on which it fits.

        Each placement has one placed cell for each cell of the server. ``order`` has the host cells, best first.
        """
        for cells in itertools.combinations(order, len(self._wanted)):
            placed = self._match(0, cells)
            if placed is not None:
                yield placed

    def _match(self, number: int, left: tuple[NUMACell, ...]) -> list[InstanceNUMACell] | None:
        if number == len(self._wanted):
            return []
        for index, host in enumerate(left):
            cell = self.at(number, host)
            rest = self._match(number + 1, left[:index] + left[index + 1 :]) if cell is not None else None
            if cell is not None and rest is not None:
                return [cell, *rest]
        return None


def _fit_cell(
    host: NUMACell, wanted: InstanceNUMACell, size: int | None, reserve: int, limits: CellLimits
) -> InstanceNUMACell | None:
    shared = len(wanted.cpuset)
    if shared and (shared > len(host.cpuset) or host.cpu_usage + shared > len(host.cpuset) * limits.cpu_ratio):
        return None
    if not _has_memory(host, wanted.memory, size, limits.ram_ratio):
        return None
    pinned = pinning.pin(host.free_pcpus, host.siblings, wanted.pcpuset, _value(wanted, 'cpu_thread_policy'), reserve)
    if pinned is None:
        return None
    layout = None
    if wanted.pcpuset and not shared:
        layout = VirtCPUTopology(sockets=1, cores=len(wanted.pcpuset) // pinned.threads, threads=pinned.threads)
    return wanted.replaced(
        id=host.id,
        pagesize=size,
        cpu_topology=layout,
        cpuset_reserved=set(pinned.reserved) or None,
        cpu_pinning_raw={str(vcpu): cpu for vcpu, cpu in pinned.pins.items()} or None,
    )


def _has_memory(host: NUMACell, memory_mb: int, size: int | None, ratio: float) -> bool:
    """Return whether a host cell has ``memory_mb`` MiB of free memory, in pages of ``size`` KiB.

    If ``size`` is None, the memory is in pages of the smallest size and may be overcommitted by ``ratio``.
    """
    if memory_mb > host.memory or host.memory_usage + memory_mb > host.memory * ratio:
        return False
    pages = sorted(host.mempages, key=lambda one: one.size_kb)
    wanted_kb = memory_mb * 1024
    if size is not None and not any(
        one.size_kb == size and wanted_kb % size == 0 and one.free_kb >= wanted_kb for one in pages
    ):
        return False
    if not pages or (size is not None and size != pages[0].size_kb):
        return True
    # Count only the pages of the smallest size: memory in huge pages is allocated in advance and cannot replace them.
    total_kb = (pages[0].total - pages[0].reserved) * pages[0].size_kb
    used_kb = host.memory_usage * 1024 - sum(one.used * one.size_kb for one in pages[1:])
    found: bool = wanted_kb <= total_kb and used_kb + wanted_kb <= total_kb * (ratio if size is None else 1.0)
    return found
