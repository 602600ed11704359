"""The kinds of devices that servers may hold (PCI functions, mediated devices), and the code specific to each kind.

Code that all kinds share is in ``devices`` and ``pools``. A new kind needs a class with the methods of ``DeviceKind``,
its own values of ``dev_type``, and an entry in ``from_conf``. How a guest gets the devices is up to the hypervisor's
driver (``virt.parts.host.Devices``).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from oslo_config import cfg
from oslo_log import log as logging

from kilonova.objects import PciDevice
from kilonova.pci import carved, groups
from kilonova.pci import device as pci_device
from kilonova.pci.device import (
    ALLOCATED,
    AVAILABLE,
    CHILD_TYPES,
    CLAIMED,
    GROUP,
    GROUP_HEAD,
    OWNED,
    PF,
    STANDARD,
    UNAVAILABLE,
    UNCLAIMABLE,
    DeviceColumns,
    DiscoveredDevice,
    PoolKeys,
    is_child,
    is_unavailable,
)
from kilonova.pci.mdev import MdevKind, MdevTypes
from kilonova.pci.placement import DeviceProvider, one_time_use, placement_view
from kilonova.pci.spec import DeviceSpec, DeviceSpecs, PciConfigInvalidSpec

LOG = logging.getLogger(__name__)


class DeviceKind(Protocol):
    """The methods that each kind of devices implements."""

    @property
    def dev_types(self) -> Collection[str]:
        """The values of ``dev_type`` that devices of this kind have. No other kind has the same values."""

    def check(self, found: Collection[DiscoveredDevice]) -> None:
        """Check that the configuration fits the host's devices. Called when the compute service starts.

        Raises Invalid if it does not, for example if a card does not support the type that is configured for it.
        """

    def columns(self, found: Collection[DiscoveredDevice]) -> dict[str, DeviceColumns]:
        """Return the devices of this kind that servers may get, as {address: columns of the row in pci_devices}."""

    def unneeded(self, found: Collection[DiscoveredDevice], held: Collection[str]) -> list[str]:
        """Return the addresses of devices that the hypervisor's driver must remove from the host.

        An example are mediated devices of a type that their card no longer has: they prevent the creation of devices of
        the card's new type. Only devices that Kilonova created and that no server holds are returned. ``found`` are the
        host's devices, and ``held`` are the addresses of devices that servers hold.
        """

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """Return a dict from address to status for all devices of this kind.

        Held devices (claimed, allocated) keep their status. A free device is unavailable while another device prevents
        its use, for example while its physical function is held. A reason in the device's own ``extra_info``, such as
        'disabled' (``device.BARS``), is not considered here: the caller then makes the device unavailable.
        """

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """Return the properties of the device's pool, or None if the device is not offered to servers any more."""

    def pool_address(self, device: PciDevice) -> str:
        """Return the address that identifies the device's pool and its resource provider."""

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, DeviceProvider]:
        """Return a dict from name to resource provider, for all devices of this kind.

        Raises PlacementPciException if the configured devices can't be reported to Placement.
        """

    def used_up(self, device: PciDevice) -> bool:
        """Return True if the device has one_time_use.

        Placement keeps such a device reserved after its first use, until an operator sets ``reserved`` to 0.
        """


class PciFunctions:
    """PCI devices, physical functions and their virtual functions, which ``[pci]device_spec`` offers to servers."""

    dev_types = frozenset((STANDARD, PF, *CHILD_TYPES))

    def __init__(self, specs: DeviceSpecs, reported: bool = False) -> None:
        """Create the object from the device_specs. ``reported`` says whether devices are reported to Placement."""
        self._specs, self._reported = specs, reported
        # {address: reason} of devices that match a device_spec but are not offered, as of the last log message.
        self._withheld: dict[str, str] = {}

    def check(self, found: Collection[DiscoveredDevice]) -> None:
        """Raise PciConfigInvalidSpec if the host has only a part of the devices of a group.

        ``found`` are the host's devices. Errors in the text of a device_spec were found earlier, when it was parsed.
        """
        formed = groups.form((one, spec.grouping) for one, spec in self._named(found))
        if formed.problems:
            raise PciConfigInvalidSpec(reason='; '.join(sorted(set(formed.problems.values()))))

    def columns(self, found: Collection[DiscoveredDevice]) -> dict[str, DeviceColumns]:
        """Return the devices that servers may get, as {address: columns of the device's row in pci_devices}.

        Two lists are logged when they change: the devices that each device_spec matches, and the devices that match a
        spec but are not offered. A device is not offered if another device of its group is missing. A virtual function
        of a vGPU card is not offered if it has no vGPU type, or if its provider in Placement has another type.
        """
        named = self._named(found)
        self._specs.tell(named)
        withheld = carved.withheld(named, self._reported)
        formed = groups.form((one, spec.grouping) for one, spec in named if one['address'] not in withheld)
        withheld |= formed.problems
        for address in sorted(withheld.keys() - self._withheld.keys()):
            LOG.warning('PCI device %s is not offered to servers: %s', address, withheld[address])
        self._withheld = withheld
        made = {}
        for one, spec in named:
            if one['address'] in withheld:
                continue
            made[one['address']] = columns = pci_device.columns(one, spec.tags)
            if spec.grouping is not None:
                columns['extra_info'].update({GROUP: spec.grouping.name, GROUP_HEAD: formed.heads[one['address']]})
        return made

    def _named(self, found: Collection[DiscoveredDevice]) -> list[tuple[DiscoveredDevice, DeviceSpec]]:
        return [
            (one, spec)
            for one in found
            if one['dev_type'] in self.dev_types and (spec := self._specs.match(one)) is not None
        ]

    def unneeded(self, found: Collection[DiscoveredDevice], held: Collection[str]) -> list[str]:
        """Return an empty list: Kilonova does not create PCI functions, so it does not remove any."""
        return []

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """Return a dict from address to status for all functions.

        A physical function can't be used while one of its virtual functions is held or unavailable. A virtual function
        can't be used while its physical function is held or unavailable. A device of a group can't be used while
        another device of the group is held or unavailable.
        """
        taken = {
            device.address: device.status if device.status in OWNED else ALLOCATED
            for device in devices
            if device.status in OWNED or is_unavailable(device)
        }
        below: dict[str, set[str]] = {}
        beside: dict[str, set[str]] = {}
        for device in devices:
            if device.address in taken and is_child(device):
                below.setdefault(device.parent_addr, set()).add(taken[device.address])
            elif device.address in taken and GROUP_HEAD in device.extra_info:
                beside.setdefault(device.extra_info[GROUP_HEAD], set()).add(taken[device.address])

        def bars(device: PciDevice) -> Collection[str | None]:
            if is_child(device):
                return (taken.get(device.parent_addr),)
            if GROUP_HEAD in device.extra_info:
                return beside.get(device.extra_info[GROUP_HEAD], ())
            return below.get(device.address, ()) if device.dev_type == PF else ()

        return {
            device.address: device.status if device.status in OWNED else _barred(bars(device)) for device in devices
        }

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """Return the properties of the device's pool, with the tags of its device_spec, or None if no spec matches."""
        spec = self._specs.match(pci_device.describe(device))
        return None if spec is None else pci_device.pool_keys(device, spec.tags)

    def pool_address(self, device: PciDevice) -> str:
        """Return the address that identifies the device's pool.

        For a virtual function it is the address of its physical function. For a device in a group it is the address of
        the group's head, which is its first device.
        """
        return pci_device.pool_address(device)

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, DeviceProvider]:
        """Return a dict from name to resource provider. It is empty if ``[pci]report_in_placement`` is off."""
        return placement_view(nodename, devices, self._specs) if self._reported else {}

    def used_up(self, device: PciDevice) -> bool:
        """Return whether the device's spec has one_time_use=true, which needs ``[pci]report_in_placement``."""
        return self._reported and one_time_use(device, self._specs)


def _barred(statuses: Collection[str | None]) -> str:
    return UNAVAILABLE if ALLOCATED in statuses else UNCLAIMABLE if CLAIMED in statuses else AVAILABLE


def from_conf(conf: cfg.ConfigOpts) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices that the configuration offers. Raises Invalid if the configuration is wrong."""
    specs = DeviceSpecs.from_conf(conf)
    return (PciFunctions(specs, conf.pci.report_in_placement), MdevKind(MdevTypes.from_conf(conf), specs, conf.host))
