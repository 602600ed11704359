"""Free PCI devices of all hosts, without the devices that this scheduler has reserved for servers.

    table.devices.free(request.spec)        # an array with the number of matching free devices of each host
    table.devices.pools(host_index)              # the pools of one host; the caller may change them

Callers must hold the host table's lock.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kilonova.db import envelopes
from kilonova.pci.device import PORT_PROVIDERS
from kilonova.pci.pools import PciPools, is_apart
from kilonova.pci.request import PLACEMENT_KEYS
from kilonova.scheduler.hosts.columns import HostColumns, Row
from kilonova.scheduler.hosts.host_state import less, parsed_pools
from kilonova.scheduler.hosts.reservations import Reservations

# The properties of a device that requests can name, as sorted (name, value) pairs.
Key = tuple[tuple[str, object], ...]
# Keys of a pool that PCI requests cannot name: PCI address, provider uuid, PF interface, providers of the PF.
_OWN_KEYS = frozenset(('address', 'rp_uuid', 'parent_ifname', PORT_PROVIDERS))


class FreeDevices:
    """Free PCI devices of all hosts.

    For each combination of properties that requests can name, there is one array. It has the number of free devices
    with these properties on each host.
    """

    def __init__(self, size: int, reservations: Reservations) -> None:
        self._size, self._reservations = size, reservations
        self._columns = HostColumns[Key]()
        # {index of a host: [(properties, provider uuid, number of free devices) of each pool in the host's row]}
        self._counts: dict[int, list[tuple[Key, str | None, int]]] = {}
        # {index of a host: texts of the columns pci_stats and numa_topology of the host's row}
        self._texts: dict[int, tuple[str | None, str | None]] = {}

    def grow(self, size: int) -> None:
        """Extend all arrays to ``size`` entries. New entries are 0."""
        self._size = size
        self._columns.grow(size)

    def write(self, host_index: int, node: Row) -> int:
        """Store the pools of a host's current row for index ``host_index``, and return how many devices are free."""
        self.clear(host_index)
        self._texts[host_index] = node['pci_stats'], node['numa_topology']
        self._counts[host_index] = list(_pool_counts(node['pci_stats'])) if node['pci_stats'] else []
        for key, _, _ in self._counts[host_index]:
            if key not in self._columns:
                self._columns[key] = np.zeros(self._size, np.int64)
        return self.count(host_index)

    def clear(self, host_index: int) -> None:
        """Remove the pools of a deleted host."""
        for key, _, _ in self._counts.pop(host_index, ()):
            self._columns[key][host_index] = 0
        self._texts.pop(host_index, None)

    def count(self, host_index: int) -> int:
        """Count the free devices of a host again, write the counts to the arrays, and return the sum.

        Free devices are the devices in the pools of the host's compute node, minus the devices that this scheduler has
        reserved. Called when the node's row or a reservation changes.
        """
        pools = self._counts.get(host_index, [])
        for key, _, _ in pools:
            self._columns[key][host_index] = 0
        left = self._left(host_index)
        for (key, _, _), count in zip(pools, left, strict=True):
            self._columns[key][host_index] += count
        return sum(left)

    def free(self, wanted: Iterable[Mapping[str, object]]) -> NDArray[np.int64]:
        """Return an array with each host's number of free devices that match one of the device specs in ``wanted``.

        Not all of these devices may be suitable, because NUMA distances and Placement's traits are not compared.
        """
        folded = [{name: _fold(value) for name, value in one.items() if name not in PLACEMENT_KEYS} for one in wanted]
        total = np.zeros(self._size, np.int64)
        for key, values in self._columns.items():
            has = dict(key)
            if is_apart(has, folded):
                continue
            if any(all(name in has and has[name] == value for name, value in one.items()) for one in folded):
                total += values
        return total

    def pools(self, host_index: int) -> PciPools:
        """Return the pools of free PCI devices of the host at ``host_index``, without reserved devices.

        The result is a copy, which the caller may change.
        """
        return less(parsed_pools(*self._texts[host_index]), self._reservations.on(host_index).values())

    def _left(self, host_index: int) -> list[int]:
        """Return the number of free devices in each pool of the host's row, minus the reserved devices."""
        taken = self._reservations.on(host_index).values()
        if any(one.requests for one in taken):
            stored = parsed_pools(*self._texts[host_index])
            # Copies of a pool share the object ``keys`` with the original pool, so its id identifies the pool.
            # A pool without an entry in ``left`` has no usable device, for example because its PF is reserved.
            left = {id(pool.keys): pool.count for pool in less(stored, taken).pools}
            return [left.get(id(pool.keys), 0) for pool in stored.pools]
        gone: Counter[str | None] = Counter()
        for one in taken:
            gone.update(one.devices)
        found = []
        for _, provider, count in self._counts.get(host_index, ()):
            number = min(count, gone[provider]) if provider is not None else 0
            if number:
                gone[provider] -= number
            found.append(count - number)
        return found


def _fold(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _pool_counts(text: str) -> Iterator[tuple[Key, str | None, int]]:
    """Yield (properties that requests can name, provider, count) for each pool of a ``pci_stats`` column.

    To be fast, it reads the JSON text without creating objects.
    """
    stored = json.loads(text)
    if isinstance(stored, dict):
        stored = envelopes.members(stored)
    for one in stored:
        flat = {**one, **(one.get('tags') or {})}
        key = tuple(
            sorted(
                (name, _fold(value))
                for name, value in flat.items()
                if name not in ('tags', 'count', 'numa_node') and name not in _OWN_KEYS
            )
        )
        yield key, flat.get('rp_uuid'), one['count']
