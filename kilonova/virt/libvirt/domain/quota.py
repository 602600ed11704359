"""How much of the host's CPUs the guest may take."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Domain
from kilonova.virt.libvirt.xml.numa import CpuTune


class CpuQuotaConfigurator:
    """The flavor's quota:cpu_shares, _period and _quota, beside the pins that the guest may have."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        limits = guest.tuning.cpu
        if limits:
            domain.cputune = domain.cputune or CpuTune()
            domain.cputune.limits = limits
