"""The free PCI devices of the hosts in ``table.Table``, less what was just given away. Callers hold the table's lock.

    table.devices.free(request.spec)        # an array: how many each host has
    table.devices.pools(place)              # one host's, one's own to change
"""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kilonova.pci.device import PORT_PROVIDERS
from kilonova.pci.pools import PciPools, is_apart
from kilonova.pci.request import PLACEMENT_KEYS
from kilonova.scheduler.columns import Columns, Row
from kilonova.scheduler.host_state import less, parsed_pools
from kilonova.scheduler.reservations import Reservations

# What requests can ask for, as sorted pairs.
Key = tuple[tuple[str, object], ...]
# The address tells pools apart but is nothing that requests ask for; providers are the host's own.
_OWN_KEYS = frozenset(('address', 'rp_uuid', 'parent_ifname', PORT_PROVIDERS))


class Devices:
    """Each pool counts in the array of its key."""

    def __init__(self, size: int, reservations: Reservations) -> None:
        self._size, self._reservations = size, reservations
        self._columns = Columns[Key]()
        # {place: (key, provider, count) of each pool of the row}, and the texts that they come from.
        self._counts: dict[int, list[tuple[Key, str | None, int]]] = {}
        self._texts: dict[int, tuple[str | None, str | None]] = {}

    def grow(self, size: int) -> None:
        self._size = size
        self._columns.grow(size)

    def write(self, place: int, node: Row) -> int:
        """A host's pools as its row has them now; how many devices are left."""
        self.clear(place)
        self._texts[place] = node['pci_stats'], node['numa_topology']
        self._counts[place] = list(_pool_counts(node['pci_stats'])) if node['pci_stats'] else []
        for key, _, _ in self._counts[place]:
            if key not in self._columns:
                self._columns[key] = np.zeros(self._size, np.int64)
        return self.count(place)

    def clear(self, place: int) -> None:
        """The host is gone."""
        for key, _, _ in self._counts.pop(place, ()):
            self._columns[key][place] = 0
        self._texts.pop(place, None)

    def count(self, place: int) -> int:
        """Write down how many devices are left, whatever was counted before: who gives back leaves no trace."""
        pools = self._counts.get(place, [])
        for key, _, _ in pools:
            self._columns[key][place] = 0
        left = self._left(place)
        for (key, _, _), count in zip(pools, left, strict=True):
            self._columns[key][place] += count
        return sum(left)

    def free(self, wanted: Iterable[Mapping[str, object]]) -> NDArray[np.int64]:
        """How many free devices of these specs (any of them) each host has at most."""
        folded = [{name: _fold(value) for name, value in one.items() if name not in PLACEMENT_KEYS} for one in wanted]
        total = np.zeros(self._size, np.int64)
        for key, values in self._columns.items():
            has = dict(key)
            if is_apart(has, folded):
                continue
            if any(all(name in has and has[name] == value for name, value in one.items()) for one in folded):
                total += values
        return total

    def pools(self, place: int) -> PciPools:
        """The host's free devices, less what was just given away; one's own to change."""
        return less(parsed_pools(*self._texts[place]), self._reservations.on(place).values())

    def _left(self, place: int) -> list[int]:
        """The free devices of each pool of the host's row, less what was just given away."""
        taken = self._reservations.on(place).values()
        if any(one.requests for one in taken):
            stored = parsed_pools(*self._texts[place])
            # A pool that is gone has a relative that is taken. Copies share the keys.
            left = {id(pool.keys): pool.count for pool in less(stored, taken).pools}
            return [left.get(id(pool.keys), 0) for pool in stored.pools]
        gone: Counter[str | None] = Counter()
        for one in taken:
            gone.update(one.devices)
        found = []
        for _, provider, count in self._counts.get(place, ()):
            number = min(count, gone[provider]) if provider is not None else 0
            if number:
                gone[provider] -= number
            found.append(count - number)
        return found


def _fold(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _pool_counts(text: str) -> Iterator[tuple[Key, str | None, int]]:
    """(what requests can ask for, provider, count) of each pool of a ``pci_stats`` column, without objects."""
    stored = json.loads(text)
    if isinstance(stored, dict):
        stored = [one['nova_object.data'] for one in stored['nova_object.data']['objects']]
    for one in stored:
        flat = {**one, **(one.get('tags') or {})}
        key = tuple(sorted((name, _fold(value)) for name, value in flat.items()
                           if name not in ('tags', 'count', 'numa_node') and name not in _OWN_KEYS))
        yield key, flat.get('rp_uuid'), one['count']
