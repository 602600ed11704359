"""How many CPUs the guest has, which CPU it sees and how that is laid out (libvirt.md §2)."""
from __future__ import annotations

from kilonova.objects import cpuset
from kilonova.virt.hardware import topology
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Cpu, Domain


class CpuConfigurator:
    """The flavor's vCPUs, as sockets of one core unless somebody wants another layout; the model only where QEMU runs
    the guest. With [compute]cpu_shared_set they are kept on those CPUs."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        settings, limits = guest.settings, topology.limits_of(guest.extra_specs, guest.properties)
        domain.vcpus = guest.flavor.vcpus
        domain.cpuset = cpuset.text(settings.shared_cpus) or None
        threads = _threads(guest)
        layout = topology.choose(guest.flavor.vcpus, limits, threads)
        parts = {'sockets': layout.sockets, 'cores': layout.cores, 'threads': layout.threads}
        if settings.domain_type not in ('kvm', 'qemu'):
            # libvirt's test driver has no CPU models.
            if limits.liked or threads is not None:
                domain.cpu = Cpu(**parts)
            return
        mode = settings.cpu_mode or ('host-passthrough' if settings.arch == 'aarch64' else 'host-model')
        if mode == 'none':
            domain.cpu = Cpu(**parts)
            return
        domain.cpu = Cpu(mode=mode, model=settings.cpu_model if mode == 'custom' else None, **parts,
                         features=list(settings.cpu_flags))


def _threads(guest: GuestSpec) -> int | None:
    """How many neighbouring vCPUs are threads of one host core, in all cells alike; None: nothing is pinned so."""
    cells = guest.topology.cells if guest.topology is not None else ()
    found = {cell.cpu_topology.threads if cell.cpu_topology is not None else None for cell in cells}
    return found.pop() if len(found) == 1 else None
