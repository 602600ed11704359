"""The CPUs and memory pages of a host that servers may use, as the host's configuration says.

    offer = Offer.read(conf, online={0, 1, 2, 3})
    offer.shared, offer.dedicated

Without configuration, all CPUs are shared. If ``[compute]cpu_dedicated_set`` or ``cpu_shared_set`` is set, only the
CPUs in these sets may be used. A CPU cannot be in both sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from oslo_config import cfg

from kilonova.objects import cpuset
from kilonova.virt.hardware import constraints
from kilonova.virt.parts.host import DriverMisconfigured


@dataclass(frozen=True)
class Offer:
    """The CPUs and memory pages of a host that servers may use.

    Attributes:
        shared: Host CPUs on which vCPUs without a dedicated CPU run.
        dedicated: Host CPUs that are each given to one vCPU.
        said: True if [compute]cpu_shared_set is set. Guests without dedicated CPUs then run only on the CPUs in
            ``shared``. If it is False, they may run on any CPU of the host.
        pages: {(NUMA cell, page size in KiB): number of memory pages that servers may not use}.
    """

    shared: frozenset[int]
    dedicated: frozenset[int] = frozenset()
    said: bool = False
    pages: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def read(cls, conf: cfg.ConfigOpts, online: Set[int]) -> Offer:
        """Return the CPUs and pages that the configuration offers.

        ``online`` are the numbers of the host's CPUs. Raises DriverMisconfigured if a setting is invalid.
        """
        shared = _set(conf, 'cpu_shared_set', online)
        dedicated = _set(conf, 'cpu_dedicated_set', online)
        if shared is None and dedicated is None:
            return cls(frozenset(online), pages=_reserved(conf))
        if conf.reserved_host_cpus:
            raise DriverMisconfigured(
                reason='[DEFAULT]reserved_host_cpus cannot be combined with '
                '[compute]cpu_shared_set or cpu_dedicated_set: remove the reserved CPUs '
                'from the sets instead'
            )
        both = (shared or frozenset()) & (dedicated or frozenset())
        if both:
            raise DriverMisconfigured(
                reason=f'[compute]cpu_shared_set and [compute]cpu_dedicated_set overlap: {cpuset.text(both)}'
            )
        return cls(shared or frozenset(), dedicated or frozenset(), bool(shared), _reserved(conf))

    def reserved_pages(self, cell: int, size_kb: int) -> int:
        """Return the number of pages of this size in a NUMA cell that are reserved for the host."""
        return self.pages.get((cell, size_kb), 0)


def _set(conf: cfg.ConfigOpts, name: str, online: Set[int]) -> frozenset[int] | None:
    value = conf.compute[name]
    if not value:
        return None
    try:
        found = frozenset(cpuset.parse(value))
    except ValueError as error:
        raise DriverMisconfigured(reason=f"[compute]{name} '{value}': {error}") from None
    if not found:
        raise DriverMisconfigured(reason=f"[compute]{name} '{value}' contains no CPU")
    if found - online:
        raise DriverMisconfigured(
            reason=f'[compute]{name} contains CPUs that this host does not have: {cpuset.text(found - online)}'
        )
    return found


def _reserved(conf: cfg.ConfigOpts) -> dict[tuple[int, int], int]:
    """Return {(cell, size in KiB): number} from entries node:N,size:S,count:C. A size without a unit is in KiB."""
    found: dict[tuple[int, int], int] = {}
    for entry in conf.reserved_huge_pages or ():
        try:
            node, count = int(entry['node']), int(entry['count'])
            size = constraints.parse_page_size(entry['size'])
        except (KeyError, ValueError, constraints.MemoryPageSizeInvalid):
            node = count = size = -1
        if min(node, count) < 0 or size < 1:
            raise DriverMisconfigured(
                reason=f'[DEFAULT]reserved_huge_pages {entry} is not of the form node:N,size:S,count:C'
            )
        found[node, size] = found.get((node, size), 0) + count
    return found
