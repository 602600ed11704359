"""Build a domain from a GuestSpec with the configurators, in the order in which they are listed.

    xml = build(spec).to_xml()

Each configurator writes one part of the domain in its method ``configure(guest, domain)``. If the guest needs nothing
of this part, the configurator leaves the domain unchanged.
"""

from __future__ import annotations

from typing import Protocol

from kilonova.virt.libvirt.domain import board, cpu, devices, disk, interface
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.base import Domain


class Configurator(Protocol):
    """A configurator, which writes one part of a domain."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write one part of ``domain`` from the data in ``guest``."""


# Configurators of the parts that depend on the host that the guest runs on.
PLACE: tuple[Configurator, ...] = (cpu.PlaceConfigurator(), cpu.CpuQuotaConfigurator())
# Configurators of the parts that flavor and image determine, whatever disks, ports and devices the guest has.
ASKED: tuple[Configurator, ...] = (
    cpu.MemoryConfigurator(),
    cpu.CpuConfigurator(),
    *PLACE,
    board.OsConfigurator(),
    board.FeaturesConfigurator(),
    devices.VideoConfigurator(),
    devices.SoundConfigurator(),
    devices.ControllerConfigurator(),
    devices.IommuConfigurator(),
)
CONFIGURATORS: tuple[Configurator, ...] = (
    cpu.MemoryConfigurator(),
    cpu.CpuConfigurator(),
    *PLACE,
    board.MetadataConfigurator(),
    board.SysinfoConfigurator(),
    board.OsConfigurator(),
    board.FeaturesConfigurator(),
    board.ClockConfigurator(),
    # The device configurators begin here, in the order in which devices are written.
    disk.DiskConfigurator(),
    interface.InterfaceConfigurator(),
    devices.SerialConfigurator(),
    devices.GraphicsConfigurator(),
    devices.VideoConfigurator(),
    devices.InputConfigurator(),
    devices.AgentConfigurator(),
    devices.RngConfigurator(),
    devices.SoundConfigurator(),
    devices.ControllerConfigurator(),
    devices.HostdevConfigurator(),
    devices.WatchdogConfigurator(),
    devices.BalloonConfigurator(),
    devices.IommuConfigurator(),
)


def build(guest: GuestSpec, configurators: tuple[Configurator, ...] = CONFIGURATORS) -> Domain:
    """Return the domain of ``guest``, written by the configurators."""
    domain = Domain(type=guest.settings.domain_type, uuid=guest.instance.uuid, name=guest.name)
    for configurator in configurators:
        configurator.configure(guest, domain)
    return domain
