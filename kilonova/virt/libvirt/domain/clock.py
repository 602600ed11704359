"""The guest's clock and its timers."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.domain import Clock, Domain, Timer


class ClockConfigurator:
    """UTC (Windows: local time); the timers that keep a kvm guest's time right."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        clock = Clock('localtime' if guest.is_windows else 'utc')
        if guest.settings.virt_type == 'kvm':
            clock.timers += [Timer('pit', tickpolicy='delay'), Timer('rtc', tickpolicy='catchup')]
            if guest.settings.arch in ('x86_64', 'i686'):
                hpet = strutils.bool_from_string(guest.image_property('hw_time_hpet'))
                clock.timers.append(Timer('hpet', present='yes' if hpet else 'no'))
            if guest.is_windows:
                clock.timers.append(Timer('hypervclock', present='yes'))
        domain.clock = clock
