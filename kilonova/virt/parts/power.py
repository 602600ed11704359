"""Protocols for the power state of guests, and for guests that are started from a rescue system."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kilonova import objects
from kilonova.virt.parts.disks import Check, ImageMeta


class Power(Protocol):
    """The power state of guests."""

    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Ask the guest to shut down, wait up to ``timeout`` seconds, and then switch it off.

        If ``timeout`` is 0, the guest is switched off at once. The request is sent again every ``retry_interval``
        seconds.
        """

    def define(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Replace the guest's domain by a new domain, built from these arguments. The guest is off afterwards."""

    def power_on(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Replace the guest's domain by a new domain, built from these arguments, and start the guest."""

    def reboot(
        self,
        instance: objects.Instance,
        reboot_type: str,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> None:
        """Reboot a guest and build its domain again.

        With ``reboot_type`` 'SOFT' the guest is asked to shut down, and is switched off only if it does not shut down.
        With 'HARD' it is switched off at once.
        """

    def pause(self, instance: objects.Instance) -> None:
        """Stop the guest's CPUs, but keep its memory and devices. Raises GuestFailed if the guest does not run."""

    def unpause(self, instance: objects.Instance) -> None:
        """Let a paused guest continue. Raises GuestFailed if the guest is off."""

    def suspend(self, instance: objects.Instance, check: Check) -> None:
        """Detach the host's devices from the running guest, save its memory, and stop it.

        The guest's definition still has the devices. The power state is SUSPENDED afterwards. Raises GuestFailed if the
        guest does not release a device or its memory cannot be saved, and whatever ``check()`` raises. After an error
        the guest continues to run with all its devices.
        """

    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], check: Check) -> None:
        """Start a suspended guest from its saved memory, and attach its devices again.

        Raises GuestFailed if there is no saved memory. Raises GuestFailed, too, if a device cannot be attached; the
        guest is then suspended again. Raises MdevUnavailable if a mediated device does not exist; the guest stays
        suspended.
        """

    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        """Send a non-maskable interrupt to the guest. Raises GuestFailed if it does not run."""


class Rescues(Protocol):
    """Guests that are started from a rescue system, so that their own system can be repaired.

    ``Power.power_on`` and ``reboot`` end a rescue: they start the guest from its own disk and delete the rescue
    system's files.
    """

    def rescue(
        self,
        instance: objects.Instance,
        image_meta: ImageMeta,
        image: ImageMeta | None,
        pci_devices: Iterable[objects.PciDevice],
        *,
        admin_password: str | None = None,
        timeout: int = 0,
        retry_interval: int = 0,
    ) -> None:
        """Stop a guest as ``Power.power_off`` does, and start it from ``image`` with its own disks attached.

        If ``image`` is None, the host's default rescue image is used, or the server's own image if the host has no
        default. If the image has hw_rescue_device or hw_rescue_bus, the rescue disk is the last disk and the other
        disks keep their names. Otherwise the rescue disk is the first disk. Raises the errors of ``Guests.spawn``.
        After an error the guest is unchanged.
        """

    def restart(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Start a rescued guest again from its rescue system.

        Raises GuestFailed with Cause.REQUEST if the rescue system does not exist any more.
        """
