"""The ledger of one compute node: which server holds what, and what the node, its rows and Placement say of it.

Everything held is an entry under (server, side): side ``RUN`` for a server at home here, the side of a migration (see
``side_of``) for one that is arriving. An entry that is there is not added again, one that is gone is not taken away
again, so a claim seen twice counts once; the totals follow from the entries.

    with tracker.writing(ctxt):                 # one writer of this node's rows at a time
        plan = tracker.plan(uuid, RUN, flavor, pci_requests)
        try:
            upcalls.claim(ctxt, {'devices': plan.changes, 'usage': tracker.usage(plan), …})
        except KilonovaError:
            tracker.abort(plan)
            raise
        tracker.commit(plan)
"""
from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.pci.tracker import RUN, PciLedger
from kilonova.pci.tracker import Plan as PciPlan
from kilonova.virt.hardware import constraints, numa

# In a node's ``stats``: the number of the usage that its row tells.
SERIAL = 'usage_serial'
LOG = logging.getLogger(__name__)

__all__ = ('RUN', 'Capacity', 'Plan', 'Tracker', 'Usage', 'side_of')

MB_PER_GB = 1024


def side_of(migration: objects.Migration) -> str:
    """The side under which an arriving server holds things: its migration's id, which the migration context has too."""
    return f'migration-{migration.id}'


@dataclass(frozen=True)
class Usage:
    """What one server takes: shared vCPUs, MiB, GiB, dedicated CPUs; its place on the NUMA cells, which no sum has."""

    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0
    pcpus: int = 0
    topology: objects.InstanceNUMATopology | None = field(default=None, compare=False)

    @classmethod
    def of(cls, flavor: objects.Flavor, topology: objects.InstanceNUMATopology | None = None) -> Usage:
        """What a server of this flavor takes; swap counts as disk, in whole GiB."""
        swap = -(-(flavor.swap or 0) // MB_PER_GB) if 'swap' in flavor else 0
        return cls(constraints.shared_cpus(flavor, topology), flavor.memory_mb,
                   flavor.root_gb + flavor.ephemeral_gb + swap, constraints.dedicated_cpus(topology), topology)

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.vcpus + other.vcpus, self.memory_mb + other.memory_mb, self.local_gb + other.local_gb,
                     self.pcpus + other.pcpus)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.vcpus - other.vcpus, self.memory_mb - other.memory_mb, self.local_gb - other.local_gb,
                     self.pcpus - other.pcpus)


@dataclass(frozen=True)
class Capacity:
    """What may be given away in all: totals times allocation ratios. None: not limited here."""

    vcpus: float | None = None
    memory_mb: float | None = None
    local_gb: float | None = None
    pcpus: float | None = None

    @classmethod
    def of(cls, inventory: Mapping[str, Mapping[str, Any]]) -> Capacity:
        """From the node's Placement inventory. Reserved amounts are left to Placement: this is the second look."""
        def limit(name: str) -> float | None:
            given = inventory.get(name)
            return given['total'] * given['allocation_ratio'] if given else None
        return cls(limit('VCPU'), limit('MEMORY_MB'), limit('DISK_GB'), limit('PCPU'))

    def lacking(self, used: Usage) -> str | None:
        """What ``used`` goes beyond, as text for users and log, or None."""
        pairs = (('memory', 'MB', used.memory_mb, self.memory_mb), ('disk', 'GB', used.local_gb, self.local_gb),
                 ('vcpus', '', used.vcpus, self.vcpus), ('pcpus', '', used.pcpus, self.pcpus))
        for name, unit, wanted, limit in pairs:
            if limit is not None and wanted > limit:
                return f'{name} {wanted:.2f}{unit and " " + unit} used of {limit:.2f}{unit and " " + unit}'
        return None


@dataclass
class Plan:
    """A change of the ledger that isn't written yet. ``devices``: the server's as they will be; ``changes``: rows;
    ``topology``: the place of a claim on the host's NUMA cells, if it asks for one; ``begun``: work that begins with
    it."""

    pci: PciPlan
    added: dict[tuple[str, str], Usage] = field(default_factory=dict)
    dropped: dict[tuple[str, str], Usage] = field(default_factory=dict)
    topology: objects.InstanceNUMATopology | None = None
    begun: frozenset[tuple[str, str]] = frozenset()

    @property
    def devices(self) -> list[objects.PciDevice]:
        return self.pci.devices

    @property
    def changes(self) -> list[dict[str, Any]]:
        return self.pci.changes

    @property
    def freed(self) -> list[str]:
        """Addresses of the devices that a server gives back."""
        return self.pci.freed


class Tracker:
    """The ledger in memory. ``node.Node`` fills it at start and keeps it in step with host and database.

    ``cells`` is the host's NUMA topology without what servers use of it, ``published`` the usage that was last
    written, ``serial`` the number of the last one that was sent. ``reload(ctxt)`` reads the device rows again,
    ``leaving(addresses)`` hears of devices before they are free;
    the node sets both. Work is under way from a claim until ``plan_allocate`` or until the claim is given back, and
    as long as ``at_work`` is held.
    """

    def __init__(self) -> None:
        self.node: objects.ComputeNode
        self.ledger: PciLedger
        self.capacity = Capacity()
        self.cells: objects.NUMATopology | None = None
        # The last text of the cells, and of what it was made.
        self._numa: tuple[objects.NUMATopology | None, list[objects.InstanceNUMATopology], str] = None, [], ''
        self.numa_limits = numa.Limits()
        self.failed_builds = 0
        self.published: dict[str, Any] | None = None
        self.serial = 0
        self.reload: Callable[[Any], None] | None = None
        self.leaving: Callable[[Collection[str]], None] | None = None
        self._distrusted = False
        self._entries: dict[tuple[str, str], Usage] = {}
        self._sides: dict[str, set[str]] = {}
        self._used = Usage()
        self._at_work: set[tuple[str, str]] = set()
        self._lock = threading.RLock()
        self._writer = threading.Lock()

    @contextlib.contextmanager
    def writing(self, ctxt: Any) -> Iterator[None]:
        """One at a time writes what this node's rows say, or the last word wouldn't be the newest.

        After ``distrust`` the next writer reads the device rows first.
        """
        with self._writer:
            if self._distrusted and self.reload is not None:
                self.reload(ctxt)
                self._distrusted = False
            yield

    def distrust(self) -> None:
        """Somebody else wrote rows of this node's devices."""
        self._distrusted = True

    @property
    def nodename(self) -> str:
        return self.node.hypervisor_hostname

    # -- plans ---------------------------------------------------------------------------------------------------------
    def plan(self, instance_uuid: str, side: str, flavor: objects.Flavor,
             requests: objects.InstancePCIRequests | None,
             wanted: objects.InstanceNUMATopology | None = None,
             limits: objects.SchedulerLimits | None = None) -> Plan:
        """Reserve what a server needs here, or raise HostRejected and reserve nothing.

        PCI devices: exactly those of the providers that Placement allocated, where the requests name them. ``wanted``:
        the NUMA cells, CPUs and pages that it asks for; the devices are then near enough to them. ``limits``: how far
        a filter lets this claim go.
        """
        key = instance_uuid, side
        with self._lock:
            placed = self._entries[key].topology if key in self._entries else self._place(wanted, requests, limits)
            usage = Usage.of(flavor, placed)
            added = {} if key in self._entries else {key: usage}
            lacking = self._lacking(usage, limits) if added else None
            if lacking:
                raise errors.HostRejected(reason=lacking)
            try:
                cells = [cell.id for cell in placed.cells] if placed is not None else None
                pci = self.ledger.plan_claim(instance_uuid, requests, cells, side=side)
            except errors.KilonovaError as error:
                LOG.info('Claim of PCI devices failed: %s', error, instance_uuid=instance_uuid)
                raise errors.HostRejected(reason='Claim pci failed') from error
            self._add(added)
            begun = frozenset({key} - self._at_work)
            self._at_work |= begun
            return Plan(pci, added=added, topology=placed, begun=begun)

    def _place(self, wanted: objects.InstanceNUMATopology | None,
               requests: objects.InstancePCIRequests | None,
               limits: objects.SchedulerLimits | None) -> objects.InstanceNUMATopology | None:
        if wanted is None:
            return None
        host = self.numa_topology()
        placed = None
        if host is not None:
            placed = numa.fit(host, wanted, self._numa_limits(limits), numa.Devices(self.ledger.pools.copy(), requests))
        if placed is None:
            raise errors.HostRejected(reason='Requested instance NUMA topology cannot fit the given host NUMA topology')
        return placed

    def _lacking(self, usage: Usage, limits: objects.SchedulerLimits | None) -> str | None:
        lacking = self.capacity.lacking(self._used + usage)
        if lacking is None and limits is not None:
            lacking = Capacity(limits.vcpu, limits.memory_mb, limits.disk_gb).lacking(self._used + usage)
        return lacking

    def _numa_limits(self, limits: objects.SchedulerLimits | None) -> numa.Limits:
        cells = limits.numa_topology if limits is not None else None
        if cells is None:
            return self.numa_limits
        return dataclasses.replace(self.numa_limits, cpu_ratio=cells.cpu_allocation_ratio,
                                   ram_ratio=cells.ram_allocation_ratio)

    def plan_allocate(self, instance_uuid: str, side: str | None = None) -> Plan:
        """Claimed devices become allocated: what the claim was made for is done."""
        with self._lock:
            self._at_work -= {key for key in self._at_work if key[0] == instance_uuid and side in (None, key[1])}
        return Plan(self.ledger.plan_allocate(instance_uuid, side))

    @contextlib.contextmanager
    def at_work(self, instance_uuid: str, what: str) -> Iterator[None]:
        """Work on a server that needs no claim: a copy of its disk that leaves this host."""
        key = instance_uuid, what
        with self._lock:
            self._at_work.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._at_work.discard(key)

    def plan_free(self, instance_uuid: str, leaving: Callable[[str], bool] = lambda side: True, *,
                  unsided: bool = True) -> Plan:
        """Give back what a server holds here under the sides for which ``leaving`` is true; all by default.

        ``unsided``: devices that nobody knows the side of (their claim was made before a restart) leave, too.
        """
        with self._lock:
            sides = self._sides.get(instance_uuid, set())
            gone = {side for side in sides if leaving(side)}
            dropped = {(instance_uuid, side): self._entries[instance_uuid, side] for side in gone}
            if unsided:
                addresses = self._addresses(instance_uuid) - self._addresses(instance_uuid, sides - gone)
            else:
                addresses = self._addresses(instance_uuid, gone)
            pci = self.ledger.plan_free(instance_uuid, addresses=addresses)
            self._drop(dropped)
            return Plan(pci, dropped=dropped)

    def _addresses(self, instance_uuid: str, sides: Collection[str | None] = (None,)) -> set[str]:
        return {device.address for side in sides for device in self.ledger.devices_of(instance_uuid, side)}

    def commit(self, plan: Plan) -> None:
        """The plan is written."""
        self.ledger.commit(plan.pci)

    def abort(self, plan: Plan) -> None:
        """The plan is not written and won't be."""
        with self._lock:
            self._at_work -= plan.begun
            self._drop({key: usage for key, usage in plan.added.items() if key in self._entries})
            self._add({key: usage for key, usage in plan.dropped.items() if key not in self._entries})
            self.ledger.abort(plan.pci)

    def _add(self, entries: Mapping[tuple[str, str], Usage]) -> None:
        for key, usage in entries.items():
            self._entries[key] = usage
            self._sides.setdefault(key[0], set()).add(key[1])
            self._used += usage

    def _drop(self, entries: Mapping[tuple[str, str], Usage]) -> None:
        for (uuid, side), usage in entries.items():
            del self._entries[uuid, side]
            self._sides[uuid].discard(side)
            if not self._sides[uuid]:
                del self._sides[uuid]
            self._used -= usage
            self._at_work.discard((uuid, side))

    # -- looking -------------------------------------------------------------------------------------------------------
    def devices(self, instance_uuid: str, side: str | None = None) -> list[objects.PciDevice]:
        """What a server holds here (under ``side``), by address."""
        return self.ledger.devices_of(instance_uuid, side)

    def devices_without(self, instance_uuid: str, side: str) -> list[objects.PciDevice]:
        """What a server holds here except under ``side``, by address."""
        other = self._addresses(instance_uuid, [side])
        return [device for device in self.ledger.devices_of(instance_uuid) if device.address not in other]

    def topology(self, instance_uuid: str, side: str) -> objects.InstanceNUMATopology | None:
        """The place of a server on the host's NUMA cells under ``side``."""
        with self._lock:
            held = self._entries.get((instance_uuid, side))
            return held.topology if held is not None else None

    def numa_topology(self) -> objects.NUMATopology | None:
        """The host's NUMA cells with what all servers here use of them; None: it has none."""
        with self._lock:
            if self.cells is None:
                return None
            return numa.used(self.cells, [
                held.topology for held in self._entries.values() if held.topology is not None])

    def _numa_json(self) -> str | None:
        """``numa_topology`` as text; most servers have no place on the cells, and leave it as it was."""
        with self._lock:
            if self.cells is None:
                return None
            placed = [held.topology for held in self._entries.values() if held.topology is not None]
            cells, before, text = self._numa
            if cells is not self.cells or list(map(id, before)) != list(map(id, placed)):
                text = numa.used(self.cells, placed).to_json()
                self._numa = self.cells, placed, text
            return text

    def sides(self, instance_uuid: str) -> set[str]:
        """Under which sides a server holds something here."""
        with self._lock:
            return set(self._sides.get(instance_uuid, ()))

    @property
    def used(self) -> Usage:
        """The totals of all entries."""
        return self._used

    @property
    def instances(self) -> int:
        """How many servers hold something here."""
        return len(self._sides)

    @property
    def under_way(self) -> int:
        """How many servers are being built, moved or copied here."""
        with self._lock:
            return len({uuid for uuid, _ in self._at_work})

    def usage(self, plan: Plan | None = None) -> dict[str, Any]:
        """Columns of the node's row as they will be once ``plan`` is written: absolute values."""
        node = self.node
        pools = self.ledger.pool_list(plan.pci if plan else None)
        return {'compute_node_id': node.id, 'vcpus_used': self._used.vcpus,
                'memory_mb_used': self._used.memory_mb, 'local_gb_used': self._used.local_gb,
                'free_ram_mb': node.memory_mb - self._used.memory_mb,
                'free_disk_gb': node.local_gb - self._used.local_gb,
                'running_vms': self.instances, 'current_workload': self.under_way, 'pci_stats': pools.to_json(),
                'stats': json.dumps(self.stats()),
                'numa_topology': self._numa_json()}

    def stats(self) -> dict[str, str]:
        """What weighers may look at besides the columns."""
        return {'failed_builds': str(self.failed_builds), 'io_workload': str(self.under_way)}

    def numbered(self, usage: dict[str, Any]) -> dict[str, Any]:
        """A usage as it is sent: with its number, which ``stats`` repeats for the next process of this host. A message
        that comes late, and is older than what the row has, changes nothing. Hold ``writing``."""
        self.serial += 1
        stats = {**json.loads(usage['stats']), SERIAL: str(self.serial)}
        return {**usage, 'stats': json.dumps(stats), 'usage_serial': self.serial}

    # -- filling -------------------------------------------------------------------------------------------------------
    def adopt(self, instance_uuid: str, side: str, flavor: objects.Flavor | None,
              addresses: Collection[str] | None = None,
              topology: objects.InstanceNUMATopology | None = None) -> None:
        """A server that is known to hold this much here (after a restart); an entry that is there stays.

        ``flavor`` None: nobody has told yet how much. ``addresses``: the devices that it holds under ``side``; None:
        all that it holds here. ``topology``: its place on the host's NUMA cells.
        """
        key = instance_uuid, side
        usage = Usage.of(flavor, topology) if flavor is not None else Usage(topology=topology)
        with self._lock:
            before = self._entries.get(key)
            if before == Usage():
                self._drop({key: before})
                if usage.topology is None:
                    usage = Usage.of(flavor, before.topology) if flavor is not None else before
            if key not in self._entries:
                self._add({key: usage})
            held = [device.address for device in self.ledger.devices_of(instance_uuid)]
            mine = held if addresses is None else [address for address in held if address in addresses]
            self.ledger.set_sides(instance_uuid, dict.fromkeys(mine, side))

    def forget(self, instance_uuid: str) -> None:
        """Drop what is counted for a server, to count it anew; its devices are the ledger's."""
        with self._lock:
            self._drop({(instance_uuid, side): self._entries[instance_uuid, side]
                        for side in set(self._sides.get(instance_uuid, ()))})

    def replace_ledger(self, ledger: PciLedger) -> None:
        """Take a ledger made from fresh rows; under which side a device is held, the old one knows."""
        with self._lock:
            for uuid, side in self._entries:
                ledger.set_sides(uuid, dict.fromkeys(self._addresses(uuid, [side]), side))
            self.ledger = ledger
