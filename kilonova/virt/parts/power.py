"""The power of guests, and guests that start from another system to be repaired."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from kilonova import objects
from kilonova.virt.parts.disks import Check, ImageMeta


class Power(Protocol):
    """A guest's power."""

    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Ask the guest to shut down for ``timeout`` seconds (0: don't ask), then cut the power.

        The request is sent again each ``retry_interval`` seconds.
        """

    def define(self, instance: objects.Instance, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice]) -> None:
        """Build the domain afresh from what is given, and leave it off."""

    def power_on(self, instance: objects.Instance, image_meta: ImageMeta,
                 pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        """Build the domain afresh from what is given, and start it."""

    def reboot(self, instance: objects.Instance, reboot_type: str, image_meta: ImageMeta,
               pci_devices: Iterable[objects.PciDevice] = ()) -> None:
        """'SOFT': let the guest shut down and start it again, turning to HARD when it doesn't go;
        'HARD': cut, build the domain afresh, start."""

    def pause(self, instance: objects.Instance) -> None:
        """Stop its CPUs; memory and devices stay. GuestFailed when it doesn't run."""

    def unpause(self, instance: objects.Instance) -> None:
        """Let a paused guest go on. GuestFailed when it is off."""

    def suspend(self, instance: objects.Instance, check: Check) -> None:
        """Take the host's devices out of the running guest, save its memory, and stop it.

        What a guest has afterwards is its definition, with the devices in it, and the power state SUSPENDED. When the
        guest doesn't give a device up, or its memory can't be saved, it goes on with all it had: GuestFailed, or what
        ``check`` raised.
        """

    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], check: Check) -> None:
        """Start a suspended guest from its saved memory, and put the devices back into it.

        GuestFailed when nothing was saved, or when a device can't be put back: then it is suspended again, and so it
        stays for MdevUnavailable.
        """

    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        """Send it a non-maskable interrupt. GuestFailed when it doesn't run."""


class Rescues(Protocol):
    """Guests that start from another system, so that somebody can repair their own. ``Power.power_on`` and ``reboot``
    end that: they start a server's own disk, and the other system's files go."""

    def rescue(self, instance: objects.Instance, image_meta: ImageMeta, image: ImageMeta | None,
               pci_devices: Iterable[objects.PciDevice], *, admin_password: str | None = None, timeout: int = 0,
               retry_interval: int = 0) -> None:
        """Stop it as ``Power.power_off`` does, and start it from ``image`` (None: the host's default, else its own)
        with its disks beside.

        An image with hw_rescue_device or hw_rescue_bus comes last and the disks keep their names, any other is the
        first disk. Errors: as ``Guests.spawn`` has them; the guest is as it was then.
        """

    def restart(self, instance: objects.Instance, image_meta: ImageMeta,
                pci_devices: Iterable[objects.PciDevice]) -> None:
        """Start a rescued guest again from the system that it had.

        Raises GuestFailed, of Cause.REQUEST, if that system is gone.
        """
