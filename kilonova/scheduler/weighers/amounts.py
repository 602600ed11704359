"""Weighers by free memory, CPUs and disk of a host, and by the number of its servers and builds.

They spread servers over hosts, or fill hosts up if the multiplier is negative.
"""

from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.weighers import BaseHostWeigher


class RAMWeigher(BaseHostWeigher):
    """Prefer hosts with more free memory."""

    multiplier = 'ram_weight_multiplier'
    minval = 0

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the free memory of each host in MiB."""
        return arrays.table['free_ram_mb']


class CPUWeigher(BaseHostWeigher):
    """Prefer hosts with more free VCPUs, counted with the overcommit ratio."""

    multiplier = 'cpu_weight_multiplier'
    minval = 0

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the number of free VCPUs of each host."""
        return arrays.table.free()['VCPU']


class DiskWeigher(BaseHostWeigher):
    """Prefer hosts with more free disk space."""

    multiplier = 'disk_weight_multiplier'
    minval = 0

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the free disk space of each host in MiB."""
        return arrays.table['free_disk_mb']


class NumInstancesWeigher(BaseHostWeigher):
    """Prefer hosts with more servers, or with fewer servers if the multiplier is negative.

    Multiplier 0 turns it off.
    """

    multiplier = 'num_instances_weight_multiplier'

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the number of servers of each host."""
        return arrays.table['num_instances']


class IoOpsWeigher(BaseHostWeigher):
    """Weigh hosts by the number of their builds and moves under way.

    The default multiplier is negative, so hosts with fewer builds and moves are preferred.
    """

    multiplier = 'io_ops_weight_multiplier'
    minval = 0

    def values(self, arrays: HostArrays, weight_properties: RequestSpec) -> Any:
        """Return the number of builds and moves under way on each host."""
        return arrays.table['num_io_ops']
