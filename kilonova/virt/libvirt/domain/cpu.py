"""The guest's CPUs and memory: how many, what it sees of them, and where on the host they are."""
from __future__ import annotations

from kilonova.objects import cpuset
from kilonova.objects.instance_extra import InstanceNUMACell, InstanceNUMATopology
from kilonova.objects.vif import VHOST_USER
from kilonova.virt.hardware import constraints, cpu_features, topology, tuning
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml import Cpu, CpuTune, Domain, GuestCell, MemoryBacking, NumaTune
from kilonova.virt.parts.guests import NotOnThisHost


class MemoryConfigurator:
    """The flavor's memory, in KiB; large pages and locked memory where the guest was given them. A vCPU with realtime
    priority must not wait for memory that the host has to fetch or copy first. A switch in user space maps it."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        domain.memory_kib = guest.flavor.memory_mb * 1024
        cells = guest.topology.cells if guest.topology is not None else ()
        pages = {number: cell.pagesize for number, cell in enumerate(cells)
                 if cell.pagesize is not None and cell.pagesize > guest.settings.small_page}
        realtime = bool(guest.realtime)
        locked = realtime or constraints.locked_memory(guest.extra_specs, guest.properties)
        mapped = any(vif.type == VHOST_USER for vif in guest.instance.vifs)
        if pages or locked or mapped:
            domain.memory_backing = MemoryBacking(pages, locked, unshared=realtime, mapped=mapped)


class CpuConfigurator:
    """The flavor's vCPUs, as sockets of one core unless somebody wants another layout; the model only where QEMU runs
    the guest."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        settings, limits = guest.settings, topology.limits_of(guest.extra_specs, guest.properties)
        domain.vcpus = guest.flavor.vcpus
        threads = _threads(guest)
        layout = topology.choose(guest.flavor.vcpus, limits, threads)
        parts = {'sockets': layout.sockets, 'cores': layout.cores, 'threads': layout.threads}
        mode, addresses = settings.guest_cpu_mode, guest.tuning.address_space
        if addresses is not None and addresses.mode not in settings.address_spaces:
            raise NotOnThisHost(name='hw:maxphysaddr_mode', value=addresses.mode, reason=(
                f'with cpu_mode {mode} it must be {" or ".join(sorted(settings.address_spaces)) or "left out"}'))
        if settings.domain_type not in ('kvm', 'qemu'):
            # libvirt's test driver has no CPU models.
            if limits.liked or threads is not None or addresses is not None:
                domain.cpu = Cpu(**parts, addresses=addresses)
            return
        if mode == 'none':
            domain.cpu = Cpu(**parts)
            return
        domain.cpu = Cpu(mode=mode, model=_model(guest) if mode == 'custom' else None, **parts,
                         features=list(settings.cpu_flags), addresses=addresses)


def _model(guest: GuestSpec) -> str:
    """The first of [libvirt]cpu_models that has, with [libvirt]cpu_model_extra_flags, the features that flavor and
    image require by traits (trait:HW_CPU_X86_AVX2). Raises NotOnThisHost if none has."""
    settings = guest.settings
    needed = cpu_features.wanted(guest.required_traits) - {name for name, policy in settings.cpu_flags
                                                           if policy == 'require'}
    for name, has in settings.cpu_models.items():
        if needed <= has:
            return name
    raise NotOnThisHost(name='trait:HW_CPU_*', value=', '.join(sorted(needed)), reason=(
        f'none of [libvirt]cpu_models has it ({", ".join(settings.cpu_models)})'))


def _threads(guest: GuestSpec) -> int | None:
    """How many neighbouring vCPUs are threads of one host core, in all cells alike; None: nothing is pinned so."""
    cells = guest.topology.cells if guest.topology is not None else ()
    found = {cell.cpu_topology.threads if cell.cpu_topology is not None else None for cell in cells}
    return found.pop() if len(found) == 1 else None


class PlaceConfigurator:
    """Where on its host a guest runs: with [compute]cpu_shared_set on those CPUs; one that was given cells there, by
    <cputune> and <numatune>, with the cells that it sees.

    A dedicated vCPU runs on its own host CPU, the others on the shared CPUs of their host cell. The emulator's threads
    run beside them (never beside one with realtime priority, where they would get no time), on CPUs of their own
    (isolate), or on the host's shared CPUs (share).
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        placed = guest.topology
        if placed is None:
            domain.cpuset = cpuset.text(guest.settings.shared_cpus) or None
            return
        cells = placed.cells
        pins = {vcpu: cpus for cell in cells for vcpu, cpus in _pins(guest, cell).items()}
        domain.cputune = CpuTune({vcpu: cpuset.text(cpus) for vcpu, cpus in pins.items()},
                                 cpuset.text(_emulator(guest, placed, pins)),
                                 realtime=cpuset.text(guest.realtime) or None,
                                 priority=guest.settings.realtime_priority)
        domain.numatune = NumaTune({number: cell.id for number, cell in enumerate(cells)})
        # One size for all cells; larger than the host's smallest, others may map it (vhost-user).
        size = cells[0].pagesize
        domain.cpu = domain.cpu or Cpu(sockets=guest.flavor.vcpus)
        domain.cpu.cells = [
            GuestCell(number, cpuset.text(cell.total_cpus), cell.memory * 1024,
                      shared=size is not None and size > guest.settings.small_page)
            for number, cell in enumerate(cells)]


def _pins(guest: GuestSpec, cell: InstanceNUMACell) -> dict[int, set[int]]:
    """{vCPU: host CPUs that it may run on}."""
    own = {int(vcpu): {cpu} for vcpu, cpu in (cell.cpu_pinning_raw or {}).items()}
    shared = set(guest.settings.cells.get(cell.id, ()))
    return own | dict.fromkeys(cell.cpuset, shared)


def _emulator(guest: GuestSpec, placed: InstanceNUMATopology, pins: dict[int, set[int]]) -> set[int]:
    reserved = {cpu for cell in placed.cells for cpu in cell.cpuset_reserved or ()}
    policy = placed.emulator_threads_policy if 'emulator_threads_policy' in placed else None
    if policy == constraints.SHARE and guest.settings.shared_cpus:
        return set(guest.settings.shared_cpus)
    found = reserved or set().union(*(cpus for vcpu, cpus in pins.items() if vcpu not in guest.realtime))
    if not found:
        # hw:emulator_threads_policy=share, and the host shares none.
        raise NotOnThisHost(name='hw:emulator_threads_policy', value=policy, reason=(
            'a guest all of whose CPUs are realtime needs [compute]cpu_shared_set there'))
    return found


class CpuQuotaConfigurator:
    """Write the flavor's quota:cpu_shares, _period and _quota, beside the pins that the guest may have.

    Raises NotOnThisHost if the host's version of control groups has other bounds of shares.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        limits, version = guest.tuning.cpu, guest.settings.control_groups
        if limits:
            least, most = tuning.CPU_SHARES[version] if version is not None else tuning.CPU_LIMITS['shares']
            if 'shares' in limits and not least <= limits['shares'] <= most:
                raise NotOnThisHost(name='quota:cpu_shares', value=limits['shares'], reason=(
                    f'it must be from {least} to {most} (control groups of version {version})'))
            domain.cputune = domain.cputune or CpuTune()
            domain.cputune.limits = limits
