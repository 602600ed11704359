"""``Allocations``, the part of the audit that compares Placement's allocations with servers' flavors and devices.

``compare.Audit`` calls the methods in this order:

    allocations = Allocations(placement, wrong)
    trees = allocations.read(nodes)                  # for each cell, before the first one is compared
    allocations.compare(servers, moving, owned, trees, busy)
    allocations.compare_consumers(known)             # after all cells were compared
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kilonova.clients.placement import PlacementClient
from kilonova.conductor.audit import rows as audit_rows
from kilonova.db.rows import Row
from kilonova.errors import Invalid
from kilonova.objects import Flavor, InstanceNUMATopology
from kilonova.pci.device import CHILD_TYPES, MDEV
from kilonova.virt.hardware import amounts as hardware_amounts
from kilonova.virt.hardware import constraints

# Resource classes for which each flavor has a size. Other classes are requested only by extra specs.
CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')
_ADDRESS = re.compile('[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]')
_PARENT = re.compile('pci_([0-9a-f]{4})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])')


@dataclass(frozen=True)
class _Side:
    """One allocation that should exist in Placement: of a server on its host, or of a migration on its source host.

    Attributes:
        what: Text that stands for the server or the migration in lines of the report.
        consumer: Uuid of the consumer in Placement.
        host: Host on which the resources are.
        node: Node on which the resources are.
        flavor: Flavor that sets the amounts, or None.
        topology: NUMA topology, or None.
        from_volume: Whether the server boots from a volume. Its allocation then has no DISK_GB for a root disk.
        devices: Rows of the devices that the server holds on the host. None if this is unknown: the server moves within
            one host, and the database does not say which devices are those of the source.
    """

    what: str
    consumer: str
    host: str
    node: str
    flavor: Flavor | None
    topology: InstanceNUMATopology | None
    from_volume: bool
    devices: list[Row] | None


class Allocations:
    """Compares allocations in Placement with the databases, and calls ``wrong`` with a text for each difference.

    Attributes:
        consumers: All allocations that were read, as {consumer uuid: {provider uuid: {resource class: amount}}}.
        others: Devices that other services, such as Cyborg, report to Placement, as {node name: {PCI address: provider
            name}}. The PCI addresses are parts of the provider names.
    """

    def __init__(self, placement: PlacementClient, wrong: Callable[[str], None]) -> None:
        self._placement, self._wrong = placement, wrong
        self.consumers: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        self.others: dict[str, dict[str, str]] = defaultdict(dict)

    def read(self, nodes: list[Row]) -> dict[str, dict[str, str]]:
        """Return the resource providers of a cell's compute nodes, and record their allocations in ``self.consumers``.

        The result is {node name: {provider uuid: PCI address}}. The PCI address is '' for a provider that stands for no
        device of this node, such as the root provider.
        """
        trees: dict[str, dict[str, str]] = {}
        for node in nodes:
            tree = trees[node['node']] = {}
            for provider in self._placement.list_providers(in_tree=node['uuid']):
                prefix = f'{node["node"]}_'
                name = provider['name']
                tree[provider['uuid']] = _address(name[len(prefix) :].lower()) if name.startswith(prefix) else ''
                if not tree[provider['uuid']]:
                    # The provider may be one of Cyborg's. Their names contain the PCI address of the device.
                    self.others[node['node']].update(dict.fromkeys(_ADDRESS.findall(name.lower()), name))
                for consumer, held in self._placement.provider_allocations(provider['uuid']).items():
                    self.consumers[consumer][provider['uuid']] = held
        return trees

    def compare_cards(self, devices: list[Row]) -> None:
        """Report devices of Kilonova that another service, such as Cyborg, also has as resource providers in Placement.

        ``devices`` are the device rows of a cell. A virtual function (VF) is also reported if another service has its
        physical function (PF).
        """
        found = {
            (device['host'], address, name)
            for device in devices
            if device['status'] != 'removed'
            for address in (device['address'], device['parent_addr'])
            if (name := self.others[device['node']].get(address)) is not None
        }
        for host, address, name in sorted(found):
            self._wrong(
                f'Placement: {host} offers {address} through its [pci]device_spec or [devices] options, and '
                f'provider {name} of another service offers it as well'
            )

    def compare(
        self,
        servers: Mapping[str, Row],
        moving: Mapping[str, Row],
        owned: Mapping[str, list[Row]],
        trees: dict[str, dict[str, str]],
        busy: set[str],
    ) -> None:
        """Compare the allocations of the servers of a cell with the servers' flavors and devices.

        ``servers`` is {server uuid: row of the server}, ``moving`` is {server uuid: row of its migration}, and
        ``owned`` is {server uuid: rows of its devices}. ``trees`` is the result of ``read`` for this cell. Servers in
        ``busy``, on which an operation works, are left out.
        """
        for uuid, server in servers.items():
            if uuid in busy:
                continue
            held = self.consumers.get(uuid, {})
            if server['host'] is None:
                if held:
                    self._wrong(f'Placement: server {uuid} has no host and holds {_held(held)}')
                continue
            for side in _sides(server, moving.get(uuid), owned.get(uuid, [])):
                self._side(side, self.consumers.get(side.consumer, {}), trees.get(side.node, {}))

    def _side(self, side: _Side, held: dict[str, dict[str, int]], tree: dict[str, str]) -> None:
        if not held:
            self._wrong(f'Placement: {side.what} is on {side.host} and holds nothing')
            return
        elsewhere = [provider for provider in held if provider not in tree]
        if elsewhere:
            self._wrong(f'Placement: {side.what} is on {side.host} and holds {", ".join(elsewhere)} elsewhere')
        self._amounts(side, held)
        if side.devices is None or not any(tree.values()):
            return
        reported = {address for address in tree.values() if address}
        own = sorted(address for address in map(_provider_address, side.devices) if address in reported)
        allocated = sorted(
            tree[provider]
            for provider, resources in held.items()
            if tree.get(provider)
            for _ in range(sum(resources.values()))
        )
        if own != allocated:
            self._wrong(f'Placement: {side.what} holds devices {allocated}, its rows say {own}')

    def _amounts(self, side: _Side, held: dict[str, dict[str, int]]) -> None:
        if side.flavor is None:
            return
        has = {name: sum(given.get(name, 0) for given in held.values()) for name in CLASSES}
        wanted = _wanted(side)
        # A server with dedicated CPUs may hold VCPU instead of PCPU, because its host may report no PCPU.
        if has == wanted or has == _wanted(side, pinning=False):
            return
        wrong = [name for name in CLASSES if has[name] != wanted[name]]
        found, right = (', '.join(f'{name} {amount[name]}' for name in wrong) for amount in (has, wanted))
        self._wrong(f'Placement: {side.what} holds {found}, its flavor says {right}')

    def compare_consumers(self, known: set[str]) -> None:
        """Report allocations of consumers that are neither a server nor a migration.

        ``known`` are the uuids of the servers and migrations of all cells.
        """
        for consumer, held in self.consumers.items():
            if consumer not in known:
                self._wrong(f'Placement: consumer {consumer} holds {_held(held)} and is not a server or a move')


def _wanted(side: _Side, pinning: bool = True) -> dict[str, int]:
    found = amounts(side.flavor, side.topology, from_volume=side.from_volume, pinning=pinning)
    return {name: found.get(name, 0) for name in CLASSES}


def _sides(server: dict[str, Any], move: dict[str, Any] | None, owned: list[dict[str, Any]]) -> Iterator[_Side]:
    """Yield the allocations that Placement should have for a server, according to the database.

    Yields the server's allocation on its host. If ``move``, the row of the server's migration, is not None, also yields
    the migration's allocation on the source. ``owned`` are the rows of all devices that the server holds.
    """
    flavors, context = audit_rows.flavors(server['flavor']), audit_rows.context_of(server, move)
    new, old = audit_rows.devices_of(server, move, owned)
    from_volume = not server['image_ref']
    yield _Side(
        f'server {server["uuid"]}',
        server['uuid'],
        server['host'],
        server['node'],
        flavors.get('cur'),
        InstanceNUMATopology.from_json(server['numa_topology']),
        from_volume,
        new,
    )
    if move is not None:
        yield _Side(
            f'move {move["uuid"]}',
            move['uuid'],
            move['source_compute'],
            move['source_node'],
            flavors.get('old') or flavors.get('cur'),
            context.old_numa_topology if context is not None and 'old_numa_topology' in context else None,
            from_volume,
            old,
        )


def amounts(
    flavor: Flavor | None, topology: InstanceNUMATopology | None, *, from_volume: bool = False, pinning: bool = True
) -> dict[str, int]:
    """Return the amounts that the scheduler requests from Placement for a server, as {resource class: amount}.

    Only the classes in CLASSES are included. ``topology`` is the server's NUMA topology; if it is None, the topology
    that the flavor requests is used. If ``pinning`` is False, dedicated CPUs are counted as VCPU. A server that boots
    from a volume (``from_volume``) needs no disk of its own.
    """
    if topology is None:
        # A flavor of an older server may have extra specs that are refused today.
        # A flavor with refused extra specs counts as a flavor without a NUMA topology.
        with contextlib.suppress(Invalid):
            topology = constraints.of(flavor)
    dedicated = constraints.dedicated_cpus(topology) if pinning else 0
    total = hardware_amounts.of(flavor, constraints.shared_cpus(flavor, topology), dedicated, from_volume=from_volume)
    return {name: total[name] for name in CLASSES if name in total}


def _provider_address(device: dict[str, Any]) -> str:
    """Return the PCI address of the resource provider whose inventory includes a device.

    VFs are in the inventory of their PF's provider, and mediated devices in that of their parent device's provider.
    """
    parent = device['parent_addr'] if device['dev_type'] in {*CHILD_TYPES, MDEV} else None
    found: str = (parent or device['address']).lower()
    return found


def _address(name: str) -> str:
    """Return the PCI address in the name of a device's provider, or '' if the provider belongs to another service.

    ``name`` is the part of the provider's name after the node's name: a PCI address or, for mediated devices, libvirt's
    name of the parent device, such as pci_0000_84_00_0.
    """
    found = _PARENT.sub(r'\1:\2:\3.\4', name)
    return found if _ADDRESS.fullmatch(found) else ''


def _held(held: dict[str, dict[str, int]]) -> str:
    return ', '.join(f'{provider} {amounts}' for provider, amounts in held.items())
