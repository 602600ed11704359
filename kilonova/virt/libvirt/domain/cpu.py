"""Classes that write a guest's CPUs and memory into its domain XML: amount, topology, and placement on the host."""

from __future__ import annotations

from kilonova.objects import cpuset
from kilonova.objects.instance_extra import InstanceNUMACell, InstanceNUMATopology
from kilonova.objects.vif import VHOST_USER
from kilonova.virt.hardware import constraints, cpu_features, topology, tuning
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.base import Cpu, CpuTune, Domain, GuestCell, MemoryBacking, NumaTune
from kilonova.virt.parts.guests import NotOnThisHost


class MemoryConfigurator:
    """Writes the guest's memory into the domain XML: the flavor's amount, with large pages or locked if required."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the amount of memory in KiB, and whether it is locked, shared or in large pages.

        A guest with a realtime vCPU gets locked and unshared memory, so that the vCPU never waits for the host to read
        or copy memory. A guest with a vhost-user port gets shared memory, so that the switch can map it.
        """
        domain.memory_kib = guest.flavor.memory_mb * 1024
        cells = guest.topology.cells if guest.topology is not None else ()
        pages = {
            number: cell.pagesize
            for number, cell in enumerate(cells)
            if cell.pagesize is not None and cell.pagesize > guest.settings.small_page
        }
        realtime = bool(guest.realtime)
        locked = realtime or constraints.locked_memory(guest.extra_specs, guest.properties)
        mapped = any(vif.type == VHOST_USER for vif in guest.instance.vifs)
        if pages or locked or mapped:
            domain.memory_backing = MemoryBacking(pages, locked, unshared=realtime, mapped=mapped)


class CpuConfigurator:
    """Writes the guest's vCPUs into the domain XML: their number, topology and model.

    Each vCPU is a socket of its own unless flavor or image request another topology. Only QEMU guests get a model.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the <vcpu> and <cpu> elements.

        Raises NotOnThisHost if this host does not support the requested address width or CPU features.
        """
        settings, limits = guest.settings, topology.limits_of(guest.extra_specs, guest.properties)
        domain.vcpus = guest.flavor.vcpus
        threads = _threads(guest)
        layout = topology.choose(guest.flavor.vcpus, limits, threads)
        parts = {'sockets': layout.sockets, 'cores': layout.cores, 'threads': layout.threads}
        mode, addresses = settings.guest_cpu_mode, guest.tuning.address_space
        if addresses is not None and addresses.mode not in settings.address_spaces:
            raise NotOnThisHost(
                name='hw:maxphysaddr_mode',
                value=addresses.mode,
                reason=(
                    f'with [libvirt]cpu_mode {mode} the host accepts only '
                    f'{" or ".join(sorted(settings.address_spaces)) or "guests without this property"}'
                ),
            )
        if settings.domain_type not in ('kvm', 'qemu'):
            # libvirt's test driver has no CPU models, so it gets <cpu> only for a requested topology or address width.
            if limits.liked or threads is not None or addresses is not None:
                domain.cpu = Cpu(**parts, addresses=addresses)
            return
        if mode == 'none':
            domain.cpu = Cpu(**parts)
            return
        domain.cpu = Cpu(
            mode=mode,
            model=_model(guest) if mode == 'custom' else None,
            **parts,
            features=list(settings.cpu_flags),
            addresses=addresses,
        )


def _model(guest: GuestSpec) -> str:
    """Return the first CPU model of [libvirt]cpu_models that has all required CPU features.

    Flavor and image require features by traits such as trait:HW_CPU_X86_AVX2. A feature in
    [libvirt]cpu_model_extra_flags may be missing in the model, because the flag adds it to the guest's CPU. Raises
    NotOnThisHost if no model has all features.
    """
    settings = guest.settings
    needed = cpu_features.wanted(guest.required_traits) - {
        name for name, policy in settings.cpu_flags if policy == 'require'
    }
    for name, has in settings.cpu_models.items():
        if needed <= has:
            return name
    raise NotOnThisHost(
        name='trait:HW_CPU_*',
        value=', '.join(sorted(needed)),
        reason=(f'no model of [libvirt]cpu_models ({", ".join(settings.cpu_models)}) has all of these features'),
    )


def _threads(guest: GuestSpec) -> int | None:
    """Return the number of threads for each core of the guest: how many vCPUs are pinned to each host core.

    Return None if no two vCPUs are pinned to threads of one host core, or if the number differs between the guest's
    NUMA cells.
    """
    cells = guest.topology.cells if guest.topology is not None else ()
    found = {cell.cpu_topology.threads if cell.cpu_topology is not None else None for cell in cells}
    return found.pop() if len(found) == 1 else None


class PlaceConfigurator:
    """Writes into the domain XML which CPUs and which memory of the host a guest uses.

    A guest without NUMA cells runs on the CPUs of [compute]cpu_shared_set. A guest with NUMA cells sees these cells,
    and <cputune> and <numatune> bind each of them to a cell of the host. Each dedicated vCPU runs on its own host CPU,
    the other vCPUs on the shared CPUs of their host cell.

    The emulator threads run on the guest's host CPUs, but not on the CPUs of realtime vCPUs, where they would get no
    CPU time. With the policy isolate they run on CPUs of their own, and with share on the host's shared CPUs.
    """

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the CPU pins, the binding to host cells, and the NUMA cells that the guest sees.

        Raises NotOnThisHost if no host CPU is left for the emulator threads.
        """
        placed = guest.topology
        if placed is None:
            domain.cpuset = cpuset.text(guest.settings.shared_cpus) or None
            return
        cells = placed.cells
        pins = {vcpu: cpus for cell in cells for vcpu, cpus in _pins(guest, cell).items()}
        domain.cputune = CpuTune(
            {vcpu: cpuset.text(cpus) for vcpu, cpus in pins.items()},
            cpuset.text(_emulator(guest, placed, pins)),
            realtime=cpuset.text(guest.realtime) or None,
            priority=guest.settings.realtime_priority,
        )
        domain.numatune = NumaTune({number: cell.id for number, cell in enumerate(cells)})
        # All cells have the same page size. Memory in large pages is shared, so that a vhost-user switch can map it.
        size = cells[0].pagesize
        domain.cpu = domain.cpu or Cpu(sockets=guest.flavor.vcpus)
        domain.cpu.cells = [
            GuestCell(
                number,
                cpuset.text(cell.total_cpus),
                cell.memory * 1024,
                shared=size is not None and size > guest.settings.small_page,
            )
            for number, cell in enumerate(cells)
        ]


def _pins(guest: GuestSpec, cell: InstanceNUMACell) -> dict[int, set[int]]:
    """Return a dict from each vCPU of a NUMA cell to the host CPUs that the vCPU may run on."""
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
        # The emulator threads need a CPU, but all vCPUs are realtime and the host has no shared CPUs.
        raise NotOnThisHost(
            name='hw:emulator_threads_policy',
            value=policy,
            reason=(
                'all CPUs of the guest are realtime, so its emulator threads need [compute]cpu_shared_set, which is '
                'not '
                'set'
            ),
        )
    return found


class CpuQuotaConfigurator:
    """Writes the flavor's CPU limits into the domain XML: quota:cpu_shares, quota:cpu_period and quota:cpu_quota."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write the CPU limits into the <cputune> element.

        Raises NotOnThisHost if quota:cpu_shares is out of bounds for the host's version of control groups.
        """
        limits, version = guest.tuning.cpu, guest.settings.control_groups
        if limits:
            least, most = tuning.CPU_SHARES[version] if version is not None else tuning.CPU_LIMITS['shares']
            if 'shares' in limits and not least <= limits['shares'] <= most:
                raise NotOnThisHost(
                    name='quota:cpu_shares',
                    value=limits['shares'],
                    reason=(f'it must be from {least} to {most} (control groups of version {version})'),
                )
            domain.cputune = domain.cputune or CpuTune()
            domain.cputune.limits = limits
