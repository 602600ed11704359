"""All hosts as columns of numbers, so that ten thousand hosts are filtered and weighed within a millisecond.

    table = Table()
    table.put(cell_uuid, node_row); table.services.put(cell_uuid, service_row)
    alive = table.usable(cells) & ~table['disabled'] & table['up']
    table.reservations.take(uuid, Reservation(...))      # counts until the host's own row contains the server

A node keeps its index in all columns until it is deleted; ``places`` has these indexes. Claims of this scheduler count
at once: ``reservations.take`` subtracts the resources of a server, and ``give_back`` or ``reported`` adds them again.
``devices`` counts the free PCI devices by their properties. Callers must hold ``lock``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kilonova import texts
from kilonova.objects.compute_node import free_amounts, ratios
from kilonova.scheduler.hosts.columns import COLUMNS, HostColumns, HostIndex, Mask, Row, Values
from kilonova.scheduler.hosts.devices import FreeDevices
from kilonova.scheduler.hosts.reservations import Reservation, Reservations
from kilonova.scheduler.hosts.services import Services

# Equal texts of the columns _SHARED (for example CPU descriptions) are stored once in memory for all hosts.
# If more than TEXTS * (number of hosts) texts are stored, texts that no row uses are removed.
TEXTS = 12
_SHARED = ('cpu_info', 'supported_instances', 'numa_topology', 'hypervisor_type', 'stats', 'metrics')


class Table:
    """All hosts as columns of numbers. It is not thread-safe: hold ``lock`` while reading and changing it."""

    def __init__(self, size: int = 64) -> None:
        self.lock = threading.RLock()
        self._columns = HostColumns[str]({name: np.zeros(size, kind) for name, kind in COLUMNS.items()})
        self._rows: dict[int, Row] = {}
        self._texts: dict[str, str] = {}
        self._kinds: list[str] = []
        self.places = HostIndex(size)
        self.services = Services(self._columns, self.places)
        self.reservations = Reservations(self.lock, self._count)
        self.devices = FreeDevices(size, self.reservations)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    # -- changes of the rows -------------------------------------------------------------------------------------------
    def put(self, cell_uuid: str, node: Row) -> None:
        """Store the current row of a node. If the row is marked as deleted, remove the node instead."""
        if node['deleted']:
            self.drop(cell_uuid, node['id'])
            return
        size = self.places.size
        host_index = self.places.add(cell_uuid, node)
        if self.places.size > size:
            self._columns.grow(self.places.size)
            self.devices.grow(self.places.size)
        if len(self._texts) > TEXTS * (len(self.places) + 1):
            # Some texts change with each new server, so old texts accumulate. Keep only texts that a row still uses.
            kept = {row[name] for row in self._rows.values() for name in _SHARED}
            self._texts = {text: text for text in kept if isinstance(text, str)}
        for name in _SHARED:
            if isinstance(node[name], str):
                node[name] = self._texts.setdefault(node[name], node[name])
        self._rows[host_index] = node
        self._write(host_index, cell_uuid, node)

    def drop(self, cell_uuid: str, node_id: int) -> None:
        """Remove a node from the table. Nothing is done if the table does not have the node."""
        host_index = self.places.of_node(cell_uuid, node_id)
        if host_index is None:
            return
        self.places.remove(cell_uuid, self._rows.pop(host_index))
        self.devices.clear(host_index)
        self._columns.clear_host(host_index)
        self.reservations.drop(host_index)

    def forget_cell(self, cell_uuid: str, keep: Collection[int] = (), keep_services: Collection[int] = ()) -> None:
        """Remove the nodes and services of a cell, except those with the ids in ``keep`` and ``keep_services``."""
        for node_id in self.places.of_cell(cell_uuid):
            if node_id not in keep:
                self.drop(cell_uuid, node_id)
        self.services.forget_cell(cell_uuid, keep_services)

    def _write(self, host_index: int, cell_uuid: str, node: Row) -> None:
        column = self._columns
        stats = texts.mapping(node['stats'] or '{}')
        column['mapped'][host_index] = bool(node['mapped'])
        column['cell'][host_index] = self.places.cells.index(cell_uuid)
        column['free_ram_mb'][host_index], column['free_disk_mb'][host_index] = free_amounts(node)
        column['vcpus_total'][host_index], column['vcpus_used'][host_index] = node['vcpus'], node['vcpus_used']
        known = ratios(node)
        column['cpu_ratio'][host_index] = known['cpu_allocation_ratio']
        column['ram_room_mb'][host_index] = node['memory_mb'] * known['ram_allocation_ratio'] - node['memory_mb_used']
        column['disk_room_mb'][host_index] = 1024 * (
            node['local_gb'] * known['disk_allocation_ratio'] - node['local_gb_used']
        )
        column['num_instances'][host_index] = int(stats.get('num_instances') or node['running_vms'] or 0)
        column['num_io_ops'][host_index] = int(stats.get('io_workload') or node['current_workload'] or 0)
        column['failed_builds'][host_index] = int(stats.get('failed_builds') or 0)
        column['hypervisor_version'][host_index] = node['hypervisor_version'] or 0
        column['supported'][host_index] = self._kind_code(node['supported_instances'] or '[]')
        self.services.write(host_index, self.services.get(cell_uuid, node['host']))
        for one in self.reservations.on(host_index).values():
            self._add(one, 1)
        column['pci_free'][host_index] = self.devices.write(host_index, node)

    def _kind_code(self, text: str) -> int:
        if text not in self._kinds:
            self._kinds.append(text)
        return self._kinds.index(text)

    def _count(self, taken: Reservation, sign: int) -> None:
        self._add(taken, sign)
        if taken.devices or taken.requests:
            self._columns['pci_free'][taken.host_index] = self.devices.count(taken.host_index)

    def _add(self, taken: Reservation, sign: int) -> None:
        host_index, column = taken.host_index, self._columns
        column['free_ram_mb'][host_index] -= sign * taken.memory_mb
        column['free_disk_mb'][host_index] -= sign * taken.disk_mb
        column['ram_room_mb'][host_index] -= sign * taken.memory_mb
        column['disk_room_mb'][host_index] -= sign * taken.disk_mb
        column['vcpus_used'][host_index] += sign * taken.vcpus
        column['num_instances'][host_index] += sign
        column['num_io_ops'][host_index] += sign * taken.building

    # -- lookups -------------------------------------------------------------------------------------------------------
    def free(self) -> dict[str, Values]:
        """Return {resource class: free amount of each host}, counted with the overcommit ratios."""
        column = self._columns
        return {
            'VCPU': column['vcpus_total'] * column['cpu_ratio'] - column['vcpus_used'],
            'MEMORY_MB': column['ram_room_mb'],
            'DISK_GB': column['disk_room_mb'] / 1024,
        }

    def usable(self, cell_uuids: Collection[str]) -> Mask:
        """Return a boolean array that is True for the hosts in these cells that have a service and a host mapping.

        Other hosts get no servers.
        """
        found: Mask = self.present(cell_uuids) & self._columns['mapped']
        return found

    def present(self, cell_uuids: Collection[str]) -> Mask:
        """Return a boolean array that is True for the hosts in these cells that have a compute service.

        The caller may change the array.
        """
        codes = [code for code, cell in enumerate(self.places.cells) if cell in cell_uuids]
        if len(codes) == len(self.places.cells):
            return self._columns['live'].copy()
        return self._columns['live'] & np.isin(self._columns['cell'], codes)

    def standing(self) -> bytes:
        """Return a fingerprint of the hosts that may get servers now: up, enabled, and mapped to a cell.

        The fingerprint changes when a host starts or stops meeting these conditions.
        """
        columns = self._columns
        return bytes((columns['live'] & columns['mapped'] & columns['up'] & ~columns['disabled']).tobytes())

    def unsettled(self, cell_uuid: str) -> list[str]:
        """Return the uuids of the servers that have a reservation on a host of the cell.

        A server has a reservation until the scheduler has read that the host reported the server.
        """
        return [uuid for uuid, host_index in self.reservations.places().items() if self.cell(host_index) == cell_uuid]

    def cell(self, host_index: int) -> str:
        """Return the uuid of the cell of the node at ``host_index``."""
        found: str = self.places.cells[self._columns['cell'][host_index]]
        return found

    def nodes(self) -> list[tuple[int, Row]]:
        """Return (index, row) of all nodes, sorted by index."""
        return sorted(self._rows.items(), key=lambda item: item[0])

    def host(self, host_index: int) -> str:
        """Return the host name of the node at ``host_index``."""
        host: str = self._rows[host_index]['host']
        return host

    def row(self, host_index: int) -> Row:
        """Return the row of ``compute_nodes`` for the node at ``host_index``."""
        return self._rows[host_index]

    def node(self, host_index: int) -> tuple[str, Row]:
        """Return (cell uuid, row) of the node at ``host_index``, with the key ``service`` that HostState needs."""
        cell, node = self.cell(host_index), self._rows[host_index]
        return cell, {**node, 'service': self.services.get(cell, node['host'])}

    def kinds(self, fits: Callable[[list[list[str]]], bool]) -> Mask:
        """Return a boolean array that is True for the hosts whose ``supported_instances`` pass ``fits``.

        ``fits`` gets a list of [architecture, hypervisor type, vm mode], and is called once for each distinct list.
        """
        good = [
            code
            for code, text in enumerate(self._kinds)
            if fits(texts.read('supported_instances of a node', text, texts.triples, []))
        ]
        return np.isin(self._columns['supported'], good)
