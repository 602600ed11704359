"""ComputeCapabilitiesFilter: extra specs about what the host says of itself."""
from __future__ import annotations

import json
import logging
from typing import Any

from kilonova.scheduler.filters import BaseHostFilter, extra_specs

LOG = logging.getLogger(__name__)

SCOPE = 'capabilities'
# Keys without scope that mean something else.
NOT_CAPABILITIES = ('group_policy', 'hide_hypervisor_id')
_MISSING = object()


class ComputeCapabilitiesFilter(BaseHostFilter):
    """``capabilities:<path>`` (``:`` between steps) or a key without scope, compared with the host's attribute, its
    stats, metrics or cpu_info."""

    run_filter_once_per_request = True

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        for key, wanted in spec_obj.flavor.extra_specs.items():
            path = key.split(':')
            if path[0] == SCOPE and len(path) > 1:
                path = path[1:]
            elif len(path) > 1 or key in NOT_CAPABILITIES:
                continue
            value = _look(host_state, path)
            if value is _MISSING or not extra_specs.match(value, wanted):
                LOG.debug("%(host)s fails extra spec '%(key)s': '%(wanted)s' is not '%(value)s'",
                          {'host': host_state, 'key': key, 'wanted': wanted,
                           'value': None if value is _MISSING else value})
                return False
        return True


def _look(host_state: Any, path: list[str]) -> Any:
    first, *rest = path
    value = getattr(host_state, first, _MISSING)
    if value is _MISSING:
        value = host_state.stats.get(first, _MISSING)
    if value is _MISSING:
        value = next((metric.get('value') for metric in host_state.metrics if metric.get('name') == first), _MISSING)
    for step in rest:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return _MISSING
        value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    return _MISSING if value is None else value
