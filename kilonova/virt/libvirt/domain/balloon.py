"""The memory balloon and its statistics."""
from __future__ import annotations

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import MemoryBalloon
from kilonova.virt.libvirt.xml.domain import Domain


class BalloonConfigurator:
    """virtio with statistics; none where [libvirt]mem_stats_period_seconds is 0."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.settings.is_qemu:
            period = guest.settings.memory_stats_period
            domain.devices.append(MemoryBalloon(period if period > 0 else None))
