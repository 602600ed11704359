"""All hosts as columns of numbers, so that ten thousand of them are filtered and weighed in a millisecond.

    table = Table()
    table.put(cell_uuid, node_row); table.put_service(cell_uuid, service_row)
    alive = table.usable(cells) & ~table['disabled'] & table['up']
    table.take(uuid, Reservation(...))      # what was just given away, until the host itself says so

A host has a *place* (its index in all columns) as long as it lives. What a scheduler has claimed counts at once:
``take`` subtracts it and ``give_back`` forgets it when the host's own row contains it. Callers hold ``lock``.
"""
from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kilonova.objects.compute_node import ratios
from kilonova.pci.pools import PciPools
from kilonova.pci.request import PLACEMENT_KEYS
from kilonova.scheduler.host_state import less, parsed_pools
from kilonova.scheduler.reservations import Reservation, Reservations

Row = dict[str, Any]
Mask = NDArray[np.bool_]
Values = NDArray[np.float64]

# Columns and their types; amounts as in HostState.
COLUMNS: Mapping[str, Any] = MappingProxyType({
    'live': np.bool_, 'mapped': np.bool_, 'disabled': np.bool_, 'up': np.bool_, 'cell': np.int32,
    'free_ram_mb': np.int64, 'free_disk_mb': np.int64, 'vcpus_total': np.int64, 'vcpus_used': np.int64,
    'cpu_ratio': np.float64, 'num_instances': np.int64, 'num_io_ops': np.int64, 'failed_builds': np.int64,
    'hypervisor_version': np.int64, 'pci_free': np.int64, 'supported': np.int32, 'ram_room_mb': np.float64,
    'disk_room_mb': np.float64})
# Texts that many hosts share are kept once; more than so many a host are swept.
TEXTS = 12
_SHARED = ('cpu_info', 'supported_instances', 'numa_topology', 'hypervisor_type', 'stats', 'metrics')
# The address tells pools apart but is nothing that requests ask for; the provider is the host's own.
_OWN_KEYS = frozenset(('address', 'rp_uuid', 'parent_ifname'))


class Table:
    """See the module. Not thread-safe by itself: hold ``lock`` around looks and changes."""

    def __init__(self, size: int = 64) -> None:
        self.lock = threading.RLock()
        self._columns = {name: np.zeros(size, kind) for name, kind in COLUMNS.items()}
        self._classes: dict[tuple, NDArray[np.int64]] = {}
        self._nodes: list[Row | None] = [None] * size
        self._pools: list[list[tuple[tuple, str | None, int]]] = [[] for _ in range(size)]
        self._free = list(range(size - 1, -1, -1))
        self._place_of: dict[tuple[str, int], int] = {}
        self._by_uuid: dict[str, int] = {}
        self._by_host: dict[tuple[str, str], set[int]] = {}
        self._services: dict[tuple[str, str], Row] = {}
        self._cells: list[str] = []
        self._texts: dict[str, str] = {}
        self._kinds: list[str] = []
        self.reservations = Reservations(self.lock)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._by_uuid)

    # -- filling -------------------------------------------------------------------------------------------------------
    def put(self, cell_uuid: str, node: Row) -> None:
        """A node's row as it is now; a deleted one leaves."""
        key = cell_uuid, node['id']
        if node['deleted']:
            self.drop(cell_uuid, node['id'])
            return
        place = self._place_of.get(key)
        if place is None:
            place = self._place_of[key] = self._new_place()
            self._by_host.setdefault((cell_uuid, node['host']), set()).add(place)
        self._by_uuid[node['uuid']] = place
        if len(self._texts) > TEXTS * (len(self._by_uuid) + 1):
            # What no row says any more; texts of hosts that change with each server would pile up.
            kept = {row[name] for row in self._nodes if row is not None for name in _SHARED}
            self._texts = {text: text for text in kept if isinstance(text, str)}
        for name in _SHARED:
            if isinstance(node[name], str):
                node[name] = self._texts.setdefault(node[name], node[name])
        self._nodes[place] = node
        self._write(place, cell_uuid, node)

    def drop(self, cell_uuid: str, node_id: int) -> Row | None:
        """A node that is gone; its row, None when it was not there."""
        place = self._place_of.pop((cell_uuid, node_id), None)
        if place is None:
            return None
        node = self._nodes[place]
        assert node is not None
        self._nodes[place] = None
        self._clear_pools(place)
        self._by_uuid.pop(node['uuid'], None)
        self._by_host[cell_uuid, node['host']].discard(place)
        for values in self._columns.values():
            values[place] = 0
        self.reservations.drop(place)
        self._free.append(place)
        return node

    def put_service(self, cell_uuid: str, service: Row) -> None:
        """A compute service as it is now."""
        key = cell_uuid, service['host']
        known = self._services.get(key)
        if service['deleted']:
            if known is not None and known['id'] == service['id']:
                del self._services[key]
        else:
            self._services[key] = {**service, 'up': known['up'] if known is not None else True}
        for place in self._by_host.get(key, ()):
            self._write_service(place, self._services.get(key))

    def put_down(self, cell_uuid: str, down: Collection[int]) -> None:
        """Which services of a cell are down, by id; all others are up."""
        for (cell, host), service in self._services.items():
            if cell == cell_uuid and service['up'] == (service['id'] in down):
                service['up'] = not service['up']
                for place in self._by_host.get((cell, host), ()):
                    self._write_service(place, service)

    def down(self, cell_uuid: str) -> set[int]:
        """Ids of the services of a cell that count as down."""
        return {service['id'] for (cell, _), service in self._services.items()
                if cell == cell_uuid and not service['up']}

    def forget_cell(self, cell_uuid: str, keep: Collection[int] = (), keep_services: Collection[int] = ()) -> None:
        """Drop the nodes and services of a cell but those with these ids."""
        for cell, node_id in [key for key in self._place_of if key[0] == cell_uuid and key[1] not in keep]:
            self.drop(cell, node_id)
        for key, service in list(self._services.items()):
            if key[0] == cell_uuid and service['id'] not in keep_services:
                self.put_service(cell_uuid, {**service, 'deleted': service['id']})

    def _new_place(self) -> int:
        if not self._free:
            size = len(self._nodes)
            self._columns = {name: np.concatenate([values, np.zeros(size, values.dtype)])
                             for name, values in self._columns.items()}
            self._classes = {key: np.concatenate([values, np.zeros(size, np.int64)])
                             for key, values in self._classes.items()}
            self._nodes += [None] * size
            self._pools += [[] for _ in range(size)]
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def _write(self, place: int, cell_uuid: str, node: Row) -> None:
        column = self._columns
        stats = json.loads(node['stats'] or '{}')
        free_ram, free_disk = node['free_ram_mb'], node['free_disk_gb']
        if free_ram is None:
            free_ram = node['memory_mb'] - node['memory_mb_used']
        if free_disk is None:
            free_disk = node['local_gb'] - node['local_gb_used']
        least = node['disk_available_least']
        column['live'][place] = True
        column['mapped'][place] = bool(node['mapped'])
        column['cell'][place] = self._cell_code(cell_uuid)
        column['free_ram_mb'][place] = free_ram
        column['free_disk_mb'][place] = (free_disk if least is None else min(least, free_disk)) * 1024
        column['vcpus_total'][place], column['vcpus_used'][place] = node['vcpus'], node['vcpus_used']
        known = ratios(node)
        column['cpu_ratio'][place] = known['cpu_allocation_ratio']
        column['ram_room_mb'][place] = (
            node['memory_mb'] * known['ram_allocation_ratio'] - node['memory_mb_used'])
        column['disk_room_mb'][place] = 1024 * (
            node['local_gb'] * known['disk_allocation_ratio'] - node['local_gb_used'])
        column['num_instances'][place] = int(stats.get('num_instances') or node['running_vms'] or 0)
        column['num_io_ops'][place] = int(stats.get('io_workload') or node['current_workload'] or 0)
        column['failed_builds'][place] = int(stats.get('failed_builds') or 0)
        column['hypervisor_version'][place] = node['hypervisor_version'] or 0
        column['supported'][place] = self._kind_code(node['supported_instances'] or '[]')
        self._write_pools(place, node['pci_stats'])
        self._write_service(place, self._services.get((cell_uuid, node['host'])))
        taken = self.reservations.on(place)
        for one in taken.values():
            self._count(one, 1)
        if taken:
            self._count_devices(place)

    def _write_service(self, place: int, service: Row | None) -> None:
        self._columns['live'][place] = service is not None
        self._columns['disabled'][place] = bool(service and service['disabled'])
        self._columns['up'][place] = bool(service and service['up'])

    def _write_pools(self, place: int, text: str | None) -> None:
        self._clear_pools(place)
        for key, provider, count in _pool_counts(text):
            self._pools[place].append((key, provider, count))
            values = self._classes.get(key)
            if values is None:
                values = self._classes[key] = np.zeros(len(self._nodes), np.int64)
            values[place] += count
            self._columns['pci_free'][place] += count

    def _clear_pools(self, place: int) -> None:
        for key, _, _ in self._pools[place]:
            self._classes[key][place] = 0
        self._pools[place] = []
        self._columns['pci_free'][place] = 0

    def _cell_code(self, cell_uuid: str) -> int:
        if cell_uuid not in self._cells:
            self._cells.append(cell_uuid)
        return self._cells.index(cell_uuid)

    def _kind_code(self, text: str) -> int:
        if text not in self._kinds:
            self._kinds.append(text)
        return self._kinds.index(text)

    # -- what was just given away --------------------------------------------------------------------------------------
    def take(self, uuid: str, taken: Reservation) -> None:
        """Count what a server gets; what it was counted with before is forgotten."""
        self.give_back(uuid)
        self.reservations.put(uuid, taken)
        self._count(taken, 1)
        if taken.devices or taken.requests:
            self._count_devices(taken.place)

    def give_back(self, uuid: str) -> None:
        """A server that doesn't get it after all, or whose host counts it itself now."""
        taken = self.reservations.pop(uuid)
        if taken is not None:
            self._count(taken, -1)
            if taken.devices or taken.requests:
                self._count_devices(taken.place)

    def forget_old(self, now: float | None = None) -> None:
        """Drop servers that nobody will ever take."""
        for uuid in self.reservations.old(time.monotonic() if now is None else now):
            self.give_back(uuid)

    def unsettled(self, cell_uuid: str) -> list[str]:
        """Servers of a cell whose hosts may not count them yet."""
        return [uuid for uuid, place in self.reservations.places().items()
                if self._cells[self._columns['cell'][place]] == cell_uuid]

    def taken_at(self, place: int) -> dict[str, Reservation]:
        """{server: what it was given} on a host and isn't in its row yet."""
        return dict(self.reservations.on(place))

    def sent_to(self, uuid: str) -> list[int]:
        """Where a server was just sent, if it was."""
        taken = self.reservations.get(uuid)
        return [] if taken is None else [taken.place]

    def _count(self, taken: Reservation, sign: int) -> None:
        place, column = taken.place, self._columns
        column['free_ram_mb'][place] -= sign * taken.memory_mb
        column['free_disk_mb'][place] -= sign * taken.disk_mb
        column['ram_room_mb'][place] -= sign * taken.memory_mb
        column['disk_room_mb'][place] -= sign * taken.disk_mb
        column['vcpus_used'][place] += sign * taken.vcpus
        column['num_instances'][place] += sign
        column['num_io_ops'][place] += sign * taken.building

    def _count_devices(self, place: int) -> None:
        """Write down how many devices are left, whatever was counted before: who gives back leaves no trace."""
        pools = self._pools[place]
        for key, _, _ in pools:
            self._classes[key][place] = 0
        total = 0
        for (key, _, _), count in zip(pools, self._left(place), strict=True):
            self._classes[key][place] += count
            total += count
        self._columns['pci_free'][place] = total

    def _left(self, place: int) -> list[int]:
        """The free devices of each pool of the host's row, less what was just given away."""
        taken = self.reservations.on(place).values()
        if any(one.requests for one in taken):
            stored = self._stored_pools(place)
            # A pool that is gone has a relative that is taken. Copies share the keys.
            left = {id(pool.keys): pool.count for pool in _less_taken(stored, taken).pools}
            return [left.get(id(pool.keys), 0) for pool in stored.pools]
        gone: Counter[str | None] = Counter()
        for one in taken:
            gone.update(one.devices)
        found = []
        for _, provider, count in self._pools[place]:
            number = min(count, gone[provider]) if provider is not None else 0
            if number:
                gone[provider] -= number
            found.append(count - number)
        return found

    # -- looking -------------------------------------------------------------------------------------------------------
    def usable(self, cell_uuids: Collection[str]) -> Mask:
        """Those of ``present`` that have a host mapping: the others get no servers."""
        return self.present(cell_uuids) & self._columns['mapped']

    def present(self, cell_uuids: Collection[str]) -> Mask:
        """Hosts with a service in these cells; a mask of one's own to change."""
        codes = [code for code, cell in enumerate(self._cells) if cell in cell_uuids]
        if len(codes) == len(self._cells):
            return self._columns['live'].copy()
        return self._columns['live'] & np.isin(self._columns['cell'], codes)

    def place(self, uuid: str) -> int | None:
        """Where a node stands."""
        return self._by_uuid.get(uuid)

    def places_of(self, cell_uuid: str, host: str) -> set[int]:
        """Where the nodes of a host stand."""
        return self._by_host.get((cell_uuid, host), set())

    def places_named(self, hosts: Iterable[str]) -> set[int]:
        """Where the nodes of these hosts stand, whatever their cell."""
        return {place for cell in self._cells for host in hosts for place in self.places_of(cell, host)}

    def mask(self, places: Collection[int]) -> Mask:
        """Just these places."""
        found = np.zeros(len(self._nodes), np.bool_)
        found[list(places)] = True
        return found

    def these(self, uuids: Iterable[str]) -> Mask:
        """The places of those of these nodes that are here."""
        return self.mask([self._by_uuid[uuid] for uuid in uuids if uuid in self._by_uuid])

    def nodes(self) -> Iterator[tuple[int, Row]]:
        """All places with their rows."""
        for place, node in enumerate(self._nodes):
            if node is not None:
                yield place, node

    def host(self, place: int) -> str:
        """A place's host."""
        host: str = self.row(place)['host']
        return host

    def row(self, place: int) -> Row:
        """A place's row of ``compute_nodes``."""
        node = self._nodes[place]
        assert node is not None
        return node

    def node(self, place: int) -> tuple[str, Row]:
        """A place's cell and row, with ``service`` as HostState wants it."""
        node = self.row(place)
        cell = self._cells[self._columns['cell'][place]]
        return cell, {**node, 'service': self._services.get((cell, node['host']))}

    def devices(self, wanted: Iterable[Mapping[str, Any]]) -> NDArray[np.int64]:
        """How many free devices of these specs (any of them) each host has at most."""
        folded = [{name: _fold(value) for name, value in one.items() if name not in PLACEMENT_KEYS} for one in wanted]
        total = np.zeros(len(self._nodes), np.int64)
        for key, values in self._classes.items():
            has = dict(key)
            if any(all(name in has and has[name] == value for name, value in one.items()) for one in folded):
                total += values
        return total

    def pools(self, place: int) -> PciPools:
        """The host's free devices, less what was just given away; one's own to change."""
        return _less_taken(self._stored_pools(place), self.reservations.on(place).values())

    def _stored_pools(self, place: int) -> PciPools:
        _, node = self.node(place)
        return parsed_pools(node['pci_stats'], node['numa_topology'])

    def kinds(self, fits: Callable[[list[list[str]]], bool]) -> Mask:
        """Hosts whose ``supported_instances`` pass; asked once for each that there is."""
        good = [code for code, text in enumerate(self._kinds) if fits(json.loads(text))]
        return np.isin(self._columns['supported'], good)

    def size(self) -> int:
        """Bytes of the columns, about."""
        return sum(values.nbytes for values in (*self._columns.values(), *self._classes.values())) + sum(
            map(sys.getsizeof, self._texts))


def _less_taken(stored: PciPools, taken: Collection[Reservation]) -> PciPools:
    """A copy of the pools without what was given away."""
    pools = stored.copy()
    less(pools, taken)
    return pools


def _fold(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _pool_counts(text: str | None) -> Iterator[tuple[tuple, str | None, int]]:
    """(what requests can ask for, provider, count) of each pool of a ``pci_stats`` column, without objects."""
    stored = json.loads(text) if text else []
    if isinstance(stored, dict):
        stored = [one['nova_object.data'] for one in stored['nova_object.data']['objects']]
    for one in stored:
        flat = {**one, **(one.get('tags') or {})}
        key = tuple(sorted((name, _fold(value)) for name, value in flat.items()
                           if name not in ('tags', 'count', 'numa_node') and name not in _OWN_KEYS))
        yield key, flat.get('rp_uuid'), one['count']
