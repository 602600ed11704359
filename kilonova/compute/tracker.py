"""The resource tracker of one compute node. It records which CPUs, memory, disk and devices each server holds.

A server can have several claims on a host, for example if it is moved within the host. The tracker has an entry for
each claim. The claim's name (argument ``side``, the claim key) is ``RUN`` for a server of this host, and
``claim_key(migration)`` for a server that is moving to this host. An entry has CPUs, memory and disk, a placement on
the NUMA cells, and devices. If a claim is repeated, it does not count twice, because its entry exists already. The
node's totals are the sums of all entries.

    with tracker.writing(ctxt):                 # one writer of this node's rows at a time
        plan = tracker.plan(uuid, RUN, flavor, pci_requests)
        try:
            upcalls.claim(ctxt, {'devices': plan.changes, 'usage': tracker.usage(plan), …})
        except KilonovaError:
            tracker.abort(plan)
            raise
        tracker.commit(plan)

A plan describes a change and changes nothing in the tracker until it is committed. Only one thread plans at a time, so
a plan need not consider other plans.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.compute.amounts import HostCapacity, HostNumaCells, Usage
from kilonova.context import RequestContext
from kilonova.pci.device import ALLOCATED, CLAIMED, unit
from kilonova.pci.devices import Change, DeviceOwner, NodeDevices
from kilonova.pci.pools import PciDeviceRequestFailed
from kilonova.pci.ports import words
from kilonova.virt.hardware import numa

# Key in ``stats`` of the node's row: the number of the stored usage. A usage with a lower number is not stored.
SERIAL = 'usage_serial'
# Name of the claim of a server that runs on this host. A server that moves to this host has a ``claim_key``.
RUN = 'run'
LOG = logging.getLogger(__name__)

__all__ = ('RUN', 'SERIAL', 'ClaimPlan', 'HostCapacity', 'HostNumaCells', 'NodeUsage', 'Tracker', 'Usage', 'claim_key')


class ClaimExists(errors.Conflict):
    """The PCI devices that the server already holds on this host do not match its PCI requests."""

    msg_fmt = 'Instance %(instance_uuid)s holds PCI devices on this host that do not match its requests: %(addresses)s'


def claim_key(migration: objects.Migration) -> str:
    """Return the name under which the tracker stores the claim of a server that moves to this host.

    The name contains the id of the server's migration. The server's migration context has the same id.
    """
    return f'migration-{migration.id}'


@dataclass(frozen=True)
class Entry:
    """The resources of one claim of a server on this host. ``devices`` are PCI addresses."""

    usage: Usage
    devices: frozenset[str] = frozenset()


class NodeUsage(TypedDict):
    """The usage columns of the node's row, as total values and not as changes."""

    compute_node_id: int
    vcpus_used: int
    memory_mb_used: int
    local_gb_used: int
    free_ram_mb: int
    free_disk_gb: int
    running_vms: int
    current_workload: int
    pci_stats: str
    stats: str
    numa_topology: str | None
    usage_serial: NotRequired[int]


Sides = Mapping[str, Entry]
Work = frozenset[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class ClaimPlan:
    """A planned change of the resources that one server holds on this host.

    Attributes:
        before: The server's claims before the change, as {name of a claim: its entry}.
        sides: The server's claims after the change, in the same form.
        after: All devices of the host after the change.
        changes: Changes of the devices' database rows.
        devices: Devices that the plan claims, allocates or frees, in their new state.
        freed: Addresses of the devices that the plan frees.
        topology: The server's NUMA placement, or None.
        begun: Tasks that begin when the plan is committed. They increase the host's count of running tasks.
        over: Tasks that end when the plan is committed. They decrease the host's count of running tasks.
    """

    instance_uuid: str
    before: Sides
    sides: Sides
    after: NodeDevices
    changes: list[Change]
    devices: list[objects.PciDevice]
    freed: list[str]
    topology: objects.InstanceNUMATopology | None
    begun: Work
    over: Work

    @property
    def dropped(self) -> set[str]:
        """The names of the server's claims that the plan removes."""
        return self.before.keys() - self.sides.keys()


class Tracker:
    """The resource tracker in memory. ``node.Node`` fills it at start and keeps it equal to host and database.

    ``host_devices`` are the host's devices; code that sets them must hold ``writing``. ``published`` is the usage that
    was last written to the node's row, and ``serial`` the number of the last usage that was sent. Two callbacks are set
    by other objects. ``Node`` sets ``reload(ctxt)``, which reads the device rows again. ``DeviceInventory`` sets
    ``leaving(addresses)``, which is called before devices are freed and may mark them as unavailable.
    """

    def __init__(self) -> None:
        self.node: objects.ComputeNode
        self.host_devices: NodeDevices
        self.capacity = HostCapacity()
        self.cells = HostNumaCells()
        self.failed_builds = 0
        self.published: NodeUsage | None = None
        self.serial = 0
        self.reload: Callable[[RequestContext], None] | None = None
        self.leaving: Callable[[Collection[str]], None] | None = None
        # {server uuid: {name of a claim: its entry}}. Servers without a claim are left out.
        self._entries: dict[str, Sides] = {}
        # Running tasks of this host: (server uuid, name of its claim) for builds and moves, else (server uuid, kind).
        self._at_work: Work = frozenset()
        # The ClaimPlan that is neither committed nor aborted yet, or None.
        self._open: ClaimPlan | None = None
        # True if ``host_devices`` may be out of date: the next ``writing`` then reads the device rows again.
        self._distrusted = False
        # ``_lock`` protects the tracker's state in memory. ``_writer`` is held while a thread writes rows of this node.
        self._lock = threading.RLock()
        self._writer = threading.Lock()

    @contextlib.contextmanager
    def writing(self, ctxt: RequestContext) -> Iterator[None]:
        """Hold the lock for writing this node's rows while the block runs, so that the newest usage is written last.

        The device rows are read first if the tracker's devices may be out of date. This is the case after ``distrust``,
        and if the last block neither committed nor aborted its ClaimPlan.
        """
        with self._writer:
            if self._distrusted and self.reload is not None:
                self.reload(ctxt)
                self._distrusted = False
            try:
                yield
            finally:
                if self._open is not None:
                    self._open, self._distrusted = None, True

    def distrust(self) -> None:
        """Mark the tracker's copy of the device rows as outdated. The next call of ``writing`` reads the rows again."""
        self._distrusted = True

    @property
    def nodename(self) -> str:
        """The node's hypervisor hostname."""
        found: str = self.node.hypervisor_hostname
        return found

    # -- plans of claims and releases ----------------------------------------------------------------------------------
    def plan(
        self,
        instance_uuid: str,
        side: str,
        flavor: objects.Flavor,
        requests: objects.InstancePCIRequests | None,
        wanted: objects.InstanceNUMATopology | None = None,
        limits: objects.SchedulerLimits | None = None,
        from_volume: bool = False,
    ) -> ClaimPlan:
        """Plan a claim of the CPUs, memory, disk and devices that a server needs on this host.

        ``side`` is the name of the claim. If a PCI request names the providers that Placement allocated, exactly the
        devices of these providers are taken. ``wanted`` are the requested NUMA cells, CPUs and pages. If it is given,
        devices are chosen near the server's cells, as the NUMA policy of each PCI request demands. ``limits`` are the
        limits that scheduler filters set for this claim. ``from_volume`` is True if the root disk is not on this host.
        If the claim exists already, its CPUs, memory, disk and NUMA placement stay as they are. Raises HostRejected if
        the server does not fit.
        """
        with self._lock:
            before = self._entries.get(instance_uuid, {})
            asked = self.host_devices.asked(requests)
            if side in before:
                usage = before[side].usage
            else:
                usage = self._fit(flavor, asked, wanted, limits, from_volume)
            cells = [cell.id for cell in usage.topology.cells] if usage.topology is not None else []
            try:
                taken = self._take(instance_uuid, side, asked, cells)
            except errors.KilonovaError as error:
                LOG.info('Claim of PCI devices failed: %s', error, instance_uuid=instance_uuid)
                raise errors.HostRejected(reason='Claim pci failed') from error
            sides = {**before, side: Entry(usage, frozenset(taken))}
            return self._plan(
                instance_uuid,
                sides,
                {address: owner for address, owner in taken.items() if owner},
                list(taken),
                topology=usage.topology,
                begun=frozenset({(instance_uuid, side)}),
            )

    def plan_more(self, instance_uuid: str, request: objects.InstancePCIRequest) -> ClaimPlan:
        """Plan to claim a device for one more PCI request of a server of this host.

        If the server already has a device for the request, it keeps that device. Raises HostRejected if no device that
        fits the request is free near enough to the server's NUMA cells.
        """
        with self._lock:
            before = self._entries.get(instance_uuid, {})
            side, entry = next(iter(before.items()), (RUN, Entry(Usage())))
            taken: dict[str, DeviceOwner | None] = {
                device.address: None
                for device in self.devices(instance_uuid)
                if device.request_id == request.request_id
            }
            if not taken:
                cells = [cell.id for cell in entry.usage.topology.cells] if entry.usage.topology is not None else []
                try:
                    chosen = self.host_devices.pools.copy().consume_requests([request], numa_cells=cells)
                except PciDeviceRequestFailed as error:
                    raise errors.HostRejected(
                        f'{self.nodename} has fewer than {request.count} free {words(request)}'
                    ) from error
                taken = {
                    device.address: DeviceOwner(CLAIMED, instance_uuid, request_id) for device, request_id in chosen
                }
            sides = {**before, side: replace(entry, devices=entry.devices | frozenset(taken))}
            return self._plan(
                instance_uuid, sides, {address: owner for address, owner in taken.items() if owner}, list(taken)
            )

    def _fit(
        self,
        flavor: objects.Flavor,
        requests: list[objects.InstancePCIRequest],
        wanted: objects.InstanceNUMATopology | None,
        limits: objects.SchedulerLimits | None,
        from_volume: bool,
    ) -> Usage:
        """Return the CPUs, memory, disk and NUMA placement that a server needs on this host.

        Raises HostRejected if there is not enough room.
        """
        placed = None
        if wanted is not None:
            placed = self.cells.place(
                wanted, _places(self._entries), limits, numa.DeviceAffinity(self.host_devices.pools, requests)
            )
        usage = Usage.of(flavor, placed, from_volume)
        lacking = self.capacity.lacking(self.used + usage)
        if lacking is None and limits is not None:
            lacking = HostCapacity(limits.vcpu, limits.memory_mb, limits.disk_gb).lacking(self.used + usage)
        if lacking is not None:
            raise errors.HostRejected(reason=lacking)
        return usage

    def _take(
        self, instance_uuid: str, side: str, wanted: list[objects.InstancePCIRequest], cells: list[int]
    ) -> dict[str, DeviceOwner | None]:
        """Choose devices for all PCI requests, and return {address of a chosen device: its new owner}.

        If the server already holds devices for the claim, they are chosen. Their value is None, because their owner
        stays the same. After a restart of the service, these may be devices whose claim is unknown.

        ``side`` is the name of the claim, and ``cells`` are the NUMA cells of the host that the server uses.

        Raises:
            PciDeviceRequestFailed: Too few devices are free.
            ClaimExists: The server holds devices of other requests.
        """
        sided = {address for entry in self._entries.get(instance_uuid, {}).values() for address in entry.devices}
        ids = {request.request_id for request in wanted}
        held = self.devices(instance_uuid, side) or [
            one for one in self.devices(instance_uuid) if one.address not in sided and one.request_id in ids
        ]
        if held:
            addresses = [device.address for device in held]
            units = {(device.request_id, unit(device)) for device in held}
            if Counter(request_id for request_id, _ in units) != Counter(
                {request.request_id: request.count for request in wanted}
            ):
                raise ClaimExists(instance_uuid=instance_uuid, addresses=', '.join(addresses))
            return dict.fromkeys(addresses)
        chosen = self.host_devices.pools.copy().consume_requests(wanted, numa_cells=cells)
        if cells and any(device.numa_node is None for device, _ in chosen):
            LOG.warning(
                'Assigning a pci device without numa affinity to instance %s which has numa topology',
                instance_uuid,
                instance_uuid=instance_uuid,
            )
        return {
            address: DeviceOwner(CLAIMED, instance_uuid, request_id)
            for device, request_id in chosen
            for address in self.host_devices.members(device)
        }

    def plan_allocate(self, instance_uuid: str, side: str | None = None) -> ClaimPlan:
        """Plan to change the status of the server's devices from claimed to allocated, at the end of a build or move.

        ``side`` is the name of the claim whose devices are changed. If it is None, the devices of all claims are
        changed.
        """
        with self._lock:
            owners = {
                device.address: DeviceOwner(ALLOCATED, instance_uuid, device.request_id)
                for device in self.devices(instance_uuid, side)
                if device.status == CLAIMED
            }
            return self._plan(
                instance_uuid,
                self._entries.get(instance_uuid, {}),
                owners,
                list(owners),
                over=frozenset(key for key in self._at_work if key[0] == instance_uuid and side in (None, key[1])),
            )

    def plan_free(
        self, instance_uuid: str, leaving: Callable[[str], bool] = lambda side: True, *, unsided: bool = True
    ) -> ClaimPlan:
        """Plan to release claims of a server on this host.

        ``leaving(name)`` returns whether the claim with this name is released; by default all claims are released. If
        ``unsided`` is True, also release the server's devices that belong to no claim in the tracker. After a restart
        of the service, the tracker may not know to which claim a device belongs.
        """
        with self._lock:
            before = self._entries.get(instance_uuid, {})
            stay = {side: entry for side, entry in before.items() if not leaving(side)}
            gone = [entry.devices for side, entry in before.items() if side not in stay]
            kept = frozenset[str]().union(*(entry.devices for entry in stay.values()))
            freed = [
                device.address
                for device in self.devices(instance_uuid)
                if device.address not in kept and (unsided or any(device.address in devices for devices in gone))
            ]
            over = frozenset((instance_uuid, side) for side in before if side not in stay)
        # The caller holds ``writing``, so the devices of this server stay the same while ``leaving`` runs.
        if freed and self.leaving is not None:
            self.leaving(freed)
        with self._lock:
            return self._plan(instance_uuid, stay, dict.fromkeys(freed), freed, over=over)

    def plan_less(self, instance_uuid: str, request_id: str) -> ClaimPlan:
        """Plan to release the devices that the server holds on this host for one PCI request."""
        freed = [device.address for device in self.devices(instance_uuid) if device.request_id == request_id]
        if freed and self.leaving is not None:
            self.leaving(freed)
        with self._lock:
            sides = {
                side: replace(entry, devices=entry.devices.difference(freed))
                for side, entry in self._entries.get(instance_uuid, {}).items()
            }
            return self._plan(instance_uuid, sides, dict.fromkeys(freed), freed)

    def _plan(
        self,
        instance_uuid: str,
        sides: Sides,
        owners: Mapping[str, DeviceOwner | None],
        addresses: list[str],
        *,
        topology: objects.InstanceNUMATopology | None = None,
        begun: Work = frozenset(),
        over: Work = frozenset(),
    ) -> ClaimPlan:
        after, changes = self.host_devices.given(owners, instance_uuid)
        self._open = ClaimPlan(
            instance_uuid,
            self._entries.get(instance_uuid, {}),
            sides,
            after,
            changes,
            [after.entries[address].device.obj_clone() for address in addresses],
            [address for address, owner in owners.items() if owner is None],
            topology,
            begun,
            over,
        )
        return self._open

    def commit(self, plan: ClaimPlan) -> None:
        """Apply a plan that has been written to the database. Raises RuntimeError if it is not the latest plan."""
        with self._lock:
            if plan is not self._open:
                raise RuntimeError('this plan was committed or aborted already, or a newer plan exists')
            self._open = None
            _put(self._entries, plan.instance_uuid, plan.sides)
            self._at_work = (self._at_work | plan.begun) - plan.over
            self.host_devices = plan.after

    def abort(self, plan: ClaimPlan) -> None:
        """Discard a plan that was not written to the database."""
        if plan is self._open:
            self._open = None

    @contextlib.contextmanager
    def at_work(self, instance_uuid: str, what: str) -> Iterator[None]:
        """Count a running task of a server while the block runs. Used for tasks that need no claim.

        An example is copying a disk to another host. ``what`` is the kind of task.
        """
        key = instance_uuid, what
        with self._lock:
            self._at_work |= {key}
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= {key}

    # -- reading what servers hold -------------------------------------------------------------------------------------
    def devices(self, instance_uuid: str, side: str | None = None) -> list[objects.PciDevice]:
        """Return the devices that a server holds on this host, sorted by address.

        ``side`` is the name of the claim whose devices are returned. If it is None, the devices of all claims are
        returned.
        """
        with self._lock:
            held = self.host_devices.held(instance_uuid)
            if side is None:
                return held
            entry = self._entries.get(instance_uuid, {}).get(side)
            return [device for device in held if entry is not None and device.address in entry.devices]

    def devices_without(self, instance_uuid: str, side: str) -> list[objects.PciDevice]:
        """Return the devices that a server holds on this host outside the claim named ``side``, sorted by address."""
        other = {device.address for device in self.devices(instance_uuid, side)}
        return [device for device in self.devices(instance_uuid) if device.address not in other]

    def topology(self, instance_uuid: str, side: str) -> objects.InstanceNUMATopology | None:
        """Return the NUMA placement of the server's claim with the name ``side``, or None if the claim has none."""
        with self._lock:
            entry = self._entries.get(instance_uuid, {}).get(side)
            return entry.usage.topology if entry is not None else None

    def sides(self, instance_uuid: str) -> set[str]:
        """Return the names of the server's claims on this host.

        The set is empty if the server holds nothing here.
        """
        with self._lock:
            return set(self._entries.get(instance_uuid, ()))

    @property
    def used(self) -> Usage:
        """The total usage of all claims on this host."""
        with self._lock:
            return _total(self._entries)

    def usage(self, plan: ClaimPlan | None = None) -> NodeUsage:
        """Return the usage columns of the node's row, as total values. A ``plan`` is counted as if it were committed.

        The column ``stats`` has further values that scheduler weighers use.
        """
        with self._lock:
            entries, work, devices = self._entries, self._at_work, self.host_devices
            if plan is not None:
                entries = {**entries, plan.instance_uuid: plan.sides}
                work, devices = (work | plan.begun) - plan.over, plan.after
            node, used, under_way = self.node, _total(entries), len({uuid for uuid, _ in work})
            return {
                'compute_node_id': node.id,
                'vcpus_used': used.vcpus,
                'memory_mb_used': used.memory_mb,
                'local_gb_used': used.local_gb,
                'free_ram_mb': node.memory_mb - used.memory_mb,
                'free_disk_gb': node.local_gb - used.local_gb,
                'running_vms': sum(map(bool, entries.values())),
                'current_workload': under_way,
                'pci_stats': devices.pools_text,
                'stats': json.dumps({'failed_builds': str(self.failed_builds), 'io_workload': str(under_way)}),
                'numa_topology': self.cells.text(_places(entries)),
            }

    def numbered(self, usage: NodeUsage) -> NodeUsage:
        """Return a usage with the next serial number, ready to send. The caller must hold ``writing``.

        The conductor ignores a usage whose number is lower than the number in the node's row, because it was sent
        earlier. The column ``stats`` has the number too, so that the next process of this host continues to count from
        it.
        """
        self.serial += 1
        stats = {**json.loads(usage['stats']), SERIAL: str(self.serial)}
        return {**usage, 'stats': json.dumps(stats), 'usage_serial': self.serial}

    # -- filling the tracker when the service starts -------------------------------------------------------------------
    def adopt(
        self,
        instance_uuid: str,
        side: str,
        flavor: objects.Flavor | None,
        addresses: Collection[str] | None = None,
        topology: objects.InstanceNUMATopology | None = None,
        from_volume: bool = False,
    ) -> None:
        """Record resources that a server already holds on this host as a claim, for example when the service starts.

        ``side`` is the name of the claim: ``RUN`` or the claim key of a migration. ``flavor`` gives CPUs, memory and
        disk. It is None if they are not known yet. If the claim exists and has such amounts, they are kept.
        ``addresses`` are the devices of the claim; None means all devices that the server holds on this host.
        ``topology`` is the server's placement on the NUMA cells. ``from_volume`` is True if its root disk is a volume.
        """
        with self._lock:
            before = self._entries.get(instance_uuid, {})
            entry = before.get(side, Entry(Usage()))
            if entry.usage == Usage():
                place = topology if topology is not None else entry.usage.topology
                entry = replace(
                    entry, usage=Usage(topology=place) if flavor is None else Usage.of(flavor, place, from_volume)
                )
            held = frozenset(device.address for device in self.devices(instance_uuid))
            mine = held if addresses is None else held & frozenset(addresses)
            others = {name: replace(other, devices=other.devices - mine) for name, other in before.items()}
            _put(self._entries, instance_uuid, {**others, side: replace(entry, devices=entry.devices | mine)})

    def forget(self, instance_uuid: str) -> None:
        """Remove a server's claims from the tracker. The caller then records them again with ``adopt``.

        The rows of the server's devices are not changed.
        """
        with self._lock:
            self._at_work -= {(instance_uuid, side) for side in self._entries.get(instance_uuid, ())}
            _put(self._entries, instance_uuid, {})

    def load(self, devices: NodeDevices) -> None:
        """Replace the host's devices by devices that were read from the database again.

        A device that a server still holds stays in the same claim.
        """
        with self._lock:
            self.host_devices = devices
            for uuid, sides in self._entries.items():
                held = {device.address for device in devices.held(uuid)}
                self._entries[uuid] = {
                    side: replace(entry, devices=entry.devices & held) for side, entry in sides.items()
                }


def _put(entries: dict[str, Sides], instance_uuid: str, sides: Sides) -> None:
    """Replace a server's claims in ``entries`` by ``sides``, which is {name of a claim: its entry}.

    The server is removed from ``entries`` if ``sides`` is empty. Otherwise it becomes the last key.
    """
    entries.pop(instance_uuid, None)
    if sides:
        entries[instance_uuid] = sides


def _places(entries: Mapping[str, Sides]) -> list[objects.InstanceNUMATopology]:
    return [
        entry.usage.topology
        for sides in entries.values()
        for entry in sides.values()
        if entry.usage.topology is not None
    ]


def _total(entries: Mapping[str, Sides]) -> Usage:
    return sum((entry.usage for sides in entries.values() for entry in sides.values()), Usage())
