"""Who has a host's devices besides the server that is to get them: other servers, domains of libvirt, starts under way.

    holders = Holders(driver, tracker, locks)
    holders.check(uuid, devices)      # before the guest of this server is built; DevicesFailed names the holder

The books of this host (``Tracker``) are right about its servers and the devices of ``[pci]device_spec``. They know
nothing of devices that Cyborg gave away, nor of domains that somebody else made.
"""
from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from kilonova import errors, objects
from kilonova.compute.keys import Locks
from kilonova.compute.tracker import Tracker
from kilonova.states import PowerState
from kilonova.virt.driver import ComputeDriver
from kilonova.virt.parts.guests import DomainInfo

# A domain in one of these power states uses no device; it takes its devices when it is started.
_OFF = frozenset((PowerState.SHUTDOWN, PowerState.CRASHED, PowerState.SUSPENDED))


class Holders:
    """The holders of one host's devices. ``locks``: the locks of servers; an operation holds that of its server."""

    def __init__(self, driver: ComputeDriver, tracker: Tracker, locks: Locks) -> None:
        self._driver, self._tracker, self._locks = driver, tracker, locks
        # {server: addresses that no other guest may have}, of starts under way: libvirt doesn't run their domains yet.
        self._starting: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def check(self, uuid: str, devices: Collection[objects.PciDevice]) -> None:
        """Compare what a server's guest will get with what all others of this host have.

        Raises DevicesFailed if somebody else has one of the devices, a card that one is a part of, or a part of one.
        The error names devices and holder. Costs one listing of libvirt's domains with the XML of each, and one look at
        each device; nothing for a server without devices.
        """
        if not devices:
            return
        related = self._driver.devices.related(devices)
        addresses = frozenset[str]().union(*related.values())
        self._begin(uuid, related, addresses)
        for domain in self._driver.guests.holding(sorted(addresses)):
            ours = bool(self._tracker.sides(domain['uuid']))
            if domain['uuid'] != uuid and (ours or PowerState(domain['state']) not in _OFF):
                raise _refused(related, domain['hostdevs'], _name(domain, ours))

    def _begin(self, uuid: str, related: Mapping[str, frozenset[str]], addresses: frozenset[str]) -> None:
        """Note that a server's guest is about to have devices, unless the books or another start have them."""
        with self._lock:
            for entry in self._tracker.host_devices.entries.values():
                if entry.held and entry.device.instance_uuid != uuid and entry.device.address in addresses:
                    raise _refused(related, [entry.device.address], f'server {entry.device.instance_uuid}')
            self._starting = {other: theirs for other, theirs in self._starting.items() if self._locks.is_held(other)}
            for other, theirs in self._starting.items():
                if other != uuid and (both := theirs.intersection(related)):
                    raise _refused(related, both, f'server {other}, which is being started,')
            self._starting[uuid] = addresses


def _name(domain: DomainInfo, ours: bool) -> str:
    """Return what an error calls the holder."""
    if ours:
        return f"server {domain['uuid']}"
    return f"domain '{domain['name']}' ({domain['uuid']}), which is no server of this host,"


def _refused(related: Mapping[str, frozenset[str]], held: Iterable[str], holder: str) -> errors.DevicesFailed:
    """Return the error for devices that can't be given to a guest as ``holder`` has the devices at ``held``."""
    taken = sorted(held)
    return errors.DevicesFailed(
        addresses=sorted(address for address, others in related.items() if not others.isdisjoint(taken)),
        reason=f'{holder} has {", ".join(taken)}')
