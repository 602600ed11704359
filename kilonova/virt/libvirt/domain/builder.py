"""From a GuestSpec to a domain: the configurators, in the order in which they work.

    xml = build(spec).to_xml()

Each configurator has one subject and one method, ``configure(guest, domain)``; where nothing of its subject
was asked for, the domain stays as it was.
"""
from __future__ import annotations

from typing import Protocol

from kilonova.virt.libvirt.domain import board, cpu, devices, disk, interface
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml import Domain


class Configurator(Protocol):
    """One subject of a domain."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write what ``guest`` asks of this subject into ``domain``."""


# What depends on the host that the guest runs on, not on the guest.
PLACE: tuple[Configurator, ...] = (cpu.PlaceConfigurator(), cpu.CpuQuotaConfigurator())
# What flavor and image ask for, whatever disks, ports and devices the guest has.
ASKED: tuple[Configurator, ...] = (
    cpu.MemoryConfigurator(), cpu.CpuConfigurator(), *PLACE, board.OsConfigurator(), board.FeaturesConfigurator(),
    devices.VideoConfigurator(), devices.SoundConfigurator(), devices.ControllerConfigurator(),
    devices.IommuConfigurator())
CONFIGURATORS: tuple[Configurator, ...] = (
    cpu.MemoryConfigurator(),
    cpu.CpuConfigurator(),
    *PLACE,
    board.MetadataConfigurator(),
    board.SysinfoConfigurator(),
    board.OsConfigurator(),
    board.FeaturesConfigurator(),
    board.ClockConfigurator(),
    # Devices from here on, in the order in which they are written.
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
    """The domain of ``guest``."""
    domain = Domain(type=guest.settings.domain_type, uuid=guest.instance.uuid, name=guest.name)
    for configurator in configurators:
        configurator.configure(guest, domain)
    return domain
