"""Build a guest's domain XML from a GuestSpec.

    xml = build(spec).to_xml()

A list of classes, the configurators, write the domain one after the other. Each of them writes one part of the domain,
for example the disks, in its method ``configure(guest, domain)``. It writes nothing if the guest does not need the
part.
"""

from __future__ import annotations

from typing import Protocol

from kilonova.virt.libvirt.domain import board, cpu, devices, disk, interface
from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.base import Domain


class Configurator(Protocol):
    """A class that writes one part of a guest's domain XML, for example the disks."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        """Write one part of ``domain`` from the data in ``guest``."""


# The configurators that write which CPUs and which memory of the host the guest uses.
PLACE: tuple[Configurator, ...] = (cpu.PlaceConfigurator(), cpu.CpuQuotaConfigurator())
# The configurators that write the parts of the XML which do not depend on the guest's disks, ports and devices.
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
    # All following configurators write devices. The order here is the order of the devices in the XML.
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
    """Return the domain of ``guest``, written by the given configurators one after the other."""
    domain = Domain(type=guest.settings.domain_type, uuid=guest.instance.uuid, name=guest.name)
    for configurator in configurators:
        configurator.configure(guest, domain)
    return domain
