"""From a GuestSpec to a domain: the configurators, in the order in which they work.

    xml = build(spec).to_xml()

Each configurator has one subject and one method, ``configure(guest, domain)``; where nothing of its subject
was asked for, the domain stays as it was.
"""
from __future__ import annotations

from typing import Protocol

from kilonova.virt.libvirt.domain.agent import AgentConfigurator
from kilonova.virt.libvirt.domain.balloon import BalloonConfigurator
from kilonova.virt.libvirt.domain.clock import ClockConfigurator
from kilonova.virt.libvirt.domain.controller import ControllerConfigurator
from kilonova.virt.libvirt.domain.cpu import CpuConfigurator
from kilonova.virt.libvirt.domain.disk import DiskConfigurator
from kilonova.virt.libvirt.domain.features import FeaturesConfigurator
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.domain.hostdev import HostdevConfigurator
from kilonova.virt.libvirt.domain.memory import MemoryConfigurator
from kilonova.virt.libvirt.domain.metadata import MetadataConfigurator
from kilonova.virt.libvirt.domain.numa import NumaConfigurator
from kilonova.virt.libvirt.domain.os import OsConfigurator
from kilonova.virt.libvirt.domain.quota import CpuQuotaConfigurator
from kilonova.virt.libvirt.domain.rng import RngConfigurator
from kilonova.virt.libvirt.domain.serial import SerialConfigurator
from kilonova.virt.libvirt.domain.sysinfo import SysinfoConfigurator
from kilonova.virt.libvirt.domain.video import VideoConfigurator
from kilonova.virt.libvirt.domain.watchdog import WatchdogConfigurator
from kilonova.virt.libvirt.xml.domain import Domain


class Configurator(Protocol):
    """One subject of a domain."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write what ``guest`` asks of this subject into ``domain``."""


CONFIGURATORS: tuple[Configurator, ...] = (
    MemoryConfigurator(),
    CpuConfigurator(),
    NumaConfigurator(),
    CpuQuotaConfigurator(),
    MetadataConfigurator(),
    SysinfoConfigurator(),
    OsConfigurator(),
    FeaturesConfigurator(),
    ClockConfigurator(),
    # Devices from here on, in the order in which they are written.
    DiskConfigurator(),
    SerialConfigurator(),
    VideoConfigurator(),
    AgentConfigurator(),
    RngConfigurator(),
    ControllerConfigurator(),
    HostdevConfigurator(),
    WatchdogConfigurator(),
    BalloonConfigurator(),
)


def build(guest: GuestSpec, configurators: tuple[Configurator, ...] = CONFIGURATORS) -> Domain:
    """The domain of ``guest``."""
    domain = Domain(type=guest.settings.domain_type, uuid=guest.instance.uuid, name=guest.name)
    for configurator in configurators:
        configurator.configure(guest, domain)
    return domain
