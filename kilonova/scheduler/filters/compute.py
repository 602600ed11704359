"""ComputeFilter: the host's compute service is enabled and was seen a moment ago."""
from __future__ import annotations

import logging
from typing import Any

from kilonova.scheduler.filters import BaseHostFilter

LOG = logging.getLogger(__name__)


class ComputeFilter(BaseHostFilter):
    """Up means: not forced down, last heartbeat at most [DEFAULT]service_down_time old by the database's clock."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        service = host_state.service
        if service['disabled']:
            LOG.debug('%(host)s is disabled, reason: %(reason)s',
                      {'host': host_state, 'reason': service.get('disabled_reason')})
            return False
        if not service['up']:
            LOG.warning('%(host)s has not been heard from in a while', {'host': host_state})
            return False
        return True

    def mask(self, look: Any, spec_obj: Any) -> Any:
        return look.table['up'] & ~look.table['disabled']
