"""The port of the agent in the guest."""
from __future__ import annotations

from oslo_utils import strutils

from kilonova.virt.libvirt.domain.guest import GuestSpec
from kilonova.virt.libvirt.xml.devices import AgentChannel
from kilonova.virt.libvirt.xml.domain import Domain


class AgentConfigurator:
    """Where the image says hw_qemu_guest_agent: libvirt asks the agent, if it answers, to shut the guest down."""

    def configure(self, guest: GuestSpec, domain: Domain) -> None:
        if guest.settings.is_qemu and strutils.bool_from_string(guest.image_property('hw_qemu_guest_agent')):
            domain.devices.append(AgentChannel())
