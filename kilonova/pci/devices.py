"""The devices of one host that servers may hold: what the host has now against what their rows say. Pure data.

A ``HostDevices`` never changes; what happens to devices makes another one of it. ``compute.tracker`` plans with it, and
takes the new one over when its rows are written.

    devices = HostDevices.of(kinds, PciDeviceList.get_by_compute_node(ctxt, node.id), node.id)
    devices = devices.looked(resources['pci_passthrough_devices'])
    lacking = devices.unwritten()
    if lacking:
        ids = …                                               # write it; {address: row id} of the created ones
        devices = devices.written(lacking, ids)
    chosen = devices.pools.copy().consume_requests(requests)  # PciDeviceRequestFailed: there are too few
    after, changes = devices.given({device.address: Owner(CLAIMED, uuid, request_id) for …}, uuid)

Only devices that a server holds have a status of their own (claimed, allocated). That of the others follows
(``Kind.statuses``), so stored states that don't fit are mended.

A device may be barred: its ``extra_info`` has a reason (``device.BARS``). Its holder keeps it; free it is unavailable,
and reserved in Placement. Its row says what an operator had reserved of the provider before (``RESERVED_BEFORE``),
before Placement is changed; so whoever reads the row knows what to go back to.
"""
from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypedDict

import os_resource_classes
from oslo_utils import uuidutils

from kilonova.objects import InstancePCIRequest, InstancePCIRequests, PciDevice
from kilonova.pci.device import (
    ALLOCATED,
    AVAILABLE,
    DIRTY,
    FAILED,
    KEPT,
    MDEV,
    MISSING,
    OWNED,
    PORT_PROVIDERS,
    REMOVED,
    RESERVED_BEFORE,
    UNAVAILABLE,
    Columns,
    Found,
    PoolKeys,
    bars,
    is_barred,
    unit,
    units,
)
from kilonova.pci.kinds import Kind
from kilonova.pci.placement import Provider
from kilonova.pci.pools import PciPools
from kilonova.pci.request import allocated_providers, as_list

LOG = logging.getLogger(__name__)


class Owner(NamedTuple):
    """Who holds a device: claimed or allocated, by which server, for which request."""

    status: str
    instance_uuid: str
    request_id: str | None


# What a claim or save writes of a device. ``instance_uuid``: who gets it or gives it back; None: its status only
# follows from others'.
Change = TypedDict('Change', {'id': int, 'address': str, 'from': str, 'to': str, 'instance_uuid': str | None,
                              'request_id': str | None})


@dataclass(frozen=True)
class Changes:
    """What rows lack: devices without an id, devices with other properties (their changed fields are marked), devices
    that are gone, and statuses that follow from others'."""

    created: list[PciDevice]
    updated: list[PciDevice]
    removed: list[PciDevice]
    statuses: list[Change]

    def __bool__(self) -> bool:
        return bool(self.created or self.updated or self.removed or self.statuses)


@dataclass(frozen=True)
class _Entry:
    """One device. ``stored``: the status that its row says, None: it has no row. ``later``: what was found of it while
    a server holds it. ``gone``: the host has it no more. ``keys`` of its pool; None: it has no place in any."""

    device: PciDevice
    stored: str | None = None
    later: Columns | None = None
    gone: bool = False
    keys: PoolKeys | None = None

    @property
    def held(self) -> bool:
        return self.device.status in OWNED

    @property
    def removed(self) -> bool:
        """Only its row is left."""
        return self.gone and not self.held

    @property
    def kept(self) -> bool:
        """It is gone, and its row stays: when it comes back it isn't given out either."""
        return self.removed and is_barred(self.device)

    def found(self, columns: Columns) -> _Entry:
        """A held device keeps its properties until it is freed."""
        here = _with_info(self, {MISSING: None})
        device = _described(here.device, columns)
        if self.held:
            return replace(here, gone=False, later=None if device is here.device else columns)
        return replace(here, gone=False, device=device)

    def lost(self) -> _Entry:
        """The host has it no more. A held one stays until it is freed."""
        if self.held and not self.gone:
            LOG.warning("Unable to remove device with status '%s' and ownership %s because of it being in use; "
                        '%s is removed when it is freed', self.device.status, self.device.instance_uuid,
                        self.device.address)
        lost = _with_info(self, {MISSING: 'its host has it no more, or gives it out no more'}) if self.held else self
        return replace(lost, gone=True, later=None)

    def given(self, owner: Owner | None) -> _Entry:
        """To a server, or free."""
        device = _owned(self.device, *(owner or (AVAILABLE, None, None)))
        if owner is None and self.later is not None:
            return replace(self, device=_described(device, self.later), later=None)
        return replace(self, device=device)

    def change(self, instance_uuid: str | None) -> Change:
        """Its row is to say what is so now."""
        assert self.stored is not None
        return {'id': self.device.id, 'address': self.device.address, 'from': self.stored, 'to': self.device.status,
                'instance_uuid': instance_uuid, 'request_id': self.device.request_id}


@dataclass(frozen=True)
class HostDevices:
    """All devices of one compute node, by address. ``sockets``: host NUMA node → socket, for the NUMA policy 'socket'
    (see ``pools.sockets_of``)."""

    kinds: tuple[Kind, ...]
    compute_node_id: int | None
    sockets: Mapping[int, int | None] | None = None
    entries: Mapping[str, _Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, kinds: tuple[Kind, ...], rows: Iterable[PciDevice], compute_node_id: int | None,
           sockets: Mapping[int, int | None] | None = None) -> HostDevices:
        """From the node's rows."""
        entries = {device.address: _Entry(_written(device), device.status, gone=device.status == REMOVED)
                   for device in rows}
        return _settled(cls(kinds, compute_node_id, sockets), entries)

    # -- discovery -----------------------------------------------------------------------------------------------------
    def looked(self, found: Collection[Found]) -> HostDevices:
        """As the host has them now. A device that disappears while a server holds it stays until it is freed; its row
        says so then, and goes at the next look. New ones are given away once they have a row."""
        now = {address: columns for kind in self.kinds for address, columns in kind.columns(found).items()}
        entries = {address: entry.found(now[address]) if address in now else entry.lost()
                   for address, entry in self.entries.items() if address in now or entry.stored is not None}
        for address, columns in now.items():
            if address not in entries:
                entries[address] = _Entry(PciDevice(
                    uuid=uuidutils.generate_uuid(), compute_node_id=self.compute_node_id, address=address,
                    status=AVAILABLE, instance_uuid=None, request_id=None, **columns))
        return _settled(self, entries)

    def provided(self, providers: Mapping[str, str],
                 guarantors: Mapping[str, str] = MappingProxyType({})) -> HostDevices:
        """Tied to their resource providers: {``Kind.pool_address``: provider uuid}; and those of networks to what
        guarantees something to ports there, {interface of a physical function: provider uuids, comma text}."""
        entries = dict(self.entries)
        for address, entry in entries.items():
            info = entry.device.extra_info
            rp_uuid = providers.get(_kind(self.kinds, entry.device).pool_address(entry.device), info.get('rp_uuid'))
            entries[address] = _with_info(entry, {
                'rp_uuid': rp_uuid, PORT_PROVIDERS: guarantors.get(info.get('parent_ifname', ''))})
        return _settled(self, entries)

    def unwritten(self) -> Changes:
        """What rows lack, but for who holds a device: that is claims' and saves' to write."""
        removed = [entry.device.obj_clone() for entry in self.entries.values() if entry.removed and not entry.kept]
        here = [(entry.device.obj_clone(), entry.stored) for entry in self.entries.values()
                if not entry.removed or entry.kept]
        return Changes([device for device, stored in here if stored is None],
                       [device for device, stored in here if stored is not None and device.obj_what_changed()],
                       removed, _following(self.entries))

    def written(self, changes: Changes, ids: Mapping[str, int]) -> HostDevices:
        """After ``unwritten`` was; ``ids``: row ids of the created ones by address."""
        entries = dict(self.entries)
        for device in changes.removed:
            del entries[device.address]
        for device in changes.updated:
            entries[device.address] = replace(entries[device.address], device=_written(device))
        for device in changes.created:
            made = _written(device.replaced(id=ids[device.address]))
            entries[device.address] = replace(entries[device.address], device=made, stored=made.status)
        return _settled(self, _stored(entries, changes.statuses))

    # -- who holds what ------------------------------------------------------------------------------------------------
    def given(self, owners: Mapping[str, Owner | None], instance_uuid: str) -> tuple[HostDevices, list[Change]]:
        """({address: new owner} of devices that this server gets or gives back; None: nobody) as it is once the row
        changes are written, and these."""
        if not owners and not _following(self.entries):
            return self, []
        given = {address: self.entries[address].given(owner) for address, owner in owners.items()}
        after = _settled(self, {**self.entries, **given})
        changes = [after.entries[address].change(instance_uuid) for address in owners]
        changes += [change for change in _following(after.entries) if change['address'] not in owners]
        return replace(after, entries=_stored(after.entries, changes)), changes

    def all(self) -> list[PciDevice]:
        """Copies of all devices."""
        return [entry.device.obj_clone() for entry in self.entries.values() if not entry.removed]

    def held(self, instance_uuid: str | None = None) -> list[PciDevice]:
        """Copies of the devices that servers hold, or that this one holds, by address."""
        devices = [entry.device for entry in self.entries.values()
                   if entry.held and instance_uuid in (None, entry.device.instance_uuid)]
        return [device.obj_clone() for device in sorted(devices, key=lambda device: device.address)]

    @functools.cached_property
    def pools(self) -> PciPools:
        """What is free; take from a copy. A device without a row isn't offered yet."""
        return PciPools.from_devices([(entry.device, entry.keys) for entry in self.entries.values() if entry.keys
                                      and entry.stored is not None and not entry.gone], self.sockets)

    @functools.cached_property
    def pools_text(self) -> str:
        """The pools as ``compute_nodes.pci_stats`` stores them: what the scheduler counts itself. Mediated devices are
        chosen by Placement alone. Most claims and saves change no device, and each sends it."""
        return PciPools([pool for pool in self.pools.pools if pool.keys['dev_type'] != MDEV]).to_pool_list().to_json()

    def providers(self, nodename: str, leaving: Collection[str] = ()) -> dict[str, Provider]:
        """The resource providers of all devices, by name; PlacementPciException. ``leaving``: held devices that are
        free in a moment."""
        devices = self.all()
        view = {name: provider for kind in self.kinds for name, provider in kind.providers(
            nodename, [device for device in devices if device.dev_type in kind.dev_types]).items()}
        for provider in view.values():
            before = _before(provider.devices)
            if before is not None:
                barred = units(device for device in provider.devices if is_barred(device)
                               and (device.status not in OWNED or device.address in leaving))
                provider.reserved = max(provider.reserved or 0, min(provider.total, before + barred))
        return view

    # -- devices that are not given out --------------------------------------------------------------------------------
    def named(self, address: str) -> list[str]:
        """The device at an address, and those below it or parts of it."""
        return sorted(one for one, entry in self.entries.items() if address in (one, entry.device.parent_addr))

    def barred(self, reasons: Mapping[str, Mapping[str, str | None]]) -> HostDevices:
        """{address: {one of ``BARS``: the text, or None: it bars the device no longer}}."""
        entries = dict(self.entries)
        for address, given in reasons.items():
            entries[address] = _with_info(entries[address], given)
        return _settled(self, entries)

    def barred_since(self, before: HostDevices) -> list[PciDevice]:
        """Return the devices that servers use and that have a reason that they didn't have ``before``.

        That a device is to be cleaned afterwards is none of its holder's business, and that it failed the holder's own
        action says.
        """
        def reasons(device: PciDevice) -> set[str]:
            return bars(device).keys() - {DIRTY, FAILED}
        return [device for device in self.held() if device.status == ALLOCATED and reasons(device) - (
            reasons(before.entries[device.address].device) if device.address in before.entries else set())]

    def to_mark(self, leaving: Collection[str] = ()) -> dict[str, int | None]:
        """Providers with barred free devices whose rows don't say what was reserved before: {uuid: what it was, None:
        no row of the provider says it}. ``leaving``: see ``providers``."""
        return {rp_uuid: _before(entry.device for entry in entries)
                for rp_uuid, entries in self._by_provider().items()
                if any(_reserves(entry, leaving) and RESERVED_BEFORE not in entry.device.extra_info
                       for entry in entries)}

    def marked(self, reserved: Mapping[str, int], leaving: Collection[str] = ()) -> HostDevices:
        """Rows of barred free devices say what was ``reserved`` of their providers before."""
        entries = dict(self.entries)
        for address, entry in self.entries.items():
            before = reserved.get(entry.device.extra_info.get('rp_uuid', ''))
            if before is not None and _reserves(entry, leaving):
                entries[address] = _with_info(entry, {RESERVED_BEFORE: str(before)})
        return _settled(self, entries)

    def unmarked(self) -> HostDevices:
        """Once Placement has what was reserved before: rows of providers without barred free devices say it no more.
        One that is gone may come back, while its provider is still there."""
        entries = dict(self.entries)
        for related in self._by_provider().values():
            if not any(is_barred(entry.device) and not entry.held for entry in related):
                entries.update((entry.device.address, _with_info(entry, {RESERVED_BEFORE: None})) for entry in related)
        return _settled(self, entries)

    def _by_provider(self) -> dict[str, list[_Entry]]:
        found: dict[str, list[_Entry]] = {}
        for entry in self.entries.values():
            if 'rp_uuid' in entry.device.extra_info:
                found.setdefault(entry.device.extra_info['rp_uuid'], []).append(entry)
        return found

    # -- requests ------------------------------------------------------------------------------------------------------

    def members(self, device: PciDevice) -> list[str]:
        """The addresses of all devices of its group, its own first; of one that is in none its own."""
        return [device.address, *sorted(address for address, entry in self.entries.items()
                                        if unit(entry.device) == unit(device) and address != device.address)]

    def use_up(self, addresses: Collection[str]) -> bool:
        """Whether one of these is given away only once."""
        return any(_kind(self.kinds, self.entries[address].device).used_up(self.entries[address].device)
                   for address in addresses if address in self.entries)

    def asked(self, requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None) -> list[InstancePCIRequest]:
        """Those that devices of this host are for. A flavor may ask for resources of providers that are none of ours;
        a vGPU always is."""
        ours = {entry.device.extra_info.get('rp_uuid') for entry in self.entries.values()
                if entry.device.dev_type == MDEV}
        return [request for request in as_list(requests) if request.source != request.FLAVOR_RESOURCES
                or request.spec[0]['resource_class'] == os_resource_classes.VGPU
                or not ours.isdisjoint(allocated_providers(request, None))]


def _kind(kinds: Iterable[Kind], device: PciDevice) -> Kind:
    return next(kind for kind in kinds if device.dev_type in kind.dev_types)


def _settled(before: HostDevices, entries: Mapping[str, _Entry]) -> HostDevices:
    """With these entries, whose statuses and pools' keys follow from the rest."""
    here = [entry.device for entry in entries.values() if not entry.removed]
    statuses: dict[str, str] = {}
    for kind in before.kinds:
        statuses.update(kind.statuses([device for device in here if device.dev_type in kind.dev_types]))
    made = {}
    for address, entry in entries.items():
        old, device, keys = before.entries.get(address), entry.device, entry.keys
        if old is None or old.device is not device:
            keys = _kind(before.kinds, device).pool_keys(device)
        status = UNAVAILABLE if address in statuses and is_barred(device) else statuses.get(address, REMOVED)
        if not entry.held and (device.status, device.instance_uuid) != (status, None):
            device = _owned(device, status, None, None)
        made[address] = replace(entry, device=device, keys=keys)
    return replace(before, entries=made)


def _reserves(entry: _Entry, leaving: Collection[str]) -> bool:
    """Whether the device counts as reserved in Placement."""
    return is_barred(entry.device) and not entry.removed and (not entry.held or entry.device.address in leaving)


def _before(devices: Iterable[PciDevice]) -> int | None:
    """What rows of a provider's devices say that was reserved of it before."""
    return max((int(device.extra_info[RESERVED_BEFORE]) for device in devices
                if RESERVED_BEFORE in device.extra_info), default=None)


def _with_info(entry: _Entry, given: Mapping[str, str | None]) -> _Entry:
    """With these in its ``extra_info``, None: without; the very same if that is nothing new."""
    info = {name: value for name, value in {**entry.device.extra_info, **given}.items() if value is not None}
    return entry if info == entry.device.extra_info else replace(entry, device=entry.device.replaced(extra_info=info))


def _following(entries: Mapping[str, _Entry]) -> list[Change]:
    """Statuses of free devices that rows don't say yet."""
    return [entry.change(None) for _, entry in sorted(entries.items())
            if entry.stored not in (None, entry.device.status) and not entry.held
            and (not entry.removed or entry.kept)]


def _stored(entries: Mapping[str, _Entry], changes: Iterable[Change]) -> dict[str, _Entry]:
    return {**entries, **{change['address']: replace(entries[change['address']], stored=change['to'])
                          for change in changes}}


def _described(device: PciDevice, columns: Columns) -> PciDevice:
    """The device with what was found of it; the very same if that is nothing new. It keeps its provider and bars."""
    info = {**columns['extra_info'], **{name: device.extra_info[name] for name in KEPT if name in device.extra_info}}
    changed = {name: value for name, value in {**columns, 'extra_info': info}.items() if getattr(device, name) != value}
    return device.replaced(**changed) if changed else device


def _owned(device: PciDevice, status: str, instance_uuid: str | None, request_id: str | None) -> PciDevice:
    """With another status and owner, which aren't marked as changed: claims and saves write them."""
    made = device.replaced(status=status, instance_uuid=instance_uuid, request_id=request_id)
    made.obj_reset_changes(['status', 'instance_uuid', 'request_id'])
    return made


def _written(device: PciDevice) -> PciDevice:
    made = device.obj_clone()
    made.obj_reset_changes()
    return made
