"""HostState: one compute node as filters and weighers see it (scheduler.md §2).

The names are the field's, so that filters written for it work. What costs parsing or a statement is made when it is
first read. A HostState belongs to one select, which takes from it what it gives away (``consume``).
"""
from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from kilonova import objects
from kilonova.pci.pools import PciDeviceRequestFailed, PciPools, sockets_of
from kilonova.scheduler.query import Spec

LOG = logging.getLogger(__name__)

ServersOf = Callable[[str], list[dict[str, Any]]]


@lru_cache(maxsize=2048)
def _pools(stored: str | None, topology: str | None) -> PciPools:
    """What the two columns say, to be copied. From one select to the next few hosts change theirs."""
    return PciPools.from_pool_list(objects.PciDevicePoolList.from_column(stored),
                                   sockets_of(objects.NUMATopology.from_column(topology)))


class HostState:
    """Memory in MiB, disk in MiB or GiB as named. ``service`` is the row of the compute service, with ``up``."""

    def __init__(self, node: dict[str, Any], cell_uuid: str, aggregates: list[dict[str, Any]] | None = None,
                 servers_of: ServersOf | None = None) -> None:
        """``node``: a row of ``queries.compute_nodes.snapshot``; ``servers_of(host)``: rows of its servers."""
        self._node = node
        self._servers_of = servers_of
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
        self.allocation_candidates: list[dict[str, Any]] | None = []
        self.cpu_allocation_ratio = node.get('cpu_allocation_ratio')
        self.ram_allocation_ratio = node.get('ram_allocation_ratio')
        self.disk_allocation_ratio = node.get('disk_allocation_ratio')
        self._take_amounts(node)

    def _take_amounts(self, node: dict[str, Any]) -> None:
        self.total_usable_ram_mb: int = node['memory_mb']
        self.total_usable_disk_gb: int = node['local_gb']
        self.disk_mb_used: int = node['local_gb_used'] * 1024
        free = node.get('free_ram_mb')
        self.free_ram_mb: int = node['memory_mb'] - node['memory_mb_used'] if free is None else free
        free_disk_gb = node.get('free_disk_gb')
        if free_disk_gb is None:
            free_disk_gb = node['local_gb'] - node['local_gb_used']
        least = node.get('disk_available_least')
        self.free_disk_mb: int = (free_disk_gb if least is None else min(least, free_disk_gb)) * 1024
        self.vcpus_total: int = node['vcpus']
        self.vcpus_used: int = node['vcpus_used']

    # What is parsed or fetched when somebody reads it

    @cached_property
    def stats(self) -> dict[str, str]:
        return json.loads(self._node.get('stats') or '{}')

    @cached_property
    def num_instances(self) -> int:
        return int(self.stats.get('num_instances') or self._node.get('running_vms') or 0)

    @cached_property
    def num_io_ops(self) -> int:
        return int(self.stats.get('io_workload') or self._node.get('current_workload') or 0)

    @cached_property
    def failed_builds(self) -> int:
        return int(self.stats.get('failed_builds') or 0)

    @cached_property
    def numa_topology(self) -> str | None:
        """The envelope of a NUMATopology, as the node's row holds it."""
        return self._node.get('numa_topology')

    @cached_property
    def pci_stats(self) -> PciPools:
        """Free devices."""
        return _pools(self._node.get('pci_stats'), self.numa_topology).copy()

    @cached_property
    def cpu_info(self) -> dict[str, Any]:
        text = self._node.get('cpu_info')
        return json.loads(text) if text else {}

    @cached_property
    def supported_instances(self) -> list[list[str]]:
        """[[architecture, hypervisor type, vm mode]]."""
        return json.loads(self._node.get('supported_instances') or '[]')

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return json.loads(self._node.get('metrics') or '[]')

    @cached_property
    def instances(self) -> dict[str, objects.Instance]:
        """The servers of the host by uuid, without their extras."""
        rows = self._servers_of(self.host) if self._servers_of is not None else []
        return {row['uuid']: objects.Instance.from_row(None, row) for row in rows
                if row['node'] in (None, self.nodename)}

    @cached_property
    def aggregates(self) -> list[objects.Aggregate]:
        """Those that the host is in, without their hosts."""
        return [objects.Aggregate.loaded(None, row.items()) for row in self._aggregates]

    def metadata(self, key: str) -> list[str]:
        """The values that the host's aggregates have for a key."""
        return [row['metadata'][key] for row in self._aggregates if key in row['metadata']]

    @property
    def availability_zone(self) -> str | None:
        """The zone of its aggregates, or None."""
        return next(iter(self.metadata('availability_zone')), None)

    def may_give(self, provider: str) -> bool:
        """Whether the pools know of no reason against a device of this provider (pools without providers know none)."""
        counts = [pool.count for pool in self.pci_stats.pools if pool.rp_uuid == provider]
        return not counts or any(counts)

    def consume(self, spec: Spec, allocation: dict[str, Any] | None = None) -> None:
        """Take what the request takes; devices of the providers in ``allocation``'s mappings where it has any."""
        disk_mb = (spec.root_gb + spec.ephemeral_gb) * 1024 + (spec.swap or 0)
        self.free_ram_mb -= spec.memory_mb
        self.free_disk_mb -= disk_mb
        self.disk_mb_used += disk_mb
        self.vcpus_used += spec.vcpus
        self.num_instances += 1
        self.num_io_ops += 1
        requests = spec.pci_requests if 'pci_requests' in spec else None
        if requests is not None and requests.requests:
            try:
                self.pci_stats.apply_requests(requests, provider_mapping=(allocation or {}).get('mappings'))
            except PciDeviceRequestFailed:
                # A forced host wasn't filtered, and a host may have taken the devices of an earlier claim already.
                LOG.debug('%s has no free devices for %s', self, requests)

    def __repr__(self) -> str:
        return (f'({self.host}, {self.nodename}) ram: {self.free_ram_mb}MB disk: {self.free_disk_mb}MB '
                f'io_ops: {self.num_io_ops} instances: {self.num_instances}, '
                f'allocation_candidates: {len(self.allocation_candidates or ())}')
