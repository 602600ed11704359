"""NUMATopology: the NUMA cells of a host (``compute_nodes.numa_topology``), and limits for using them."""

from __future__ import annotations

from kilonova.objects import fields
from kilonova.objects.base import KilonovaObject, register


@register
class NUMAPagesTopology(KilonovaObject):
    """The memory pages of one size in a NUMA cell. All numbers except ``size_kb`` count pages."""

    VERSION = '1.1'
    total: int
    used: int
    reserved: int
    size_kb: int
    fields = {
        'size_kb': fields.IntegerField(),
        'total': fields.IntegerField(),
        'used': fields.IntegerField(default=0),
        'reserved': fields.IntegerField(default=0),
    }

    @property
    def free(self) -> int:
        """The number of free pages."""
        return self.total - self.used - self.reserved

    @property
    def free_kb(self) -> int:
        """The free memory in these pages, in KiB."""
        return self.free * self.size_kb


@register
class NetworkMetadata(KilonovaObject):
    """The physical networks to which a server or a NUMA cell is connected, and whether tunnels are used."""

    VERSION = '1.0'
    fields = {'physnets': fields.SetOfStringsField(), 'tunneled': fields.BooleanField(default=False)}


@register
class NUMACell(KilonovaObject):
    """One NUMA cell of a host. ``memory`` is in MiB, and each set in ``siblings`` has the CPU threads of one core."""

    VERSION = '1.5'
    memory: int
    memory_usage: int
    fields = {
        'id': fields.IntegerField(),
        'cpuset': fields.SetOfIntegersField(),
        'pcpuset': fields.SetOfIntegersField(),
        'memory': fields.IntegerField(),
        'cpu_usage': fields.IntegerField(default=0),
        'memory_usage': fields.IntegerField(default=0),
        'pinned_cpus': fields.SetOfIntegersField(),
        'siblings': fields.ListOfSetsOfIntegersField(),
        'mempages': fields.ListOfObjectsField('NUMAPagesTopology'),
        'network_metadata': fields.ObjectField('NetworkMetadata'),
        'socket': fields.IntegerField(nullable=True),
    }

    @property
    def free_pcpus(self) -> set[int]:
        """The dedicated CPUs that are not pinned to a guest."""
        return set(self.pcpuset) - set(self.pinned_cpus)

    @property
    def avail_memory(self) -> int:
        """The free memory of the cell in MiB."""
        return self.memory - self.memory_usage


@register
class NUMATopology(KilonovaObject):
    """The NUMA cells of a host."""

    VERSION = '1.2'
    fields = {'cells': fields.ListOfObjectsField('NUMACell')}

    def __len__(self) -> int:
        return len(self.cells)


@register
class NUMATopologyLimits(KilonovaObject):
    """The limits for a server on a host's NUMA cells: allocation ratios and networks."""

    VERSION = '1.1'
    fields = {
        'cpu_allocation_ratio': fields.FloatField(),
        'ram_allocation_ratio': fields.FloatField(),
        'network_metadata': fields.ObjectField('NetworkMetadata'),
    }
