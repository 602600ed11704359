"""SimpleCIDRAffinityFilter: it passes hosts whose address is near another one."""
from __future__ import annotations

import ipaddress
from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import LOOP, BaseHostFilter
from kilonova.scheduler.host_state import HostState
from kilonova.scheduler.look import Look

LOG = logging.getLogger(__name__)


class SimpleCIDRAffinityFilter(BaseHostFilter):
    """Pass only hosts whose management address is in the network of hints ``build_near_host_ip`` and ``cidr``.

    The default of ``cidr`` is /24. No host passes if the hints are invalid.
    """

    run_filter_once_per_request = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host's address is in the network, or True without the hint."""
        near = spec_obj.get_scheduler_hint('build_near_host_ip')
        if not near:
            return True
        prefix = str(spec_obj.get_scheduler_hint('cidr', '/24')).lstrip('/')
        try:
            network = ipaddress.ip_network(f'{near}/{prefix}', strict=False)
            return ipaddress.ip_address(str(host_state.host_ip)) in network
        except ValueError as error:
            LOG.debug('%(host)s cannot be compared with network %(near)s/%(prefix)s: %(error)s',
                      {'host': host_state, 'near': near, 'prefix': prefix, 'error': error})
            return False

    def mask(self, look: Look, spec_obj: RequestSpec) -> Any:
        """Return LOOP (check host by host) if the request has the hint, otherwise None (all hosts pass)."""
        return LOOP if spec_obj.get_scheduler_hint('build_near_host_ip') else None
