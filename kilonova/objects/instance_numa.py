"""InstanceNUMATopology: the NUMA cells that a guest is given (``instance_extra.numa_topology``)."""
from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register
from kilonova.objects.fields import DictProxyField


@register
class InstanceNUMACell(KilonovaObject):
    """``memory`` in MiB, ``pagesize`` in KiB; ``cpuset`` shared and ``pcpuset`` dedicated guest CPUs of the cell."""

    VERSION = '1.6'
    fields = {
        'id': fields.IntegerField(),
        'cpuset': fields.SetOfIntegersField(),
        'pcpuset': fields.SetOfIntegersField(),
        'cpuset_reserved': fields.SetOfIntegersField(nullable=True),
        'memory': fields.IntegerField(),
        'pagesize': fields.IntegerField(nullable=True),
        'cpu_topology': fields.ObjectField('VirtCPUTopology', nullable=True),
        'cpu_pinning_raw': fields.DictOfIntegersField(nullable=True),
        'cpu_policy': fields.CPUAllocationPolicyField(nullable=True),
        'cpu_thread_policy': fields.CPUThreadAllocationPolicyField(nullable=True),
    }
    cpu_pinning = DictProxyField('cpu_pinning_raw')

    @property
    def total_cpus(self) -> set[int]:
        return set(self.cpuset) | set(self.pcpuset)


@register
class InstanceNUMATopology(KilonovaObject):
    VERSION = '1.3'
    fields = {
        'id': fields.IntegerField(),
        'instance_uuid': fields.UUIDField(),
        'cells': fields.ListOfObjectsField('InstanceNUMACell'),
        'emulator_threads_policy': fields.CPUEmulatorThreadsPolicyField(nullable=True),
    }

    def __len__(self) -> int:
        return len(self.cells)
