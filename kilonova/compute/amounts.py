"""Classes for amounts of CPU, memory and disk, and for NUMA placements, which the module ``tracker`` uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kilonova import errors, objects
from kilonova.virt.hardware import constraints, numa

MB_PER_GB = 1024


@dataclass(frozen=True)
class Usage:
    """The resources that one server uses: shared vCPUs, MiB of memory, GiB of disk, dedicated CPUs, NUMA placement.

    A sum of several usages has no NUMA placement.
    """

    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0
    pcpus: int = 0
    topology: objects.InstanceNUMATopology | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, flavor: objects.Flavor, topology: objects.InstanceNUMATopology | None = None, from_volume: bool = False
    ) -> Usage:
        """Return the resources that a server of this flavor uses. Swap counts as disk, in whole GiB.

        ``from_volume`` is True if the root disk is a volume and takes no disk of this host.
        """
        swap = -(-(flavor.swap or 0) // MB_PER_GB) if 'swap' in flavor else 0
        root = 0 if from_volume else flavor.root_gb
        return cls(
            constraints.shared_cpus(flavor, topology),
            flavor.memory_mb,
            root + flavor.ephemeral_gb + swap,
            constraints.dedicated_cpus(topology),
            topology,
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.vcpus + other.vcpus,
            self.memory_mb + other.memory_mb,
            self.local_gb + other.local_gb,
            self.pcpus + other.pcpus,
        )


@dataclass(frozen=True)
class HostCapacity:
    """The largest amounts that a host may give to its servers: its totals times the allocation ratios.

    An amount is None if the node's Placement inventory does not have its resource class. The tracker then does not
    limit this amount.
    """

    vcpus: float | None = None
    memory_mb: float | None = None
    local_gb: float | None = None
    pcpus: float | None = None

    @classmethod
    def of(cls, inventory: Mapping[str, Mapping[str, float]]) -> HostCapacity:
        """Return the capacity from the compute node's Placement inventory, a dict from resource class to its fields.

        Reserved amounts are not subtracted, because Placement respects them when it accepts a server's allocation.
        """

        def limit(name: str) -> float | None:
            given = inventory.get(name)
            return given['total'] * given['allocation_ratio'] if given else None

        return cls(limit('VCPU'), limit('MEMORY_MB'), limit('DISK_GB'), limit('PCPU'))

    def lacking(self, used: Usage) -> str | None:
        """Return a text for users and the log that names a limit which ``used`` exceeds, or None if it exceeds none."""
        pairs = (
            ('memory', 'MB', used.memory_mb, self.memory_mb),
            ('disk', 'GB', used.local_gb, self.local_gb),
            ('vcpus', '', used.vcpus, self.vcpus),
            ('pcpus', '', used.pcpus, self.pcpus),
        )
        for name, unit, wanted, limit in pairs:
            if limit is not None and wanted > limit:
                return f'{name} {wanted:.2f}{unit and " " + unit} used of {limit:.2f}{unit and " " + unit}'
        return None


Places = Sequence[objects.InstanceNUMATopology]


class HostNumaCells:
    """The NUMA cells of the host.

    ``topology`` describes the cells without the usage of servers. It is None if the host has no NUMA cells.
    """

    def __init__(self, topology: objects.NUMATopology | None = None, limits: numa.CellLimits | None = None) -> None:
        self.topology, self.limits = topology, limits or numa.CellLimits()
        # The last result of the method ``text``, and the servers' NUMA placements for which that text was computed.
        self._places: Places = []
        self._text: str | None = None

    def used(self, places: Places) -> objects.NUMATopology | None:
        """Return the host's NUMA cells with the amounts that servers use on them, or None if it has none.

        ``places`` are the NUMA placements of the host's servers.
        """
        return None if self.topology is None else numa.used(self.topology, places)

    def text(self, places: Places) -> str | None:
        """Return the host's NUMA cells with the amounts that servers use on them, as JSON text.

        ``places`` are the NUMA placements of the host's servers. The text is only computed again if ``places`` has
        changed since the last call. Return None if the host has no NUMA cells.
        """
        if self._text is None or list(map(id, self._places)) != list(map(id, places)):
            used = self.used(places)
            self._places, self._text = places, None if used is None else used.to_json()
        return self._text

    def place(
        self,
        wanted: objects.InstanceNUMATopology,
        places: Places,
        limits: objects.SchedulerLimits | None,
        devices: numa.DeviceAffinity,
    ) -> objects.InstanceNUMATopology:
        """Return on which cells, CPUs and memory pages of the host a server is placed.

        ``wanted`` holds the server's requested cells. ``places`` are the placements of the other servers on the host.
        Raises HostRejected if the server does not fit.
        """
        host = self.used(places)
        asked = limits.numa_topology if limits is not None else None
        most = (
            self.limits
            if asked is None
            else dataclasses.replace(
                self.limits, cpu_ratio=asked.cpu_allocation_ratio, ram_ratio=asked.ram_allocation_ratio
            )
        )
        placed = numa.fit(host, wanted, most, devices) if host is not None else None
        if placed is None:
            raise errors.HostRejected(reason='Requested instance NUMA topology cannot fit the given host NUMA topology')
        return placed
