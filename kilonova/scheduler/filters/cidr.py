"""SimpleCIDRAffinityFilter: it passes hosts whose IP address is in the same network as the address in a hint."""

from __future__ import annotations

import ipaddress
from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)


class SimpleCIDRAffinityFilter(BaseHostFilter):
    """Pass only hosts whose management address is in the network of hints ``build_near_host_ip`` and ``cidr``.

    The default of ``cidr`` is /24. No host passes if the hints are invalid.
    """

    run_filter_once_per_request = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host's address is in the network of the hints, or True if the request has no such hint."""
        near = spec_obj.get_scheduler_hint('build_near_host_ip')
        if not near:
            return True
        prefix = str(spec_obj.get_scheduler_hint('cidr', '/24')).lstrip('/')
        try:
            network = ipaddress.ip_network(f'{near}/{prefix}', strict=False)
            return ipaddress.ip_address(str(host_state.host_ip)) in network
        except ValueError as error:
            LOG.debug(
                '%(host)s cannot be compared with network %(near)s/%(prefix)s: %(error)s',
                {'host': host_state, 'near': near, 'prefix': prefix, 'error': error},
            )
            return False

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return PER_HOST (check host by host) if the request has the hint, otherwise None (all hosts pass)."""
        return PER_HOST if spec_obj.get_scheduler_hint('build_near_host_ip') else None
