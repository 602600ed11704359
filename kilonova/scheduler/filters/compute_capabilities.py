"""ComputeCapabilitiesFilter: it compares a flavor's extra specs with the capabilities that a host reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from oslo_log import log as logging

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import PER_HOST, BaseHostFilter, extra_specs
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState

LOG = logging.getLogger(__name__)

SCOPE = 'capabilities'
# Extra specs that are not about capabilities, although their names contain no ':'.
NOT_CAPABILITIES = ('group_policy', 'hide_hypervisor_id')
ADDRESS_BITS = 'hw:maxphysaddr_bits'
_MISSING = object()


class ComputeCapabilitiesFilter(BaseHostFilter):
    """Pass only hosts that meet the flavor's extra specs about capabilities.

    These are ``capabilities:<path>``, extra specs without a prefix, and ``hw:maxphysaddr_bits``. The parts of a path
    are separated by ``:``. The path is looked up in the host's attributes, stats, metrics and cpu_info.
    """

    run_filter_once_per_request = True

    def host_passes(self, host_state: HostState, spec_obj: RequestSpec) -> bool:
        """Return whether the host meets all extra specs about capabilities."""
        for key, path, wanted in _asked(spec_obj):
            value = _look(host_state, path)
            if value is _MISSING or not extra_specs.match(value, wanted):
                LOG.debug(
                    "%(host)s fails extra spec '%(key)s': wanted is '%(wanted)s', the host has '%(value)s'",
                    {'host': host_state, 'key': key, 'wanted': wanted, 'value': None if value is _MISSING else value},
                )
                return False
        return address_bits_fit(host_state, spec_obj.flavor.extra_specs.get(ADDRESS_BITS))

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return PER_HOST (check host by host) if the flavor has extra specs about capabilities, otherwise None."""
        return PER_HOST if any(_asked(spec_obj)) or ADDRESS_BITS in spec_obj.flavor.extra_specs else None


def address_bits_fit(host_state: HostState, wanted: str | int | None) -> bool:
    """Return whether guests on the host may have physical addresses of this number of bits.

    Return True also if a number is unknown or cannot be compared, because the compute service checks the address size
    again.
    """
    said = host_state.cpu_info.get('maxphysaddr') if wanted is not None else None
    has = said.get('bits') if isinstance(said, dict) else said
    try:
        return wanted is None or has is None or int(wanted) <= int(has)
    except (ValueError, TypeError):
        LOG.debug('Cannot compare maxphysaddr_bits %(wanted)s with %(has)s', {'wanted': wanted, 'has': has})
        return True


def _asked(spec_obj: RequestSpec) -> Iterator[tuple[str, list[str], str]]:
    """Yield (name of the extra spec, path of the capability, wanted value) for each extra spec about capabilities."""
    for key, wanted in spec_obj.flavor.extra_specs.items():
        path = key.split(':')
        if path[0] == SCOPE and len(path) > 1:
            yield key, path[1:], wanted
        elif len(path) == 1 and key not in NOT_CAPABILITIES:
            yield key, path, wanted


def _look(host_state: HostState, path: list[str]) -> Any:
    first, *rest = path
    value = getattr(host_state, first, _MISSING)
    if value is _MISSING:
        value = host_state.stats.get(first, _MISSING)
    if value is _MISSING:
        value = next((metric.value for metric in host_state.metrics if metric.name == first), _MISSING)
    for step in rest:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return _MISSING
        value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    return _MISSING if value is None else value
