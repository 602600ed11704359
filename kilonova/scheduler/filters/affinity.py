"""Filters that check which servers are on a host: hints same_host and different_host, and server groups."""

from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.filters import BaseHostFilter
from kilonova.scheduler.hosts.arrays import HostArrays


def _hint(spec_obj: RequestSpec, name: str) -> set[str]:
    values = spec_obj.get_scheduler_hint(name, [])
    return {values} if isinstance(values, str) else set(values)


def _group(spec_obj: RequestSpec, policy: str) -> Any:
    group = spec_obj.instance_group if 'instance_group' in spec_obj else None
    return group if group is not None and 'policy' in group and group.policy == policy else None


class DifferentHostFilter(BaseHostFilter):
    """Reject hosts that have one of the servers in the hint ``different_host``."""

    run_filter_once_per_request = True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts that have none of the servers in the hint.

        Return None (all hosts pass) if the request has no such hint.
        """
        apart = _hint(spec_obj, 'different_host')
        return ~arrays.having(apart) if apart else None


class SameHostFilter(BaseHostFilter):
    """Pass only hosts that have one of the servers in the hint ``same_host``."""

    run_filter_once_per_request = True

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts that have at least one of the servers in the hint.

        Return None (all hosts pass) if the request has no such hint.
        """
        together = _hint(spec_obj, 'same_host')
        return arrays.having(together) if together else None


class ServerGroupAntiAffinityFilter(BaseHostFilter):
    """Reject hosts that already have as many members of the request's server group as one host may have.

    The filter is for groups with policy anti-affinity. The number is the group's rule ``max_server_per_host``, by
    default 1. The server for which a host is chosen is not counted.
    """

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts with fewer members of the group than allowed.

        It is also True for the hosts on which the server is already. Return None (all hosts pass) if the server is in
        no group with policy anti-affinity.
        """
        group = _group(spec_obj, 'anti-affinity')
        if group is None:
            return None
        most = group.rules.get('max_server_per_host', 1)
        own = {spec_obj.instance_uuid} if 'instance_uuid' in spec_obj else set()
        if group.places is not None:
            here = arrays.named({host for uuid in own for host in group.places.get(uuid, ())})
            return (arrays.members(group, *own) < most) | here
        members = set(group.members or ())
        arrays.learn(members | own)
        return (arrays.counts(members) < most) | arrays.having(own)


class ServerGroupAffinityFilter(BaseHostFilter):
    """Pass only hosts with servers of the group if its policy is affinity; pass all hosts if the group is empty."""

    def mask(self, arrays: HostArrays, spec_obj: RequestSpec) -> Any:
        """Return a boolean array that is True for the hosts that have servers of the group.

        Return None (all hosts pass) if the group has no servers on hosts.
        """
        group = _group(spec_obj, 'affinity')
        hosts = group.hosts if group is not None and 'hosts' in group else None
        return arrays.named(hosts) if hosts else None
