"""The kinds of devices that servers may hold. What is the same for all of them is in ``devices`` and ``pools``.

A new kind is a module with a class that has what ``Kind`` lists, types of its own in ``dev_type``, and a row in
``from_conf``. What a guest gets of it the hypervisor's driver knows (``virt.parts.host.Devices``).
"""
from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from oslo_config import cfg

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
    Columns,
    Found,
    PoolKeys,
    is_barred,
    is_child,
)
from kilonova.pci.mdev import MdevTypes, MediatedDevices
from kilonova.pci.placement import Provider, one_time_use, placement_view
from kilonova.pci.spec import DeviceSpec, DeviceSpecs, PciConfigInvalidSpec

LOG = logging.getLogger(__name__)


class Kind(Protocol):
    """What one kind of devices has of its own."""

    @property
    def dev_types(self) -> Collection[str]:
        """Its words in ``dev_type``, which no other kind has."""

    def check(self, found: Collection[Found]) -> None:
        """At start: errors.Invalid when the configuration can't be right on a host that has these devices."""

    def columns(self, found: Collection[Found]) -> dict[str, Columns]:
        """{address: columns} of the devices of this kind that a host was found to have and that servers may get."""

    def unneeded(self, found: Collection[Found], held: Collection[str]) -> list[str]:
        """Addresses of what this host made, no server holds and none can get any more, and what is in the way of
        others: the driver removes it."""

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """{address: status} of all its devices. Held ones (claimed, allocated) keep theirs; that of a free one follows
        from who holds others that it can't be given away with. One that is barred itself is unavailable, whatever this
        says."""

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """What requests may ask of the device; None: servers don't get it (any more)."""

    def pool_address(self, device: PciDevice) -> str:
        """The address that names the device's pool and its resource provider."""

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, Provider]:
        """The resource providers of all its devices, by name; PlacementPciException."""

    def used_up(self, device: PciDevice) -> bool:
        """Whether the device is given away only once (until an operator sets ``reserved`` of its provider back)."""


class PciFunctions:
    """PCI devices, physical functions and what is below these, as ``[pci]device_spec`` names them."""

    dev_types = frozenset((STANDARD, PF, *CHILD_TYPES))

    def __init__(self, specs: DeviceSpecs, reported: bool = False) -> None:
        """``reported``: in Placement."""
        self._specs, self._reported = specs, reported
        # Why devices that a spec names are given to no server, {address: text}, as it was logged last.
        self._withheld: dict[str, str] = {}

    def check(self, found: Collection[Found]) -> None:
        """As ``Kind``: a group that lacks a member. Specs were checked when they were read."""
        formed = groups.form((one, spec.grouping) for one, spec in self._named(found))
        if formed.problems:
            raise PciConfigInvalidSpec(reason='; '.join(sorted(set(formed.problems.values()))))

    def columns(self, found: Collection[Found]) -> dict[str, Columns]:
        """Return the devices that servers may get, as ``Kind`` says. Log what each spec matched and which devices that
        a spec names are given to no server, when that is new: virtual functions without a vGPU type, or with another
        than their provider in Placement has, and devices whose group lacks a member."""
        named = self._named(found)
        self._specs.tell(named)
        withheld = carved.withheld(named, self._reported)
        formed = groups.form((one, spec.grouping) for one, spec in named if one['address'] not in withheld)
        withheld |= formed.problems
        for address in sorted(withheld.keys() - self._withheld.keys()):
            LOG.warning('PCI device %s is given to no server: %s', address, withheld[address])
        self._withheld = withheld
        made = {}
        for one, spec in named:
            if one['address'] in withheld:
                continue
            made[one['address']] = columns = pci_device.columns(one, spec.tags)
            if spec.grouping is not None:
                columns['extra_info'].update({GROUP: spec.grouping.name, GROUP_HEAD: formed.heads[one['address']]})
        return made

    def _named(self, found: Collection[Found]) -> list[tuple[Found, DeviceSpec]]:
        return [(one, spec) for one in found
                if one['dev_type'] in self.dev_types and (spec := self._specs.match(one)) is not None]

    def unneeded(self, found: Collection[Found], held: Collection[str]) -> list[str]:
        """As ``Kind``: none is made."""
        return []

    def statuses(self, devices: Collection[PciDevice]) -> dict[str, str]:
        """A physical function and those below it bar each other, as do the members of a group: when one is held, or may
        not be given out itself."""
        taken = {device.address: device.status if device.status in OWNED else ALLOCATED for device in devices
                 if device.status in OWNED or is_barred(device)}
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

        return {device.address: device.status if device.status in OWNED else _barred(bars(device))
                for device in devices}

    def pool_keys(self, device: PciDevice) -> PoolKeys | None:
        """As ``Kind``: tags of the spec, too."""
        spec = self._specs.match(pci_device.describe(device))
        return None if spec is None else pci_device.pool_keys(device, spec.tags)

    def pool_address(self, device: PciDevice) -> str:
        """A physical function's for those below it."""
        return pci_device.pool_address(device)

    def providers(self, nodename: str, devices: Collection[PciDevice]) -> dict[str, Provider]:
        """As ``Kind``; none where [pci]report_in_placement is off."""
        return placement_view(nodename, devices, self._specs) if self._reported else {}

    def used_up(self, device: PciDevice) -> bool:
        """As ``Kind``: the tag one_time_use."""
        return self._reported and one_time_use(device, self._specs)


def _barred(statuses: Collection[str | None]) -> str:
    return UNAVAILABLE if ALLOCATED in statuses else UNCLAIMABLE if CLAIMED in statuses else AVAILABLE


def from_conf(conf: cfg.ConfigOpts) -> tuple[Kind, ...]:
    """The kinds that a host gives away, as it is configured. errors.Invalid."""
    specs = DeviceSpecs.from_conf(conf)
    return (PciFunctions(specs, conf.pci.report_in_placement),
            MediatedDevices(MdevTypes.from_conf(conf), specs, conf.host))
