"""Weighers of free amounts: spread over hosts, or with a negative multiplier stack."""
from __future__ import annotations

from typing import Any

from kilonova.objects import RequestSpec
from kilonova.scheduler.look import Look
from kilonova.scheduler.weighers import BaseHostWeigher


class RAMWeigher(BaseHostWeigher):
    """Free memory."""

    multiplier = 'ram_weight_multiplier'
    minval = 0

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['free_ram_mb']


class CPUWeigher(BaseHostWeigher):
    """Free VCPUs, overcommit counted."""

    multiplier = 'cpu_weight_multiplier'
    minval = 0

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['vcpus_total'] * look.table['cpu_ratio'] - look.table['vcpus_used']


class DiskWeigher(BaseHostWeigher):
    """Free disk."""

    multiplier = 'disk_weight_multiplier'
    minval = 0

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['free_disk_mb']


class NumInstancesWeigher(BaseHostWeigher):
    """Number of servers (multiplier 0: off; negative: spread)."""

    multiplier = 'num_instances_weight_multiplier'

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['num_instances']


class IoOpsWeigher(BaseHostWeigher):
    """Builds and moves under way; the default multiplier prefers quiet hosts."""

    multiplier = 'io_ops_weight_multiplier'
    minval = 0

    def values(self, look: Look, weight_properties: RequestSpec) -> Any:
        return look.table['num_io_ops']
