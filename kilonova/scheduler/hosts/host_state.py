"""HostState: one compute node, as filters and weighers receive it.

Attributes have Nova's names, so that filters written for Nova work. Values that need parsing or an SQL statement are
computed when they are first read. A HostState shows the host at the time of its creation: its row in the host table,
minus the resources that this scheduler has reserved for servers that the row does not count yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Protocol

from oslo_log import log as logging

from kilonova import objects, texts
from kilonova.objects import RequestSpec
from kilonova.objects.compute_node import free_amounts, ratios
from kilonova.pci.pools import PciDeviceRequestFailed, PciPools, sockets_of
from kilonova.scheduler.hosts.reservations import Request, Reservation
from kilonova.virt.hardware.numa import CellLimits, DeviceAffinity, fit, used

LOG = logging.getLogger(__name__)

ServersOf = Callable[[str], list[dict[str, Any]]]


@lru_cache(maxsize=2048)
def parsed_pools(stored: str | None, topology: str | None) -> PciPools:
    """Return the device pools of a node from the texts of its columns ``pci_stats`` and ``numa_topology``.

    Results are cached, because few hosts change these columns between two scheduling calls. Callers must copy the
    result before they change it.
    """
    pools = texts.read('pci_stats of a node', stored, objects.PciDevicePoolList.from_column, None)
    return PciPools.from_pool_list(pools, sockets_of(parsed_topology(topology)))


def less(stored: PciPools, taken: Collection[Reservation]) -> PciPools:
    """Return a copy of the pools of free PCI devices without the devices that are reserved.

    ``stored`` are the pools in the host's row, and ``taken`` the scheduler's reservations on the host. Devices with an
    allocation in Placement are subtracted from the pool of their provider first. Then devices that Placement does not
    know are subtracted from pools that match their PCI requests.
    """
    pools = stored.copy()
    gone: Counter[str | None] = Counter()
    for one in taken:
        gone.update(one.devices)
    for pool in pools.pools:
        number = min(pool.count, gone[pool.rp_uuid])
        pool.count -= number
        gone[pool.rp_uuid] -= number
    for one in taken:
        cells = one.topology.cells if one.topology is not None else None
        for request in one.requests:
            _take(pools, request, cells)
    return pools


def _take(pools: PciPools, request: objects.InstancePCIRequest, cells: Sequence[Any] | None) -> None:
    """Remove ``request.count`` devices that match a PCI request from ``pools``, or fewer if not enough are left.

    Devices on the NUMA cells ``cells`` are preferred. Too few may be left because the host's row may already count
    the server, before its reservation is removed.
    """
    for count in range(request.count, 0, -1):
        wanted = [request if count == request.count else request.replaced(count=count)]
        for near in (cells, None) if cells else (None,):
            try:
                pools.consume_requests(wanted, numa_cells=near)
            except PciDeviceRequestFailed:
                continue
            return


@lru_cache(maxsize=2048)
def parsed_topology(text: str | None) -> objects.NUMATopology | None:
    """Return the NUMATopology in the column ``numa_topology`` of a node, or None if it is empty or cannot be read.

    Callers must not change the object.
    """
    return texts.read('numa_topology of a node', text, objects.NUMATopology.from_json, None)


class ArrayResults(Protocol):
    """Results of filters and weighers in array form, for all hosts at once. ``arrays.HostArrays`` implements it."""

    def answer(self, plugin: object, form: str, spec_obj: RequestSpec) -> Any:
        """Return the result of the method ``form`` ("mask" or "values") of ``plugin`` for all hosts.

        The entries of the result are ordered by the hosts' indexes in the host table.
        """
        ...


class HostState:
    """One compute node with its free resources and its service, for filters and weighers.

    Memory is in MiB, and disk in MiB or GiB as the attribute's name says. ``service`` is the row of the compute service
    with the additional key ``up``.
    """

    def __init__(
        self,
        node: dict[str, Any],
        cell_uuid: str,
        aggregates: list[dict[str, Any]] | None = None,
        servers_of: ServersOf | None = None,
        taken: Mapping[str, Reservation] = MappingProxyType({}),
        offered: Callable[[HostState], list[Request] | None] = lambda host: [],
        arrays: ArrayResults | None = None,
        host_index: int = -1,
    ) -> None:
        """Create the state of a host from its row.

        Args:
            node: Row of ``compute_nodes`` with the key ``service``.
            cell_uuid: The host's cell.
            aggregates: Rows of the aggregates that contain the host.
            servers_of: Function from host name to the rows of its servers.
            taken: {server: reservation} for servers of this host that its row does not contain yet.
            offered: Function that returns the host's allocation requests in Placement's answer, or None if Placement
                was not asked.
            arrays: Results for all hosts at once, for filters and weighers that have only an array form.
            host_index: The host's index in the host table.
        """
        self.arrays, self.host_index = arrays, host_index
        self._node = node
        self._taken = taken
        self._servers_of = servers_of
        self._offered = offered
        self.host: str = node['host']
        self.nodename: str = node['hypervisor_hostname']
        self.hypervisor_hostname = self.nodename
        self.uuid: str = node['uuid']
        self.cell_uuid = cell_uuid
        self._aggregates = aggregates or []
        self.service = MappingProxyType(node.get('service') or {})
        self.updated = node.get('updated_at')
        self.host_ip = node.get('host_ip')
        self.hypervisor_type = node.get('hypervisor_type')
        self.hypervisor_version = node.get('hypervisor_version')
        self.limits: dict[str, Any] = {}
        # True if NUMA cells that are in use are filled before unused ones. NUMATopologyFilter sets this attribute.
        self.pack_cells = False
        known = ratios(node)
        self.cpu_allocation_ratio = known['cpu_allocation_ratio']
        self.ram_allocation_ratio = known['ram_allocation_ratio']
        self.disk_allocation_ratio = known['disk_allocation_ratio']
        self._take_amounts(node)

    def _take_amounts(self, node: dict[str, Any]) -> None:
        self.total_usable_ram_mb: int = node['memory_mb']
        self.total_usable_disk_gb: int = node['local_gb']
        self.disk_mb_used: int = node['local_gb_used'] * 1024
        self.free_ram_mb, self.free_disk_mb = free_amounts(node)
        self.vcpus_total: int = node['vcpus']
        self.vcpus_used: int = node['vcpus_used']
        for one in self._taken.values():
            self.free_ram_mb -= one.memory_mb
            self.free_disk_mb -= one.disk_mb
            self.disk_mb_used += one.disk_mb
            self.vcpus_used += one.vcpus

    # -- values that are parsed or read at first use -------------------------------------------------------------------

    @cached_property
    def allocation_candidates(self) -> list[Request] | None:
        """The host's allocation requests in Placement's answer; None if Placement was not asked.

        Filters may remove some of the requests.
        """
        return self._offered(self)

    @cached_property
    def stats(self) -> dict[str, str]:
        """Statistics that the host reported, as texts by name."""
        found: dict[str, str] = texts.read('stats of a node', self._node.get('stats'), texts.mapping, {})
        return found

    @cached_property
    def num_instances(self) -> int:
        """Number of servers on the host, including servers for which this scheduler has reserved resources."""
        return int(self.stats.get('num_instances') or self._node.get('running_vms') or 0) + len(self._taken)

    @cached_property
    def num_io_ops(self) -> int:
        """Number of builds and moves under way on the host, including servers that this scheduler just sent to it."""
        return int(self.stats.get('io_workload') or self._node.get('current_workload') or 0) + sum(
            one.building for one in self._taken.values()
        )

    @cached_property
    def failed_builds(self) -> int:
        """Number of consecutive failed builds that the host reported."""
        return int(self.stats.get('failed_builds') or 0)

    @cached_property
    def numa_topology(self) -> str | None:
        """The serialized NUMATopology in the node's row, or None."""
        return self._node.get('numa_topology')

    @cached_property
    def numa(self) -> objects.NUMATopology | None:
        """The host's NUMATopology, or None if the host reports none.

        Its usage includes servers that this scheduler has chosen the host for. Callers must not change it.
        """
        host = parsed_topology(self.numa_topology)
        given = [one.topology for one in self._taken.values() if one.topology is not None]
        return used(host, given) if host is not None and given else host

    @property
    def numa_limits(self) -> CellLimits:
        """The overcommit ratios for shared CPUs and memory of the host's NUMA cells."""
        return CellLimits(self.cpu_allocation_ratio, self.ram_allocation_ratio, self.pack_cells)

    @cached_property
    def pci_stats(self) -> PciPools:
        """Pools of the host's free PCI devices, without devices that this scheduler has reserved."""
        return less(parsed_pools(self._node.get('pci_stats'), self.numa_topology), self._taken.values())

    @cached_property
    def cpu_info(self) -> dict[str, Any]:
        """The CPU description that the host reported."""
        return texts.read('cpu_info of a node', self._node.get('cpu_info'), texts.mapping, {})

    @cached_property
    def supported_instances(self) -> list[list[str]]:
        """List of [architecture, hypervisor type, vm mode] that the host can run."""
        return texts.read('supported_instances of a node', self._node.get('supported_instances'), texts.triples, [])

    @cached_property
    def metrics(self) -> objects.MonitorMetricList:
        """Metrics that monitors measured on the host. The list is empty if there are none or they can't be read."""
        try:
            return objects.MonitorMetricList.from_column(self._node.get('metrics'))
        except (ValueError, TypeError, AttributeError) as error:
            LOG.warning('The metrics of host %s cannot be read and are ignored: %s', self.host, error)
            return objects.MonitorMetricList.from_column(None)

    @cached_property
    def instances(self) -> dict[str, objects.Instance]:
        """The host's servers by uuid, without the columns of ``instance_extra``.

        They include servers for which this scheduler has reserved resources on the host. If the row of such a server
        does not name the host yet, the Instance has only the uuid.
        """
        rows = self._servers_of(self.host) if self._servers_of is not None else []
        return {
            **{uuid: objects.Instance(uuid=uuid) for uuid in self._taken},
            **{
                row['uuid']: objects.Instance.from_row(None, row)
                for row in rows
                if row['node'] in (None, self.nodename)
            },
        }

    @cached_property
    def image_properties(self) -> dict[str, dict[str, str]]:
        """{server uuid: properties of the server's image} of the host's servers."""
        read = getattr(self._servers_of, 'image_properties', None)
        return read(self.host) if read is not None else {}

    @cached_property
    def aggregates(self) -> list[objects.Aggregate]:
        """The aggregates that contain the host. Their ``hosts`` are not loaded."""
        return [objects.Aggregate.loaded(None, row.items()) for row in self._aggregates]

    def metadata(self, key: str) -> list[str]:
        """Return the values that the host's aggregates have for a metadata key."""
        return [row['metadata'][key] for row in self._aggregates if key in row['metadata']]

    @property
    def availability_zone(self) -> str | None:
        """The availability zone in the metadata of the host's aggregates, or None if they name no zone."""
        return next(iter(self.metadata('availability_zone')), None)

    def may_give(self, provider: str) -> bool:
        """Return whether the host's device pools may have a free device of this resource provider.

        Return True if no pool belongs to the provider, because then the number of free devices is unknown.
        """
        counts = [pool.count for pool in self.pci_stats.pools if pool.rp_uuid == provider]
        return not counts or any(counts)

    def cell_of(self, provider: str) -> int:
        """Return the NUMA cell of the devices of this resource provider, or -1 if it is unknown."""
        return next(
            (
                pool.keys['numa_node']
                for pool in self.pci_stats.pools
                if pool.rp_uuid == provider and pool.keys.get('numa_node') is not None
            ),
            -1,
        )

    def topology_of(self, spec: RequestSpec, request: Request | None) -> objects.InstanceNUMATopology | None:
        """Return the NUMA topology that a server of this request gets on the host with this allocation.

        Return None if the request or the host has no NUMA topology, or if the server does not fit. A server may not fit
        on a host that the request forces, because filters do not run for such a host.
        """
        wanted = spec.numa_topology if 'numa_topology' in spec else None
        if wanted is None or self.numa is None:
            return None
        requests = spec.pci_requests if 'pci_requests' in spec else None
        return fit(
            self.numa,
            wanted,
            self.numa_limits,
            DeviceAffinity(self.pci_stats, requests, (request or {}).get('mappings')),
        )

    def __repr__(self) -> str:
        return (
            f'({self.host}, {self.nodename}) ram: {self.free_ram_mb}MB disk: {self.free_disk_mb}MB '
            f'io_ops: {self.num_io_ops} instances: {self.num_instances}, '
            f'allocation_candidates: {len(self.allocation_candidates or ())}'
        )
