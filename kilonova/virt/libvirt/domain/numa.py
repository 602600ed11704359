"""The guest's place on the host's NUMA cells: pinned CPUs, memory near them, the cells that the guest sees."""
from __future__ import annotations

from typing import Any

from kilonova.objects import cpuset
from kilonova.virt.hardware.constraints import SHARE
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Cpu, Domain
from kilonova.virt.libvirt.xml.numa import CpuTune, GuestCell, NumaTune


class NumaConfigurator:
    """<cputune>, <numatune> and <cpu><numa> of a guest that was given cells (libvirt.md §7).

    A dedicated vCPU runs on its own host CPU, the others on the shared CPUs of their host cell. The emulator's threads
    run beside them, on CPUs of their own (isolate), or on the host's shared CPUs (share).
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.topology is None:
            return
        cells = guest.topology.cells
        pins = {vcpu: cpus for cell in cells for vcpu, cpus in _pins(guest, cell).items()}
        domain.cpuset = None
        domain.cputune = CpuTune({vcpu: cpuset.text(cpus) for vcpu, cpus in pins.items()},
                                 cpuset.text(_emulator(guest, set().union(*pins.values()))))
        domain.numatune = NumaTune({number: cell.id for number, cell in enumerate(cells)})
        # One size for all cells; larger than the host's smallest, others may map it (vhost-user).
        size = cells[0].pagesize
        domain.cpu = domain.cpu or Cpu(sockets=guest.flavor.vcpus)
        domain.cpu.cells = [
            GuestCell(number, cpuset.text(cell.total_cpus), cell.memory * 1024,
                      shared=size is not None and size > guest.settings.small_page)
            for number, cell in enumerate(cells)]


def _pins(guest: GuestSpec, cell: Any) -> dict[int, set[int]]:
    """{vCPU: host CPUs that it may run on}."""
    own = {vcpu: {cpu} for vcpu, cpu in (cell.cpu_pinning or {}).items()}
    shared = set(guest.settings.cells.get(cell.id, ()))
    return own | dict.fromkeys(cell.cpuset, shared)


def _emulator(guest: GuestSpec, pinned: set[int]) -> set[int]:
    topology = guest.topology
    reserved = {cpu for cell in topology.cells for cpu in cell.cpuset_reserved or ()}
    policy = topology.emulator_threads_policy if 'emulator_threads_policy' in topology else None
    if policy == SHARE and guest.settings.shared_cpus:
        return set(guest.settings.shared_cpus)
    return reserved or pinned
