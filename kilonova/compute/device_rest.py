"""Make a device unavailable after a guest could not be started with it, until a check of the device succeeds.

    rest = DeviceRest(host, book, care.why_unhealthy, get_admin_context)
    host.devices_failed(ctxt, uuid, error)      # after an operation failed; only errors that name devices count
    host.devices_used(ctxt, uuid)               # after an operation of this server succeeded
    rest.look()                                 # periodically: check the devices whose waiting time is over

A device that failed is marked as FAILED for a waiting time. The first waiting time is ``[devices]failed_rest``, and it
doubles with each failure. When the time is over, the device is checked, and it is offered again if the check succeeds.
The device's row stores the number of failures and the end of the waiting time, so a restart of the service keeps these
values. They are deleted when a guest runs with the device.
"""

from __future__ import annotations

import datetime
import textwrap
import time
import weakref
from collections.abc import Callable, Mapping

from oslo_log import log as logging

from kilonova import errors
from kilonova.compute.device_inventory import DeviceInventory
from kilonova.compute.host import ComputeHost
from kilonova.context import RequestContext
from kilonova.objects import PciDevice
from kilonova.pci.device import FAILED, FAILED_KEYS, FAILED_TIMES, FAILED_UNTIL, MOST_REASON
from kilonova.states import PowerState
from kilonova.virt.parts.host import MdevUnavailable

LOG = logging.getLogger(__name__)

_GONE = 'its host no longer has it'
# The waiting time is doubled at most 40 times, so that 2 ** n stays small. ``failed_rest_max`` limits it earlier.
_MOST_DOUBLINGS = 40


class DeviceRest:
    """Keeps failed devices of one host unavailable for a waiting time, and then checks them.

    ``health(device)`` runs the operator's check and returns why the device is not healthy, or None. ``clock`` returns
    seconds since 1970.
    """

    def __init__(
        self,
        host: ComputeHost,
        book: DeviceInventory,
        health: Callable[[PciDevice], str | None],
        ctxt: Callable[[], RequestContext],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host, self._book, self._health, self._ctxt, self.clock = host, book, health, ctxt, clock
        self._first, self._most = host.conf.devices.failed_rest, host.conf.devices.failed_rest_max
        # Errors whose devices were marked. Several callers may pass one error to ``failed``, which must count it once.
        self._seen: weakref.WeakSet[BaseException] = weakref.WeakSet()
        host.devices_failed, host.devices_used = self.failed, self.used

    def failed(self, ctxt: RequestContext, uuid: str, error: BaseException) -> None:
        """Mark the devices that are named in ``error`` or in one of its causes as failed.

        ``uuid`` is the server that was to get the devices. No server gets a failed device during a waiting time, after
        which the device is checked. Three kinds of named devices are not changed: devices that another server holds,
        devices that this host does not manage, and devices whose waiting time is not over. Never raises an error,
        because the caller is handling ``error``.
        """
        found = _devices_of(error)
        if found is None or found[0] in self._seen or not self._first:
            return
        self._seen.add(found[0])
        entries = self._host.tracker.host_devices.entries
        named = [entries[address].device for address in found[1] if address in entries]
        failed = {
            device.address: found[2]
            for device in named
            if device.instance_uuid in (None, uuid) and not self._rests(device)
        }
        try:
            if failed:
                self._rest(ctxt, failed)
        except Exception:
            LOG.exception(
                'Could not write the rows of failed devices %s; they may be offered to servers again',
                ', '.join(sorted(failed)),
            )

    def used(self, ctxt: RequestContext, uuid: str) -> None:
        """Forget the recorded failures of the devices with which this server's guest now runs.

        Makes a call to libvirt only if one of the server's devices has recorded failures. Never raises an error.
        """
        flagged = [
            address
            for address, entry in self._host.tracker.host_devices.entries.items()
            if FAILED_TIMES in entry.device.extra_info and entry.device.instance_uuid == uuid
        ]
        if not flagged:
            return
        try:
            domains = self._host.driver.guests.holding(flagged)
            runs = [
                address
                for domain in domains
                if (domain['uuid'], domain['state']) == (uuid, PowerState.RUNNING)
                for address in domain['hostdevs']
            ]
            if runs:
                LOG.info('Device %s works again', ', '.join(runs), instance_uuid=uuid)
                self._book.bar(ctxt, {address: dict.fromkeys(FAILED_KEYS) for address in runs})
        except Exception:
            LOG.exception('Could not clear the failure marks of devices %s', ', '.join(flagged), instance_uuid=uuid)

    def look(self) -> None:
        """Check the failed devices whose waiting time is over.

        Devices that pass the check are offered again. Devices that fail it stay unavailable and get a longer time.
        """
        for address, entry in self._host.tracker.host_devices.entries.items():
            if FAILED not in entry.device.extra_info or self._rests(entry.device):
                continue
            try:
                self._look(address)
            except Exception:
                LOG.exception(
                    'Check of failed device %s did not complete; it is retried at the next periodic check', address
                )

    def _rests(self, device: PciDevice) -> bool:
        """Return whether a device has failed and its waiting time is not over yet."""
        info = device.extra_info
        return FAILED in info and float(info.get(FAILED_UNTIL, 0)) > self.clock()

    def _look(self, address: str) -> None:
        entry, ctxt = self._host.tracker.host_devices.entries[address], self._ctxt()
        why = None if entry.removed else self._why(entry.device, entry.held)
        if why is not None:
            self._rest(ctxt, {address: why})
            return
        if not entry.removed:
            LOG.info('Device %s passed its check and is offered again', address)
        # The device passed its check: remove its marks FAILED and FAILED_UNTIL, but keep its number of failures.
        # If the device has left the host, remove also its number of failures: its row is needed only for these marks.
        names = FAILED_KEYS if entry.removed else (FAILED, FAILED_UNTIL)
        self._book.bar(ctxt, {address: dict.fromkeys(names)})

    def _why(self, device: PciDevice, held: bool) -> str | None:
        """Return the reason why a failed device still can't be used, or None if it can be used.

        ``held`` is True if a server holds the device. In this case the operator's health check is not run.
        """
        if self._host.driver.devices.missing_devices([device]):
            return _GONE
        unusable: str | None = self._host.driver.devices.unusable([device]).get(device.address)
        if unusable is not None:
            return unusable
        try:
            self._host.holders.check(device.instance_uuid or '', [device])
        except errors.DevicesFailed as error:
            return error.reason
        return None if held else self._health(device)

    def _rest(self, ctxt: RequestContext, failed: Mapping[str, str]) -> None:
        """Mark devices as failed. Each device gets a waiting time that is twice as long as its last one.

        ``failed`` is a dict from address to reason.
        """
        reasons = {}
        for address, why in failed.items():
            times = int(self._host.tracker.host_devices.entries[address].device.extra_info.get(FAILED_TIMES, 0)) + 1
            until = self.clock() + min(self._most, self._first * 2 ** min(times - 1, _MOST_DOUBLINGS))
            text = _text(why, times, until)
            LOG.error('Device %s is not offered to servers: %s', address, text)
            reasons[address] = {FAILED: text, FAILED_TIMES: str(times), FAILED_UNTIL: str(int(until))}
        self._book.bar(ctxt, reasons)


def _text(why: str, times: int, until: float) -> str:
    """Return a text for operators: why a device failed, how many times, and when it is checked next.

    ``why`` is shortened between words if the text would be too long. ``until`` is in seconds since 1970.
    """
    moment = datetime.datetime.fromtimestamp(until, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
    end = f'; failure {times}, checked again after {moment}'
    words = ''.join(letter if letter.isprintable() else ' ' for letter in why)
    return textwrap.shorten(words, MOST_REASON - len(end), placeholder=' …') + end


def _devices_of(error: BaseException) -> tuple[BaseException, list[str], str] | None:
    """Return the error that names failed devices, with the devices' addresses and the reason of the failure.

    It is ``error`` itself or one of its causes. Return None if none of these names devices.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    # The causes may form a circle, because an error that is raised again may become a cause of its own cause.
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, errors.DevicesFailed):
            return one, list(one.addresses), one.reason
        if isinstance(one, errors.DevicesMissing):
            return one, str(one.fields.get('addresses', '')).split(', '), _GONE
        if isinstance(one, MdevUnavailable):
            return one, [str(one.fields.get('uuid'))], str(one.fields.get('reason') or 'it cannot be created')
        one = one.__cause__
    return None
