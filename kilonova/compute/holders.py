"""Find out whether devices for a server's guest are held by another server, libvirt domain or starting guest.

    holders = Holders(driver, tracker, locks)
    holders.check(uuid, devices)      # before this server's guest is built; DevicesFailed names the holder

The tracker of this host knows its servers and the devices of ``[pci]device_spec``. It does not know devices that Cyborg
assigned, nor domains that were created outside Kilonova.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from kilonova import errors, objects
from kilonova.compute.keys import NamedLocks
from kilonova.compute.tracker import Tracker
from kilonova.states import PowerState
from kilonova.virt.driver import ComputeDriver
from kilonova.virt.parts.guests import DomainInfo

# A domain in one of these power states uses no device. It takes its devices when it is started.
_OFF = frozenset((PowerState.SHUTDOWN, PowerState.CRASHED, PowerState.SUSPENDED))


class Holders:
    """The servers and domains that hold one host's devices.

    ``locks`` are the locks of servers; an operation holds the lock of its server.
    """

    def __init__(self, driver: ComputeDriver, tracker: Tracker, locks: NamedLocks) -> None:
        self._driver, self._tracker, self._locks = driver, tracker, locks
        # Guests that are being started: {server uuid: PCI addresses that no other guest may get during the start}.
        self._starting: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def check(self, uuid: str, devices: Collection[objects.PciDevice]) -> None:
        """Check that no other guest of this host has the devices that a server's guest will get.

        Raises DevicesFailed, which names devices and holder, if another guest has one of the devices or a function
        related to it (``driver.devices.related``: its parent, its parts, its IOMMU group). The check lists libvirt's
        domains once, reads the XML of each domain, and looks up each device. It does nothing for a server without
        devices.
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
        """Record that a server's guest is about to get devices.

        ``related`` is {address of a wanted device: addresses of the device, its parent, its parts and its IOMMU group}.
        ``addresses`` are all these addresses. Raises DevicesFailed if another server holds one of them, or if another
        guest that is being started has one of the wanted devices.
        """
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
    """Return the name of a domain that holds devices, for an error's text. ``ours`` is True for a server's domain."""
    if ours:
        return f'server {domain["uuid"]}'
    return f"domain '{domain['name']}' ({domain['uuid']}), which is no server of this host,"


def _refused(related: Mapping[str, frozenset[str]], held: Iterable[str], holder: str) -> errors.DevicesFailed:
    """Return the error for devices that a guest can't get, because ``holder`` has them or devices related to them.

    ``related`` is {address of a wanted device: addresses of the device, its parent, its parts and its IOMMU group}.
    ``held`` are the addresses that ``holder`` has. ``holder`` is a text such as 'server UUID'.
    """
    taken = sorted(held)
    return errors.DevicesFailed(
        addresses=sorted(address for address, others in related.items() if not others.isdisjoint(taken)),
        reason=f'{holder} has {", ".join(taken)}',
    )
