"""Weighers for server groups with policy soft-affinity or soft-anti-affinity, which are preferences only."""

from __future__ import annotations

from typing import Any, ClassVar

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.weighers import BaseHostWeigher


class _SoftPolicy(BaseHostWeigher):
    """Base class of weighers that count the group's servers on each host.

    The server for which a host is chosen is not counted.
    """

    policy: ClassVar[str]
    sign: ClassVar[int]

    def _group(self, spec_obj: RequestSpec) -> tuple[Any, str | None]:
        group = spec_obj.instance_group if 'instance_group' in spec_obj else None
        own = spec_obj.instance_uuid if 'instance_uuid' in spec_obj else None
        return (group if group is not None and 'policy' in group and group.policy == self.policy else None), own

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the number of the group's servers on each host, or zeros if the request has no such group.

        The numbers are negative for policy soft-anti-affinity.
        """
        group, own = self._group(weight_properties)
        if group is None:
            return arrays.table['free_ram_mb'] * 0
        if group.places is not None:
            return self.sign * arrays.members(group, own)
        return self.sign * arrays.counts(set(group.members or ()) - {own})


class ServerGroupSoftAffinityWeigher(_SoftPolicy):
    """Prefer hosts with more servers of the request's group if its policy is soft-affinity."""

    multiplier = 'soft_affinity_weight_multiplier'
    policy, sign = 'soft-affinity', 1


class ServerGroupSoftAntiAffinityWeigher(_SoftPolicy):
    """Prefer hosts with fewer servers of the request's group if its policy is soft-anti-affinity."""

    multiplier = 'soft_anti_affinity_weight_multiplier'
    policy, sign = 'soft-anti-affinity', -1
