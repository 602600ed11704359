"""Start, stop, pause, suspend and rescue fake guests. Tests use this part of the fake driver."""

from __future__ import annotations

from collections.abc import Iterable

from kilonova import objects
from kilonova.errors import Cause
from kilonova.states import PowerState
from kilonova.virt.fakes.state import FakePart, scripted
from kilonova.virt.parts.disks import Check, ImageMeta
from kilonova.virt.parts.guests import GuestFailed


class FakePower(FakePart):
    """Fake of ``parts.power.Power``."""

    @scripted
    def power_off(self, instance: objects.Instance, timeout: int = 0, retry_interval: int = 0) -> None:
        """Set the guest's power state to SHUTDOWN."""
        self.fake.stop(instance)

    @scripted
    def define(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Replace the guest's domain by a new domain in power state SHUTDOWN."""
        self.fake.define(instance, pci_devices, False)

    @scripted
    def power_on(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice] = ()
    ) -> None:
        """Replace the guest's domain by a new domain in power state RUNNING."""
        self.fake.start(instance, pci_devices)

    @scripted
    def reboot(
        self,
        instance: objects.Instance,
        reboot_type: str,
        image_meta: ImageMeta,
        pci_devices: Iterable[objects.PciDevice] = (),
    ) -> None:
        """Replace the guest's domain by a new domain in power state RUNNING."""
        self.fake.start(instance, pci_devices)

    @scripted
    def pause(self, instance: objects.Instance) -> None:
        """Change a running guest to PAUSED. Raises GuestFailed in other states."""
        self._move(instance, 'pause', PowerState.PAUSED, PowerState.RUNNING)

    @scripted
    def unpause(self, instance: objects.Instance) -> None:
        """Change a paused guest to RUNNING. Raises GuestFailed in other states."""
        self._move(instance, 'unpause', PowerState.RUNNING, PowerState.PAUSED)

    @scripted
    def suspend(self, instance: objects.Instance, check: Check) -> None:
        """Change a running or paused guest to SUSPENDED. Raises GuestFailed in other states."""
        check()
        self._move(instance, 'suspend', PowerState.SUSPENDED, PowerState.RUNNING, PowerState.PAUSED)

    @scripted
    def resume(self, instance: objects.Instance, pci_devices: Iterable[objects.PciDevice], check: Check) -> None:
        """Change a suspended guest to RUNNING, with these devices. Raises GuestFailed in other states."""
        self.fake.prepare(pci_devices)
        self._move(instance, 'resume', PowerState.RUNNING, PowerState.SUSPENDED)

    @scripted
    def trigger_crash_dump(self, instance: objects.Instance) -> None:
        """Check only that the guest runs or is paused. Raises GuestFailed in other states."""
        self._move(instance, 'interrupt', None, PowerState.RUNNING, PowerState.PAUSED)

    def _move(self, instance: objects.Instance, act: str, after: PowerState | None, *before: PowerState) -> None:
        domain = self.fake.domains.get(instance.uuid)
        if domain is None or domain.state not in (after, *before):
            raise GuestFailed(act=act, uuid=instance.uuid, reason='its state does not allow it')
        if after is not None:
            domain.state = after


class FakeRescues(FakePart):
    """Fake of ``parts.power.Rescues``."""

    @scripted
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
        """Replace the guest's domain by a new domain in power state RUNNING, and mark the guest as rescued."""
        self.fake.start(instance, pci_devices)
        self.fake.rescued.add(instance.uuid)

    @scripted
    def restart(
        self, instance: objects.Instance, image_meta: ImageMeta, pci_devices: Iterable[objects.PciDevice]
    ) -> None:
        """Replace the domain of a rescued guest by a new domain in power state RUNNING.

        Raises GuestFailed if the guest is not rescued.
        """
        if instance.uuid not in self.fake.rescued:
            raise GuestFailed(act='restart', uuid=instance.uuid, cause=Cause.REQUEST, reason='the guest is not rescued')
        self.fake.start(instance, pci_devices)
        self.fake.rescued.add(instance.uuid)
