"""The devices of one host that servers may hold: the discovered devices, compared with the rows in pci_devices.

A ``NodeDevices`` object never changes: its methods return a new object with the change. ``compute.tracker`` makes such
an object first, then writes the differences to the rows, and then uses the new object instead of the old one. This
module itself reads and writes no database.

    devices = NodeDevices.of(kinds, PciDeviceList.get_by_compute_node(ctxt, node.id), node.id)
    devices = devices.looked(resources['pci_passthrough_devices'])     # the devices after a discovery by the driver
    changes = devices.unwritten()                             # the differences between devices and rows
    if changes:
        ids = …                                               # write the changes; {address: id} of the created rows
        devices = devices.written(changes, ids)               # the devices after this write
    chosen = devices.pools.copy().consume_requests(requests)  # raises PciDeviceRequestFailed if there are too few
    # The devices after the server ``uuid`` has claimed some of them, and the row changes to write:
    after, changes = devices.given({device.address: DeviceOwner(CLAIMED, uuid, request_id) for …}, uuid)

The stored status of a device that a server holds (claimed, allocated) is kept. The status of any other device is
computed (``DeviceKind.statuses``), so a wrong stored status is corrected.

A device is unavailable if its ``extra_info`` contains a reason (``device.BARS``). A server that holds the device keeps
it. When the device is free, it is not offered to servers, and ``reserved`` of its provider in Placement is increased.
The original value of ``reserved`` is first stored in the device's row (``RESERVED_BEFORE``), so that any process that
reads the row can restore the value.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypedDict

import os_resource_classes
from oslo_log import log as logging
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
    DeviceColumns,
    DiscoveredDevice,
    PoolKeys,
    is_unavailable,
    unavailable_reasons,
    unit,
    units,
)
from kilonova.pci.kinds import DeviceKind
from kilonova.pci.placement import DeviceProvider
from kilonova.pci.pools import PciPools
from kilonova.pci.request import allocated_providers, as_list

LOG = logging.getLogger(__name__)
# The text that operators read for a device that is MISSING.
_MISSING = 'its host no longer has it, or the configuration no longer names it'


class DeviceOwner(NamedTuple):
    """The owner of a device: the device's status (claimed or allocated), the server's uuid and the request's id."""

    status: str
    instance_uuid: str
    request_id: str | None


# A change of the status in a device's row in pci_devices, from the status ``from`` to the status ``to``.
# ``instance_uuid`` is the new owner, or the former owner of a released device, or None if no server is involved.
Change = TypedDict(
    'Change', {'id': int, 'address': str, 'from': str, 'to': str, 'instance_uuid': str | None, 'request_id': str | None}
)


@dataclass(frozen=True)
class Changes:
    """The differences between a host's devices and their rows in pci_devices, which must be written to the rows.

    ``created`` are devices without a row. ``updated`` are devices whose properties (not status or owner) differ from
    their rows; the fields to write are marked as changed. ``removed`` are devices that the host no longer has, whose
    rows must be deleted. ``statuses`` are the new statuses of free devices.
    """

    created: list[PciDevice]
    updated: list[PciDevice]
    removed: list[PciDevice]
    statuses: list[Change]

    def __bool__(self) -> bool:
        return bool(self.created or self.updated or self.removed or self.statuses)


@dataclass(frozen=True)
class _Entry:
    """One device of a host.

    ``stored`` is the status in the device's row, or None if there is no row. ``later`` are newly discovered properties
    of a device that a server holds; the device gets them when the server releases it. ``gone`` is True if the host no
    longer has the device. ``keys`` are the properties of the device's pool, or None if it is in no pool.
    """

    device: PciDevice
    stored: str | None = None
    later: DeviceColumns | None = None
    gone: bool = False
    keys: PoolKeys | None = None

    @property
    def held(self) -> bool:
        return self.device.status in OWNED

    @property
    def removed(self) -> bool:
        """True if the host no longer has the device and no server holds it: only its row in pci_devices is left."""
        return self.gone and not self.held

    @property
    def kept(self) -> bool:
        """True if the host no longer has the device, but its row is kept because it stores why it is unavailable.

        If the device comes back to the host, it is not offered until the reason is removed.
        """
        return self.removed and is_unavailable(self.device)

    def found(self, columns: DeviceColumns) -> _Entry:
        """Return a copy of the entry after the driver has discovered the device with the properties ``columns``.

        If a server holds the device, ``columns`` are kept in ``later`` until the server releases the device.
        """
        here = _with_info(self, {MISSING: None})
        device = _described(here.device, columns)
        if self.held:
            return replace(here, gone=False, later=None if device is here.device else columns)
        return replace(here, gone=False, device=device)

    def lost(self) -> _Entry:
        """Return a copy of the entry with ``gone`` = True, because the host no longer has the device.

        If a server holds the device, the copy also has the key MISSING in ``extra_info``, which tells operators why the
        device is unavailable.
        """
        if self.held and not self.gone:
            LOG.warning(
                "Unable to remove device with status '%s' and ownership %s because of it being in use; "
                'PCI device %s is removed when the server releases it',
                self.device.status,
                self.device.instance_uuid,
                self.device.address,
                instance_uuid=self.device.instance_uuid,
            )
        lost = _with_info(self, {MISSING: _MISSING}) if self.held else self
        return replace(lost, gone=True, later=None)

    def given(self, owner: DeviceOwner | None) -> _Entry:
        """Return a copy of the entry with a new owner of the device, or with a free device if ``owner`` is None."""
        device = _owned(self.device, *(owner or (AVAILABLE, None, None)))
        if owner is None and self.later is not None:
            return replace(self, device=_described(device, self.later), later=None)
        return replace(self, device=device)

    def change(self, instance_uuid: str | None) -> Change:
        """Return the change that writes the device's current status to its row."""
        assert self.stored is not None
        return {
            'id': self.device.id,
            'address': self.device.address,
            'from': self.stored,
            'to': self.device.status,
            'instance_uuid': instance_uuid,
            'request_id': self.device.request_id,
        }


@dataclass(frozen=True)
class NodeDevices:
    """All devices of one compute node, by address.

    ``sockets`` is a dict from host NUMA node to CPU socket, for the NUMA policy 'socket' (see ``pools.sockets_of``).
    """

    kinds: tuple[DeviceKind, ...]
    compute_node_id: int | None
    sockets: Mapping[int, int | None] | None = None
    entries: Mapping[str, _Entry] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kinds: tuple[DeviceKind, ...],
        rows: Iterable[PciDevice],
        compute_node_id: int | None,
        sockets: Mapping[int, int | None] | None = None,
    ) -> NodeDevices:
        """Return the devices that the rows of a compute node in pci_devices describe."""
        entries = {
            device.address: _Entry(_written(device), device.status, gone=device.status == REMOVED) for device in rows
        }
        return _settled(cls(kinds, compute_node_id, sockets), entries)

    # -- discovered devices, and the rows to write for them ------------------------------------------------------------
    def looked(self, found: Collection[DiscoveredDevice]) -> NodeDevices:
        """Return the host's devices after a periodic discovery. ``found`` are all devices that the driver found.

        A free device that is not in ``found`` gets the status removed, and ``unwritten`` then lists its row for
        deletion. A device that a server holds is kept until the server releases it. New devices are offered once they
        have a row.
        """
        now = {address: columns for kind in self.kinds for address, columns in kind.columns(found).items()}
        entries = {
            address: entry.found(now[address]) if address in now else entry.lost()
            for address, entry in self.entries.items()
            if address in now or entry.stored is not None
        }
        for address, columns in now.items():
            if address not in entries:
                entries[address] = _Entry(
                    PciDevice(
                        uuid=uuidutils.generate_uuid(),
                        compute_node_id=self.compute_node_id,
                        address=address,
                        status=AVAILABLE,
                        instance_uuid=None,
                        request_id=None,
                        **columns,
                    )
                )
        return _settled(self, entries)

    def provided(
        self, providers: Mapping[str, str], guarantors: Mapping[str, str] = MappingProxyType({})
    ) -> NodeDevices:
        """Return the devices after storing the uuids of their resource providers in ``extra_info``.

        ``providers`` is a dict from a device's ``DeviceKind.pool_address`` to the uuid of its provider. ``guarantors``
        is a dict from the network interface of a physical function to comma-separated uuids. These are Neutron's
        providers of QoS minimum bandwidth and packet rate for this interface.
        """
        entries = dict(self.entries)
        for address, entry in entries.items():
            info = entry.device.extra_info
            rp_uuid = providers.get(_kind(self.kinds, entry.device).pool_address(entry.device), info.get('rp_uuid'))
            entries[address] = _with_info(
                entry, {'rp_uuid': rp_uuid, PORT_PROVIDERS: guarantors.get(info.get('parent_ifname', ''))}
            )
        return _settled(self, entries)

    def unwritten(self) -> Changes:
        """Return the differences between the devices and their rows in pci_devices, which must be written to the rows.

        When a server gets or releases a device, the method ``given`` returns the change of the row, so it is not
        included here.
        """
        removed = [entry.device.obj_clone() for entry in self.entries.values() if entry.removed and not entry.kept]
        here = [
            (entry.device.obj_clone(), entry.stored)
            for entry in self.entries.values()
            if not entry.removed or entry.kept
        ]
        return Changes(
            [device for device, stored in here if stored is None],
            [device for device, stored in here if stored is not None and device.obj_what_changed()],
            removed,
            _following(self.entries),
        )

    def written(self, changes: Changes, ids: Mapping[str, int]) -> NodeDevices:
        """Return the devices with ``changes`` applied. The caller has already written ``changes`` to pci_devices.

        ``changes`` is the result of ``unwritten``. ``ids`` is a dict from the address of each created device to the id
        of its new row.
        """
        entries = dict(self.entries)
        for device in changes.removed:
            del entries[device.address]
        for device in changes.updated:
            entries[device.address] = replace(entries[device.address], device=_written(device))
        for device in changes.created:
            made = _written(device.replaced(id=ids[device.address]))
            entries[device.address] = replace(entries[device.address], device=made, stored=made.status)
        return _settled(self, _stored(entries, changes.statuses))

    # -- owners of devices, and views of all devices -------------------------------------------------------------------
    def given(self, owners: Mapping[str, DeviceOwner | None], instance_uuid: str) -> tuple[NodeDevices, list[Change]]:
        """Return all devices of the node after the server ``instance_uuid`` got or released some, and the row changes.

        ``owners`` is a dict from a device's address to its new owner, or to None if the server releases the device. The
        caller writes the row changes to pci_devices. They are for the devices in ``owners``, and for devices that
        become available or unavailable as a result, for example the virtual functions of a claimed physical function.
        """
        if not owners and not _following(self.entries):
            return self, []
        given = {address: self.entries[address].given(owner) for address, owner in owners.items()}
        after = _settled(self, {**self.entries, **given})
        changes = [after.entries[address].change(instance_uuid) for address in owners]
        changes += [change for change in _following(after.entries) if change['address'] not in owners]
        return replace(after, entries=_stored(after.entries, changes)), changes

    def all(self) -> list[PciDevice]:
        """Return copies of all devices that the host has or a server holds."""
        return [entry.device.obj_clone() for entry in self.entries.values() if not entry.removed]

    def held(self, instance_uuid: str | None = None) -> list[PciDevice]:
        """Return copies of the devices that a server holds, sorted by address.

        If ``instance_uuid`` is None, return the devices that any server holds.
        """
        devices = [
            entry.device
            for entry in self.entries.values()
            if entry.held and instance_uuid in (None, entry.device.instance_uuid)
        ]
        return [device.obj_clone() for device in sorted(devices, key=lambda device: device.address)]

    @functools.cached_property
    def pools(self) -> PciPools:
        """The pools of free devices. They are cached, so copy them before you take devices.

        A device without a row in pci_devices is in no pool, so it is not offered yet.
        """
        return PciPools.from_devices(
            [
                (entry.device, entry.keys)
                for entry in self.entries.values()
                if entry.keys and entry.stored is not None and not entry.gone
            ],
            self.sockets,
        )

    @functools.cached_property
    def pools_text(self) -> str:
        """The pools as JSON for the column ``pci_stats`` of the host's row in compute_nodes, which the scheduler reads.

        Mediated devices are left out, because Placement alone chooses them. The text is cached, because it is sent with
        each claim and each save of the row, and most of these change no device.
        """
        return PciPools([pool for pool in self.pools.pools if pool.keys['dev_type'] != MDEV]).to_pool_list().to_json()

    def providers(self, nodename: str, leaving: Collection[str] = ()) -> dict[str, DeviceProvider]:
        """Return a dict from name to resource provider, for all devices.

        ``leaving`` are the addresses of held devices that are about to be freed. Raises PlacementPciException if the
        configured devices can't be reported to Placement.
        """
        devices = self.all()
        view = {
            name: provider
            for kind in self.kinds
            for name, provider in kind.providers(
                nodename, [device for device in devices if device.dev_type in kind.dev_types]
            ).items()
        }
        for provider in view.values():
            before = _before(provider.devices)
            if before is not None:
                barred = units(
                    device
                    for device in provider.devices
                    if is_unavailable(device) and (device.status not in OWNED or device.address in leaving)
                )
                provider.reserved = max(provider.reserved or 0, min(provider.total, before + barred))
        return view

    # -- reasons why devices are unavailable, that is, not offered to servers ------------------------------------------
    def named(self, address: str) -> list[str]:
        """Return the addresses of the device at ``address`` and of its virtual functions or mediated devices."""
        return sorted(one for one, entry in self.entries.items() if address in (one, entry.device.parent_addr))

    def barred(self, reasons: Mapping[str, Mapping[str, str | None]]) -> NodeDevices:
        """Return all devices of the node after adding or removing reasons why some are unavailable.

        ``reasons`` is {address: {key: text}}. A key is one of ``device.BARS``, such as 'disabled' or 'unhealthy'. The
        text None removes the reason. The statuses are computed again.
        """
        entries = dict(self.entries)
        for address, given in reasons.items():
            entries[address] = _with_info(entries[address], given)
        return _settled(self, entries)

    def barred_since(self, before: NodeDevices) -> list[PciDevice]:
        """Return the allocated devices that have a reason to be unavailable which they lacked in ``before``.

        ``before`` is an earlier state of the node's devices. The caller informs the users of these devices. The reason
        DIRTY is ignored, because a device gets it only when its server releases it. The reason FAILED is ignored,
        because the server's own instance action already records the failure.
        """

        def reasons(device: PciDevice) -> set[str]:
            return unavailable_reasons(device).keys() - {DIRTY, FAILED}

        return [
            device
            for device in self.held()
            if device.status == ALLOCATED
            and reasons(device)
            - (reasons(before.entries[device.address].device) if device.address in before.entries else set())
        ]

    def to_mark(self, leaving: Collection[str] = ()) -> dict[str, int | None]:
        """Return the providers that have an unavailable free device without a stored RESERVED_BEFORE.

        RESERVED_BEFORE is the provider's ``reserved`` in Placement before Kilonova increased it. The result is a dict
        from provider uuid to the value that another device of the provider stores, or to None if no device stores it;
        the caller then reads ``reserved`` from Placement. Held devices whose addresses are in ``leaving`` count as
        free, because they are about to be freed.
        """
        return {
            rp_uuid: _before(entry.device for entry in entries)
            for rp_uuid, entries in self._by_provider().items()
            if any(_reserves(entry, leaving) and RESERVED_BEFORE not in entry.device.extra_info for entry in entries)
        }

    def marked(self, reserved: Mapping[str, int], leaving: Collection[str] = ()) -> NodeDevices:
        """Return a copy in which unavailable free devices have RESERVED_BEFORE in ``extra_info``.

        Kilonova increases ``reserved`` of a provider in Placement by the number of its unavailable devices, and later
        restores the value before this increase from the rows. ``reserved`` is a dict from provider uuid to this value.
        Held devices whose addresses are in ``leaving`` count as free, because they are about to be freed.
        """
        entries = dict(self.entries)
        for address, entry in self.entries.items():
            before = reserved.get(entry.device.extra_info.get('rp_uuid', ''))
            if before is not None and _reserves(entry, leaving):
                entries[address] = _with_info(entry, {RESERVED_BEFORE: str(before)})
        return _settled(self, entries)

    def unmarked(self) -> NodeDevices:
        """Return a copy in which devices have no RESERVED_BEFORE if their provider has no unavailable free device.

        RESERVED_BEFORE is a key of ``extra_info``: the provider's ``reserved`` in Placement before Kilonova increased
        it for unavailable devices. The caller has restored this value in Placement. An unavailable device that is no
        longer on the host still counts, because it may come back.
        """
        entries = dict(self.entries)
        for related in self._by_provider().values():
            if not any(is_unavailable(entry.device) and not entry.held for entry in related):
                entries.update((entry.device.address, _with_info(entry, {RESERVED_BEFORE: None})) for entry in related)
        return _settled(self, entries)

    def _by_provider(self) -> dict[str, list[_Entry]]:
        found: dict[str, list[_Entry]] = {}
        for entry in self.entries.values():
            if 'rp_uuid' in entry.device.extra_info:
                found.setdefault(entry.device.extra_info['rp_uuid'], []).append(entry)
        return found

    # -- requests of servers for devices -------------------------------------------------------------------------------

    def members(self, device: PciDevice) -> list[str]:
        """Return the address of the device, then the addresses of the other devices of its group.

        If the device is in no group, return only its own address.
        """
        return [
            device.address,
            *sorted(
                address
                for address, entry in self.entries.items()
                if unit(entry.device) == unit(device) and address != device.address
            ),
        ]

    def use_up(self, addresses: Collection[str]) -> bool:
        """Return True if at least one of these devices has one_time_use.

        The caller then reserves the used devices in Placement, so that no other server gets them.
        """
        return any(
            _kind(self.kinds, self.entries[address].device).used_up(self.entries[address].device)
            for address in addresses
            if address in self.entries
        )

    def asked(self, requests: Iterable[InstancePCIRequest] | InstancePCIRequests | None) -> list[InstancePCIRequest]:
        """Return the requests that need devices of this host.

        These are all requests of PCI aliases and ports, and all requests for the resource class VGPU. A request for a
        custom resource class of the flavor (``resources:CUSTOM_…``) may be for something else than a device. It is
        included only if Placement allocated it from a card of this host that has mediated devices.
        """
        ours = {
            entry.device.extra_info.get('rp_uuid') for entry in self.entries.values() if entry.device.dev_type == MDEV
        }
        return [
            request
            for request in as_list(requests)
            if request.source != request.FLAVOR_RESOURCES
            or request.spec[0]['resource_class'] == os_resource_classes.VGPU
            or not ours.isdisjoint(allocated_providers(request, None))
        ]


def _kind(kinds: Iterable[DeviceKind], device: PciDevice) -> DeviceKind:
    return next(kind for kind in kinds if device.dev_type in kind.dev_types)


def _settled(before: NodeDevices, entries: Mapping[str, _Entry]) -> NodeDevices:
    """Return a copy of the NodeDevices ``before`` with ``entries`` in place of its own entries.

    The statuses of free devices, and the pool properties of changed devices, are computed again.
    """
    here = [entry.device for entry in entries.values() if not entry.removed]
    statuses: dict[str, str] = {}
    for kind in before.kinds:
        statuses.update(kind.statuses([device for device in here if device.dev_type in kind.dev_types]))
    made = {}
    for address, entry in entries.items():
        old, device, keys = before.entries.get(address), entry.device, entry.keys
        if old is None or old.device is not device:
            keys = _kind(before.kinds, device).pool_keys(device)
        status = UNAVAILABLE if address in statuses and is_unavailable(device) else statuses.get(address, REMOVED)
        if not entry.held and (device.status, device.instance_uuid) != (status, None):
            device = _owned(device, status, None, None)
        made[address] = replace(entry, device=device, keys=keys)
    return replace(before, entries=made)


def _reserves(entry: _Entry, leaving: Collection[str]) -> bool:
    """Return True if the device counts in ``reserved`` of its provider in Placement.

    Such a device is unavailable, and it is either free or about to be freed. ``leaving`` are the addresses of held
    devices that are about to be freed.
    """
    return is_unavailable(entry.device) and not entry.removed and (not entry.held or entry.device.address in leaving)


def _before(devices: Iterable[PciDevice]) -> int | None:
    """Return the value RESERVED_BEFORE that the devices of one provider store, or None if no device stores it.

    It is the provider's ``reserved`` in Placement before Kilonova increased it for unavailable devices.
    """
    return max(
        (int(device.extra_info[RESERVED_BEFORE]) for device in devices if RESERVED_BEFORE in device.extra_info),
        default=None,
    )


def _with_info(entry: _Entry, given: Mapping[str, str | None]) -> _Entry:
    """Return a copy of the entry in which the device's ``extra_info`` has the keys and values of ``given``.

    A key of ``given`` with the value None is removed. If nothing changes, return ``entry`` itself.
    """
    info = {name: value for name, value in {**entry.device.extra_info, **given}.items() if value is not None}
    return entry if info == entry.device.extra_info else replace(entry, device=entry.device.replaced(extra_info=info))


def _following(entries: Mapping[str, _Entry]) -> list[Change]:
    """Return a row change for each free device whose new status differs from the status in its row.

    ``entries`` have the new statuses, which ``_settled`` computed from held and unavailable devices.
    """
    return [
        entry.change(None)
        for _, entry in sorted(entries.items())
        if entry.stored not in (None, entry.device.status) and not entry.held and (not entry.removed or entry.kept)
    ]


def _stored(entries: Mapping[str, _Entry], changes: Iterable[Change]) -> dict[str, _Entry]:
    return {
        **entries,
        **{change['address']: replace(entries[change['address']], stored=change['to']) for change in changes},
    }


def _described(device: PciDevice, columns: DeviceColumns) -> PciDevice:
    """Return a copy of the device with the newly discovered properties ``columns``, changed fields being marked.

    The keys of ``extra_info`` that Kilonova itself sets (KEPT) stay. If nothing changes, return ``device`` itself.
    """
    info = {**columns['extra_info'], **{name: device.extra_info[name] for name in KEPT if name in device.extra_info}}
    changed = {name: value for name, value in {**columns, 'extra_info': info}.items() if getattr(device, name) != value}
    return device.replaced(**changed) if changed else device


def _owned(device: PciDevice, status: str, instance_uuid: str | None, request_id: str | None) -> PciDevice:
    """Return a copy of the device with another status and owner.

    Status, ``instance_uuid`` and ``request_id`` are not marked as changed, because the caller writes them to the row as
    a ``Change``, separately from the other columns.
    """
    made = device.replaced(status=status, instance_uuid=instance_uuid, request_id=request_id)
    made.obj_reset_changes(['status', 'instance_uuid', 'request_id'])
    return made


def _written(device: PciDevice) -> PciDevice:
    made = device.obj_clone()
    made.obj_reset_changes()
    return made
