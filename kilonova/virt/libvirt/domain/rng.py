"""Random numbers from the host."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import Rng
from kilonova.virt.libvirt.xml.domain import Domain


class RngConfigurator:
    """A virtio device, unless the host has no source or the flavor forbids it (hw_rng:allowed)."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        specs, source = guest.extra_specs, guest.settings.rng_source
        if not source or not guest.settings.is_qemu or not strutils.bool_from_string(
                specs.get('hw_rng:allowed', 'true'), default=True):
            return
        rate = None
        if 'hw_rng:rate_bytes' in specs:
            period = specs.get('hw_rng:rate_period')
            rate = (int(specs['hw_rng:rate_bytes']), int(period) if period else None)
        domain.devices.append(Rng(source, rate))
