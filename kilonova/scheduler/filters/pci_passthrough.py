"""PciPassthroughFilter: it checks that a host has free devices for all PCI requests together."""

from __future__ import annotations

from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)


class PciPassthroughFilter(BaseHostFilter):
    """Pass only hosts that have free devices for all PCI requests together.

    The filter checks each allocation candidate of a host: if one of its devices is not free in the host's pools, the
    candidate is removed. A host without any candidate left is rejected. The pools may be more accurate than Placement,
    because a device that is still being released has no allocation any more.
    """

    at_most = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host has the devices, and remove its allocation candidates whose devices are not free."""
        requests = spec_obj.pci_requests if 'pci_requests' in spec_obj else None
        if requests is None or not requests.requests:
            return True
        if not host_state.allocation_candidates:
            return host_state.pci_stats.support_requests(requests)
        good = [
            candidate
            for candidate in host_state.allocation_candidates
            if host_state.pci_stats.support_requests(requests, provider_mapping=candidate.get('mappings'))
        ]
        if not good:
            LOG.debug(
                "%(host)s doesn't have the required PCI devices (%(requests)s)",
                {'host': host_state, 'requests': requests.requests},
            )
            return False
        host_state.allocation_candidates = good
        return True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts that have enough devices for each single PCI request.

        It may be True for too many hosts, because two requests may need the same device. So ``host_passes`` checks the
        chosen host again. Return None (all hosts pass) if there are no PCI requests.
        """
        requests = spec_obj.pci_requests if 'pci_requests' in spec_obj else None
        found = None
        for request in requests.requests if requests is not None else ():
            enough = arrays.table.devices.free(request.spec) >= request.count
            found = enough if found is None else found & enough
        return found
