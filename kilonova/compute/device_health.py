"""Run the operator's commands for devices: one cleans a released device, one checks its health.

    care = DeviceHealth(host, book, get_admin_context, stopping)
    care.start()                          # at the start of the service: clean what an earlier process left
    care.look()                           # periodically: retry cleanings, check the health of free devices
    host.before_use(ctxt, devices)        # raises HostRejected if one of these devices is not healthy

A device that a server releases is marked as DIRTY in the same transaction, so it is not offered before the command has
succeeded. A device that is not healthy is marked as UNHEALTHY until an operator enables it.
"""

from __future__ import annotations

import shlex
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from oslo_config import cfg
from oslo_log import log as logging

from kilonova import concurrency, errors
from kilonova.compute.device_inventory import DeviceInventory
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.objects import PciDevice
from kilonova.pci.device import DIRTY, KIND_OF, MOST_REASON, UNHEALTHY, is_unavailable
from kilonova.virt import command

LOG = logging.getLogger(__name__)

# Maximum number of cleaning and health commands that run at the same time on one host.
AT_ONCE = 8
NOT_YET = 'it is not cleaned yet'


@dataclass(frozen=True)
class Program:
    """A command from the configuration, run for one device.

    The device's address and kind (pci, pf, vf, vdpa, mdev) are added as the command's last arguments. The command has
    failed unless it exits with 0 within ``timeout`` seconds.
    """

    option: str
    argv: tuple[str, ...]
    timeout: float

    @classmethod
    def of(cls, conf: cfg.ConfigOpts, option: str) -> Program | None:
        """Return the command of ``[devices]option``, or None if the option is empty.

        Raises Invalid if the command can't be run.
        """
        text = conf.devices[option]
        if not text.strip():
            return None
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise errors.Invalid(f'[devices]{option} = {text}: {error}') from error
        if shutil.which(argv[0], path=command.ENVIRONMENT['PATH']) is None:
            raise errors.Invalid(f'[devices]{option} = {text}: program {argv[0]} does not exist or is not executable')
        return cls(option, argv, conf.devices[f'{option}_timeout'])

    def failed(self, device: PciDevice, stopping: threading.Event) -> str | None:
        """Run the command for a device. Return None if it succeeds, otherwise why it failed, as a text for operators.

        The command is killed when this service stops.
        """
        end = time.monotonic() + self.timeout

        def check() -> None:
            if stopping.is_set() or time.monotonic() > end:
                raise errors.Unanswered(who=self.option, reason=f'the command did not end within {self.timeout:g} s')

        try:
            command.watched(check, *self.argv, device.address, KIND_OF[device.dev_type])
        except command.CommandFailed as error:
            said = f': {error.said}' if error.said else ''
            return _line(f'{self.option} ended with {error.exit_code}{said}')
        except errors.Unanswered:
            return f'{self.option} did not end within {self.timeout:g} s'
        return None


class DeviceHealth:
    """Cleaning and health checks for one host's devices.

    ``ctxt()`` returns a request context of the service itself. The constructor raises Invalid if a configured command
    can't be run.
    """

    def __init__(
        self, host: ComputeHost, book: DeviceInventory, ctxt: Callable[[], RequestContext], stopping: threading.Event
    ) -> None:
        self._host, self._book, self._ctxt, self._stopping = host, book, ctxt, stopping
        self._clean = Program.of(host.conf, 'clean_command')
        self._health = Program.of(host.conf, 'health_check')
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        # Addresses of devices that a thread cleans or waits to clean.
        self._cleaning: set[str] = set()
        self._lock = threading.Lock()
        if self._clean is not None:
            book.leave = self._leave
        if self._health is not None:
            host.before_use = self._before_use

    @property
    def has_commands(self) -> bool:
        """True if a cleaning or health command is configured. Otherwise ``look`` need not be called."""
        return self._clean is not None or self._health is not None

    def start(self) -> None:
        """Clean the devices that are marked as dirty since an earlier process of this service.

        If no cleaning command is configured any more, offer these devices without cleaning them.
        """
        dirty = [device.address for device in self._free() if DIRTY in device.extra_info]
        if not dirty:
            return
        if self._clean is None:
            LOG.warning(
                '[devices]clean_command is no longer set: offering devices %s without cleaning them', ', '.join(dirty)
            )
            self._book.bar(self._ctxt(), {address: {DIRTY: None} for address in dirty})
        else:
            self._clean_all()

    def look(self) -> None:
        """Clean devices again if their cleaning failed, and check the health of devices that no server holds."""
        if self._clean is not None:
            self._clean_all()
        if self._health is not None:
            self._check(self._ctxt(), [device for device in self._free() if not is_unavailable(device)])

    def _free(self) -> list[PciDevice]:
        """Return the devices of this host that no server holds."""
        devices = self._host.tracker.host_devices
        held = {device.address for device in devices.held()}
        return [device for device in devices.all() if device.address not in held]

    # -- cleaning of released devices ----------------------------------------------------------------------------------
    def _leave(self, addresses: Collection[str]) -> dict[str, dict[str, str | None]]:
        """Start a thread that cleans devices once they are free, and return the reason DIRTY for each device.

        The result is {address: {DIRTY: text}}, which the caller writes to the devices' rows. Called just before the
        devices are freed, by a thread that holds ``Tracker.writing``.
        """
        concurrency.spawn(self._clean_after, name='clean devices')
        return {address: {DIRTY: NOT_YET} for address in addresses}

    def _clean_after(self) -> None:
        # Wait until the devices are free: the thread that frees them holds the lock ``Tracker.writing`` until then.
        with self._host.tracker.writing(self._ctxt()):
            pass
        self._clean_all()

    def _clean_all(self) -> None:
        with self._lock:
            dirty = [
                device for device in self._free() if DIRTY in device.extra_info and device.address not in self._cleaning
            ]
            self._cleaning.update(device.address for device in dirty)
        for device in dirty:
            concurrency.spawn(self._clean_one, device, name=f'clean {device.address}')

    def _clean_one(self, device: PciDevice) -> None:
        assert self._clean is not None
        try:
            with self._slots:
                why = self._clean.failed(device, self._stopping)
            if self._stopping.is_set():
                # The service is stopping and its command was killed, so the next process cleans the device again.
                return
            if why is not None:
                LOG.error(
                    'Cleaning of device %s failed; it stays unavailable and is retried in the next cycle: %s',
                    device.address,
                    why,
                )
            self._book.bar(self._ctxt(), {device.address: {DIRTY: why}})
        except Exception:
            LOG.exception('Cleaning of device %s failed; it is retried in the next cycle', device.address)
        finally:
            with self._lock:
                self._cleaning.discard(device.address)

    # -- checks of the devices' health ---------------------------------------------------------------------------------
    def why_unhealthy(self, device: PciDevice) -> str | None:
        """Run ``[devices]health_check`` for a device. Return the reason if it fails.

        Return None if the device is healthy, or if no command is configured.
        """
        if self._health is None:
            return None
        with self._slots:
            return self._health.failed(device, self._stopping)

    def _before_use(self, ctxt: RequestContext, devices: list[PciDevice]) -> None:
        """Check the health of devices that were claimed for a server.

        Raises HostRejected if one of them is not healthy.
        """
        failed = self._check(ctxt, devices)
        if failed:
            raise errors.HostRejected(
                reason='; '.join(f'Device {address} is unhealthy: {why}' for address, why in sorted(failed.items()))
            )

    def _check(self, ctxt: RequestContext, devices: Iterable[PciDevice]) -> dict[str, str]:
        """Check devices in parallel, mark the unhealthy ones, and return a dict from their addresses to the reasons."""
        assert self._health is not None
        health, failed = self._health, dict[str, str]()

        def check(device: PciDevice) -> None:
            with self._slots:
                why = health.failed(device, self._stopping)
            if why is not None and not self._stopping.is_set():
                failed[device.address] = why

        threads = [concurrency.spawn(check, device, name=f'health of {device.address}') for device in devices]
        for thread in threads:
            thread.join()
        for address, why in failed.items():
            LOG.error('Device %s is unhealthy and is not offered to servers: %s', address, why)
        if failed:
            self._book.bar(ctxt, {address: {UNHEALTHY: why} for address, why in failed.items()})
        return failed


def _line(text: str) -> str:
    """Return the text as one printable line, shortened to the maximum length of a reason."""
    words = ' '.join(text.split())
    return errors.shortened(''.join(letter for letter in words if letter.isprintable()), MOST_REASON)
