"""Write the devices of a host to the database and to Placement, including devices that are not available now.

    book = DeviceInventory(host, placement, get_admin_context)
    with tracker.writing(ctxt):
        book.save(ctxt, tracker.host_devices.looked(found))       # rows first: only a device with a row can be claimed
    providers = book.report(ctxt, inventory, refresh=True)        # then Placement offers them

``node``, ``device_health``, ``device_rest`` and ``mdev_types`` use it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import os_traits
from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.clients.placement import PlacementClient
from kilonova.compute import records
from kilonova.compute.host import ComputeHost
from kilonova.compute.tracker import NodeUsage
from kilonova.context import RequestContext
from kilonova.objects import PciDevice
from kilonova.pci import placement as pci_placement
from kilonova.pci.device import DISABLED, FAILED_KEYS, UNHEALTHY, checked_reason, is_unavailable, unavailable_reasons
from kilonova.pci.devices import NodeDevices
from kilonova.virt.inventory import RATIOS

LOG = logging.getLogger(__name__)

# Keys of ``extra_info`` that make a device unavailable. They are removed when an operator enables the device.
ENABLED = (DISABLED, UNHEALTHY, *FAILED_KEYS)


class DeviceInventory:
    """The object that writes one host's devices to the database and to Placement.

    ``placement`` is None for a compute without Placement, in tests.
    """

    def __init__(
        self, host: ComputeHost, placement: PlacementClient | None, ctxt: Callable[[], RequestContext]
    ) -> None:
        self._host, self._placement, self._ctxt = host, placement, ctxt
        # This lock is held from the moment when the reserved amounts are read from Placement until they are changed.
        # A thread that needs both this lock and ``Tracker.writing`` must take this lock first.
        self._reserving = threading.Lock()
        host.tracker.leaving = self._leaving
        # ``leave(addresses)`` is called before devices are freed, and returns {address: {reason: text}} as for ``bar``.
        # Devices in the result of ``leave`` are not offered to servers, for example because they must be cleaned first.
        self.leave: Callable[[Collection[str]], Mapping[str, Mapping[str, str | None]]] = lambda addresses: {}

    @property
    def _record(self) -> objects.ComputeNode:
        return self._host.tracker.node

    # -- writing devices to the database -------------------------------------------------------------------------------
    def save(self, ctxt: RequestContext, devices: NodeDevices) -> None:
        """Set the host's devices in the tracker, and write the changes to the devices' rows in the database.

        The caller must hold ``Tracker.writing``. Users whose servers hold a device that has become unavailable are
        notified.
        """
        tracker = self._host.tracker
        told = [_told(device) for device in devices.barred_since(tracker.host_devices)]
        tracker.host_devices, changes = devices, devices.unwritten()
        if changes:
            try:
                ids = records.save_devices(ctxt, self._record.id, changes, told)
            except Exception:
                # The rows may have been written although the call failed, so the tracker must read them again.
                tracker.distrust()
                raise
            tracker.host_devices = devices.written(changes, ids)
        for uuid, text in told:
            self._host.notify.later(ctxt, 'instance.device_barred', functools.partial(_facts, ctxt, uuid, text))

    def publish(self, ctxt: RequestContext) -> NodeUsage:
        """Write the host's resource usage to the compute node's row if it has changed, and return the usage.

        The caller must hold ``Tracker.writing``.
        """
        tracker = self._host.tracker
        usage = tracker.usage()
        if usage != tracker.published:
            self._host.upcalls.save(ctxt, objects.Save(instance_uuid=None, usage=tracker.numbered(usage)))
            tracker.published = usage
        return usage

    # -- writing devices to Placement ----------------------------------------------------------------------------------
    def report(
        self, ctxt: RequestContext, inventory: dict[str, dict[str, Any]], refresh: bool
    ) -> tuple[dict[str, str], NodeUsage]:
        """Write the host's devices and its inventory to Placement and to the database.

        Return a dict from device address to provider uuid, and the resource usage of the compute node. The dict also
        has the addresses of physical functions and of parents of mediated devices. If ``refresh`` is True, Placement's
        present data is read again, not taken from the cache.
        """
        tracker, providers, guarantors = self._host.tracker, dict[str, str](), dict[str, str]()
        with self._reserving:
            if self._placement is not None:
                self._mark(ctxt, self._placement)
                providers, guarantors = self._tell(self._placement, inventory, refresh)
            with tracker.writing(ctxt):
                devices = tracker.host_devices.provided(providers, guarantors)
                self.save(ctxt, devices.unmarked() if providers else devices)
                return providers, self.publish(ctxt)

    def inventory(self) -> dict[str, dict[str, Any]]:
        """Return the node's Placement inventory.

        An allocation ratio that the configuration does not set is read from Placement, where operators may change it.
        """
        existing: dict[str, dict[str, Any]] = {}
        conf = self._host.conf
        if self._placement is not None and None in [conf[name] for name, _ in RATIOS]:
            try:
                existing, _ = self._placement.get_inventory(self._record.uuid)
            except errors.NotFound:
                LOG.debug('Placement does not know node %s yet', self._record.uuid)
        return self._host.driver.host.inventory(existing)

    def _tell(
        self,
        placement: PlacementClient,
        inventory: dict[str, dict[str, Any]],
        refresh: bool,
        leaving: Collection[str] = (),
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Write the node's inventory and its devices to Placement.

        Return two dicts. The first is {PCI address: uuid of the resource provider}, for devices, physical functions and
        parents of mediated devices. The second is {name of a network interface: comma-separated uuids of the providers
        that Neutron's agents reported for the interface}. ``leaving`` are the addresses of devices that are about to be
        freed: unavailable devices among them are reserved in Placement already. If ``refresh`` is True, Placement's
        present data is read again, not taken from the cache.
        """
        nodename, view = self._record.hypervisor_hostname, self.view(leaving)
        if view:
            LOG.log(
                logging.INFO if refresh else logging.DEBUG,
                'Placement PCI resource view: %s',
                pci_placement.describe_view(nodename, view),
            )
        reported = {
            name: {
                'resource_class': provider.resource_class,
                'traits': provider.traits,
                'total': provider.total,
                'reserved': provider.reserved,
                'more_traits': provider.more_traits,
            }
            for name, provider in view.items()
            if provider.resource_class is not None
        }
        uuids = placement.sync_compute(
            self._record.uuid,
            nodename,
            inventory,
            _traits(self._host),
            reported,
            has_pci=self._host.conf.pci.report_in_placement,
            refresh=refresh,
        )
        return (
            {provider.address: uuids[name] for name, provider in view.items() if name in uuids},
            pci_placement.guarantors(uuids),
        )

    def view(self, leaving: Collection[str] = ()) -> dict[str, pci_placement.DeviceProvider]:
        """Return a dict from name to the resource provider that represents devices of this host in Placement.

        ``leaving`` are the addresses of held devices that are about to be freed.
        """
        return self._host.tracker.host_devices.providers(self._record.hypervisor_hostname, leaving)

    # -- devices that are not offered to servers -----------------------------------------------------------------------
    def set_device_disabled(self, ctxt: RequestContext, address: str, reason: str | None) -> list[dict[str, Any]]:
        """Disable a device and the devices whose parent it is, or enable them if ``reason`` is None.

        Return the address, status and server uuid of each of these devices. Raises NotFound if this host has no such
        device.
        """
        text = None if reason is None else checked_reason(reason)
        named = self._host.tracker.host_devices.named(address)
        if not named:
            raise errors.NotFound(f'{self._host.name} has no device {address}')
        self.bar(ctxt, {one: {DISABLED: text} if text is not None else dict.fromkeys(ENABLED) for one in named})
        return [
            {'address': device.address, 'status': device.status, 'instance_uuid': device.instance_uuid}
            for device in self._host.tracker.host_devices.all()
            if device.address in named
        ]

    def bar(self, ctxt: RequestContext, reasons: Mapping[str, Mapping[str, str | None]]) -> None:
        """Make devices unavailable to servers for certain reasons, or remove such reasons.

        ``reasons`` is {address: {reason: text}}. If the text is None, the reason is removed. Devices that have left the
        host are ignored. The devices' rows and the node's numbers of free devices, which schedulers read, are written
        before this method returns. If Placement does not answer, the next periodic update writes to Placement. If
        Placement gives an unavailable device to a server before that, the server's claim on this host fails.
        """
        tracker = self._host.tracker
        with tracker.writing(ctxt):
            here = {address: given for address, given in reasons.items() if address in tracker.host_devices.entries}
            self.save(ctxt, tracker.host_devices.barred(here))
            self.publish(ctxt)
        if self._placement is None:
            return
        try:
            with self._reserving:
                self._mark(ctxt, self._placement)
                if self._tell(self._placement, self.inventory(), refresh=True)[0]:
                    with tracker.writing(ctxt):
                        self.save(ctxt, tracker.host_devices.unmarked())
        except errors.KilonovaError as error:
            LOG.warning(
                'Could not update reserved inventory of PCI devices %s in Placement; will retry at the next '
                'periodic update: %s',
                ', '.join(sorted(reasons)),
                error,
            )

    def _mark(self, ctxt: RequestContext, placement: PlacementClient) -> None:
        """Save ``reserved`` of the unavailable devices' inventories in Placement, in the devices' rows.

        ``_tell`` then increases ``reserved``, so that no server gets these devices. When the devices are available
        again, ``reserved`` is set back to the saved amount.
        """
        tracker = self._host.tracker
        before = self._before(placement, tracker.host_devices)
        if before:
            with tracker.writing(ctxt):
                self.save(ctxt, tracker.host_devices.marked(before))

    def _before(
        self, placement: PlacementClient, devices: NodeDevices, leaving: Collection[str] = ()
    ) -> dict[str, int]:
        found = {}
        for rp_uuid, known in devices.to_mark(leaving).items():
            found[rp_uuid] = _reserved(placement, rp_uuid) if known is None else known
        return found

    def _leaving(self, addresses: Collection[str]) -> None:
        """Reserve devices in Placement that must stay unavailable after they are freed.

        These are one_time_use devices, devices that must be cleaned first, and devices that are unavailable for another
        reason. The tracker calls this before it frees the devices at ``addresses``, in a thread that holds
        ``Tracker.writing``. Later, the server's allocation is deleted, and Placement would then offer devices that are
        not reserved.
        """
        self.use_up(addresses)
        tracker, ctxt = self._host.tracker, self._ctxt()
        reasons = self.leave([address for address in addresses if not tracker.host_devices.entries[address].gone])
        if reasons:
            self.save(ctxt, tracker.host_devices.barred(reasons))
        barred = [address for address in addresses if is_unavailable(tracker.host_devices.entries[address].device)]
        if not barred or self._placement is None:
            return
        try:
            before = self._before(self._placement, tracker.host_devices, barred)
            self.save(ctxt, tracker.host_devices.marked(before, barred))
            self._tell(self._placement, self.inventory(), refresh=True, leaving=barred)
        except errors.KilonovaError as error:
            LOG.warning(
                'Could not update reserved inventory of PCI devices %s in Placement; will retry at the next '
                'periodic update: %s',
                ', '.join(sorted(barred)),
                error,
            )

    def use_up(self, addresses: Collection[str]) -> None:
        """Reserve one_time_use devices in Placement before they are freed, so that no other server gets them.

        Devices of ``addresses`` that are not one_time_use are ignored. Each periodic update makes the same reservation,
        but it may come too late if the server is deleted soon.
        """
        if self._placement is not None and self._host.tracker.host_devices.use_up(addresses):
            # Refresh, because an operator may have reset ``reserved`` since the last update.
            self._tell(self._placement, self.inventory(), refresh=True)


def _reserved(placement: PlacementClient, rp_uuid: str) -> int:
    inventory, _ = placement.get_inventory(rp_uuid)
    return max((given['reserved'] for given in inventory.values()), default=0)


def _told(device: PciDevice) -> tuple[str, str]:
    """Return (uuid of the server that holds a device, text for the user that says why the device is unavailable)."""
    return device.instance_uuid, f'Device {device.address} ' + ', '.join(
        f'is {name}: {why}' for name, why in unavailable_reasons(device).items()
    )


def _facts(ctxt: RequestContext, uuid: str, text: str) -> dict[str, Any] | None:
    """Return the fields of the notification about a server's device, or None if the server's row can't be read."""
    try:
        instance = records.instance(ctxt, uuid)
    except errors.ServerUnreadable as error:
        LOG.error(
            'The notification instance.device_barred is not sent, because the row of the server cannot be read: %s',
            error,
            instance_uuid=uuid,
        )
        return None
    return None if instance is None else {'instance': instance, 'fault': errors.DeviceBarred(text)}


def _traits(host: ComputeHost) -> set[str]:
    """Return the driver's traits, plus COMPUTE_ACCELERATORS if this host has an account for the accelerator service."""
    found = host.driver.host.traits()
    return found | {os_traits.COMPUTE_ACCELERATORS} if host.accelerators.available else found
