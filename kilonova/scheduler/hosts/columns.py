"""The arrays of the scheduler's host table, and the index of each compute node in them.

Callers must hold the host table's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar('K')
Row = dict[str, Any]
Mask = NDArray[np.bool_]
Values = NDArray[np.float64]

# Columns of the host table, with their types. Amounts have the same units as the attributes of HostState.
COLUMNS: Mapping[str, type[np.generic]] = MappingProxyType(
    {
        'live': np.bool_,
        'mapped': np.bool_,
        'disabled': np.bool_,
        'up': np.bool_,
        'cell': np.int32,
        'free_ram_mb': np.int64,
        'free_disk_mb': np.int64,
        'vcpus_total': np.int64,
        'vcpus_used': np.int64,
        'cpu_ratio': np.float64,
        'num_instances': np.int64,
        'num_io_ops': np.int64,
        'failed_builds': np.int64,
        'hypervisor_version': np.int64,
        'pci_free': np.int64,
        'supported': np.int32,
        'ram_room_mb': np.float64,
        'disk_room_mb': np.float64,
    }
)


class HostColumns(dict[K, NDArray[Any]]):
    """Arrays of the same length, by name. Each array has one value for each index of the host table."""

    def grow(self, size: int) -> None:
        """Extend all arrays to ``size`` values. New values are zero."""
        for name, values in self.items():
            self[name] = np.concatenate([values, np.zeros(size - len(values), values.dtype)])

    def clear_host(self, host_index: int) -> None:
        """Set the values of all arrays at ``host_index`` to zero."""
        for values in self.values():
            values[host_index] = 0


class HostIndex:
    """The index of each compute node in the arrays of the host table.

    A node has the same index in all arrays, until it is deleted.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # The uuids of cells. The column ``cell`` contains indexes of this list.
        self.cells: list[str] = []
        self._free = list(range(size - 1, -1, -1))
        self._of_node: dict[tuple[str, int], int] = {}
        self._of_uuid: dict[str, int] = {}
        self._of_host: dict[tuple[str, str], set[int]] = {}

    def __len__(self) -> int:
        return len(self._of_uuid)

    def add(self, cell_uuid: str, node: Row) -> int:
        """Return the index of a node; a new node gets a free index.

        ``size`` doubles if no index is free.
        """
        host_index = self._of_node.get((cell_uuid, node['id']))
        if host_index is None:
            if not self._free:
                self._free = list(range(2 * self.size - 1, self.size - 1, -1))
                self.size *= 2
            if cell_uuid not in self.cells:
                self.cells.append(cell_uuid)
            host_index = self._of_node[cell_uuid, node['id']] = self._free.pop()
            self._of_host.setdefault((cell_uuid, node['host']), set()).add(host_index)
        self._of_uuid[node['uuid']] = host_index
        return host_index

    def remove(self, cell_uuid: str, node: Row) -> None:
        """Remove a deleted node, and free its index."""
        host_index = self._of_node.pop((cell_uuid, node['id']))
        self._of_uuid.pop(node['uuid'], None)
        self._of_host[cell_uuid, node['host']].discard(host_index)
        self._free.append(host_index)

    def of_node(self, cell_uuid: str, node_id: int) -> int | None:
        """Return the index of the node with this id in this cell, or None if it is unknown."""
        return self._of_node.get((cell_uuid, node_id))

    def of_cell(self, cell_uuid: str) -> list[int]:
        """Return the ids of a cell's nodes."""
        return [node_id for cell, node_id in self._of_node if cell == cell_uuid]

    def of(self, uuid: str) -> int | None:
        """Return the index of the node with this uuid, or None if it is unknown."""
        return self._of_uuid.get(uuid)

    def of_host(self, cell_uuid: str, host: str) -> set[int]:
        """Return the indexes of a host's nodes."""
        return self._of_host.get((cell_uuid, host), set())

    def named(self, hosts: Iterable[str]) -> set[int]:
        """Return the indexes of the nodes of these hosts, in any cell."""
        return {host_index for cell in self.cells for host in hosts for host_index in self.of_host(cell, host)}

    def mask(self, places: Collection[int]) -> Mask:
        """Return a boolean array with one entry for each host, which is True only at the indexes ``places``."""
        found = np.zeros(self.size, np.bool_)
        found[list(places)] = True
        return found

    def these(self, uuids: Iterable[str]) -> Mask:
        """Return a boolean array that is True for the nodes with these uuids. Uuids of unknown nodes are ignored."""
        return self.mask([self._of_uuid[uuid] for uuid in uuids if uuid in self._of_uuid])
