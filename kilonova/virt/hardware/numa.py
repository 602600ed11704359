"""NUMA cells of a host.

    spread(cells=2, sockets=1, cores=16, threads=2, memory_mb=262144)    # two cells of 32 CPUs, 128 GiB
    to_json(cells)                                                      # compute_nodes.numa_topology
"""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HostCell:
    """One NUMA cell: CPU numbers, memory in MiB, CPUs that share a core, and pages {size in KiB: how many}."""

    id: int
    cpus: frozenset[int]
    memory_mb: int
    siblings: tuple[frozenset[int], ...] = ()
    socket: int | None = None
    pages: dict[int, int] = field(default_factory=dict)


def spread(cells: int, sockets: int, cores: int, threads: int, memory_mb: int) -> list[HostCell]:
    """Cells of a host that only tells how many of each it has: numbered one after the other.

    ``sockets`` is per cell, ``cores`` per socket, ``threads`` per core, as libvirt's getInfo has them.
    """
    found = []
    per_cell = sockets * cores * threads
    for number in range(cells):
        first = number * per_cell
        cpus = range(first, first + per_cell)
        pairs = tuple(frozenset(cpus[start:start + threads]) for start in range(0, per_cell, threads))
        memory = memory_mb // cells
        found.append(HostCell(number, frozenset(cpus), memory, pairs if threads > 1 else (), number * sockets,
                              {4: memory * 256}))
    return found


def _envelope(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    return {'nova_object.name': name, 'nova_object.namespace': 'nova', 'nova_object.version': version,
            'nova_object.data': data}


def to_json(cells: Sequence[HostCell]) -> str | None:
    """The NUMATopology 1.2 envelope (rpc-objects-db.md §3); None for a host that tells of no cells."""
    if not cells:
        return None
    return json.dumps(_envelope('NUMATopology', '1.2', {'cells': [
        _envelope('NUMACell', '1.5', {
            'id': cell.id, 'cpuset': sorted(cell.cpus), 'pcpuset': [], 'memory': cell.memory_mb,
            'cpu_usage': 0, 'memory_usage': 0, 'pinned_cpus': [],
            'siblings': [sorted(pair) for pair in cell.siblings], 'socket': cell.socket,
            'mempages': [_envelope('NUMAPagesTopology', '1.1',
                                   {'size_kb': size, 'total': total, 'used': 0, 'reserved': 0})
                         for size, total in sorted(cell.pages.items())],
            'network_metadata': _envelope('NetworkMetadata', '1.0', {'physnets': [], 'tunneled': False})})
        for cell in cells]}))
