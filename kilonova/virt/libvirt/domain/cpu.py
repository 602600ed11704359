"""How many CPUs the guest has, and which CPU it sees (libvirt.md §2)."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Cpu, Domain


class CpuConfigurator:
    """The flavor's vCPUs as sockets of one core; the model only where QEMU runs the guest."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        settings = guest.settings
        domain.vcpus = guest.flavor.vcpus
        if settings.domain_type not in ('kvm', 'qemu'):
            return      # libvirt's test driver has no CPU models
        mode = settings.cpu_mode or ('host-passthrough' if settings.arch == 'aarch64' else 'host-model')
        if mode == 'none':
            domain.cpu = Cpu(sockets=guest.flavor.vcpus)
            return
        domain.cpu = Cpu(mode=mode, model=settings.cpu_model if mode == 'custom' else None,
                         sockets=guest.flavor.vcpus, features=list(settings.cpu_flags))
