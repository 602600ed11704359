"""NUMATopologyFilter: it checks CPUs, memory and pages of a host's NUMA cells, and the distance to PCI devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging

from kilonova import objects
from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.virt.hardware import numa

LOG = logging.getLogger(__name__)


class NUMATopologyFilter(BaseHostFilter):
    """Pass only hosts whose NUMA cells have the requested CPUs, memory and pages, with suitable PCI devices.

    All hosts pass if the request has no NUMA cells, dedicated CPUs or page size. The check runs the same code as the
    claim on the host. It also removes allocation candidates whose PCI devices are on NUMA cells that the PCI NUMA
    affinity policy of the request does not allow.
    """

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the request fits on the host's NUMA cells.

        Remove from ``host_state`` the allocation candidates with which the request does not fit.
        """
        wanted = spec_obj.numa_topology if 'numa_topology' in spec_obj else None
        if wanted is None:
            return True
        host, candidates = host_state.numa, host_state.allocation_candidates
        if host is None:
            LOG.debug('%(host)s has no NUMA topology', {'host': host_state})
            return False
        host_state.pack_cells = self.conf.compute.packing_host_numa_cells_allocation_strategy
        limits = host_state.numa_limits
        requests = spec_obj.pci_requests if 'pci_requests' in spec_obj else None

        def fits(mapping: Mapping[str, list[str]] | None) -> bool:
            return (
                numa.fit(host, wanted, limits, numa.DeviceAffinity(host_state.pci_stats, requests, mapping)) is not None
            )

        if candidates and requests is not None and requests.requests:
            host_state.allocation_candidates = [one for one in candidates if fits(one.get('mappings'))]
            passes = bool(host_state.allocation_candidates)
        else:
            passes = fits(None)
        if not passes:
            LOG.debug('%(host)s fails NUMA topology requirements: %(wanted)s', {'host': host_state, 'wanted': wanted})
            return False
        host_state.limits['numa_topology'] = objects.NUMATopologyLimits(
            cpu_allocation_ratio=limits.cpu_ratio, ram_allocation_ratio=limits.ram_ratio
        )
        return True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return PER_HOST (check host by host) if the request has a NUMA topology, otherwise None (all hosts pass)."""
        wanted = spec_obj.numa_topology if 'numa_topology' in spec_obj else None
        return None if wanted is None else PER_HOST
