"""The ledger of one host's PCI devices: who holds which, and the row changes that say so.

The ledger decides in memory and writes nothing. Each change is a plan in two phases: planning reserves at
once (so two threads never get the same device) and gives the row changes; once these are written, or known to
be not, the plan ends.

    ledger = PciLedger.from_devices(specs, PciDeviceList.get_by_compute_node(ctxt, node.id), node.id)
    changes = ledger.sync(json.loads(resources['pci_passthrough_devices']))
    if changes:
        ids = ...                                     # write changes.created/.updated/.removed/.statuses
        ledger.saved(changes, ids)                    # {address: row id} of the created ones

    plan = ledger.plan_claim(uuid, requests, numa_cells)         # PciDeviceRequestFailed: nothing was taken
    try:
        conductor.claim_instance({'devices': plan.changes, 'usage': {'pci_stats': ledger.pool_list(plan)}, …})
    except (ClaimConflict, KeyGone):
        ledger.abort(plan)                            # as if it had never been
        raise
    ledger.commit(plan)                               # plan.devices are the server's
    …
    plan = ledger.plan_allocate(uuid)                 # claimed → allocated, with the save that ends the boot
    plan = ledger.plan_free(uuid)                     # the devices are free only after commit

A move that may end on the same host claims under a ``side`` of its own (the migration's uuid). Confirm frees
with ``keep_side=migration.uuid``, revert with ``side=migration.uuid``, delete without either. A claim
repeated for the same server and side finds what it took before and changes nothing; so does one repeated
after a restart, by request ids.

Only devices that somebody holds have a status of their own (claimed, allocated). What is left of a physical
function and the functions below it follows from it (available, unclaimable, unavailable), so stored states
that don't fit are mended.
"""
from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oslo_utils import uuidutils

from kilonova import errors
from kilonova.objects import PciDevice, PciDevicePoolList
from kilonova.pci import device as pci_device
from kilonova.pci.device import (
    ALLOCATED,
    AVAILABLE,
    CLAIMED,
    OWNED,
    PF,
    REMOVED,
    UNAVAILABLE,
    UNCLAIMABLE,
    is_child,
)
from kilonova.pci.pools import PciPools, Requests
from kilonova.pci.request import as_list
from kilonova.pci.spec import DeviceSpecs

LOG = logging.getLogger(__name__)

RUN = 'run'
_OWNER_FIELDS = ['status', 'instance_uuid', 'request_id']


class PciDeviceInvalidStatus(errors.Conflict):
    msg_fmt = 'PCI device %(compute_node_id)s:%(address)s is %(status)s instead of %(hopestatus)s'


class PciDeviceVFInvalidStatus(errors.Conflict):
    msg_fmt = 'Not all Virtual Functions of PF %(compute_node_id)s:%(address)s are free.'


class PciDevicePFInvalidStatus(errors.Conflict):
    msg_fmt = ('Physical Function %(compute_node_id)s:%(address)s, related to VF '
               '%(compute_node_id)s:%(vf_address)s is %(status)s instead of %(hopestatus)s')


class PciClaimExists(errors.Conflict):
    msg_fmt = 'Instance %(instance_uuid)s holds other PCI devices than it asks for here: %(addresses)s'


class Row(NamedTuple):
    """What a device's row says about its owner."""

    status: str
    instance_uuid: str | None = None
    request_id: str | None = None


@dataclass(eq=False)
class Plan:
    """One change of the ledger. ``devices``: copies as they will be; ``changes``: what to write, all or
    nothing.

    A change is {id, address, from, to, instance_uuid, request_id}: ``instance_uuid`` is who gets the device
    or who gives it back, and None for a relative whose status only follows.
    """

    kind: str
    instance_uuid: str | None
    side: str | None
    devices: list[PciDevice] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    targets: dict[str, Row] = field(default_factory=dict)
    relatives: dict[str, str] = field(default_factory=dict)
    open: bool = True

    @property
    def freed(self) -> list[str]:
        """Addresses of the devices that their holder gives back."""
        return [address for address, row in self.targets.items() if row.status not in OWNED]


@dataclass(frozen=True)
class Changes:
    """What the rows lack of what the ledger knows: devices without an id, devices with other properties
    (their changed fields are marked), devices that are gone, and statuses that follow from others'."""

    created: list[PciDevice]
    updated: list[PciDevice]
    removed: list[PciDevice]
    plan: Plan

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Row changes as in ``Plan.changes``."""
        return self.plan.changes

    def __bool__(self) -> bool:
        return bool(self.created or self.updated or self.removed or self.statuses)


class PciLedger:
    """All devices of one compute node. Every method may be called from any thread."""

    def __init__(self, specs: DeviceSpecs, compute_node_id: int | None,
                 sockets: Mapping[int, int | None] | None = None) -> None:
        """``sockets``: host NUMA node → socket, for the NUMA policy 'socket' (see ``pools.sockets_of``)."""
        self.compute_node_id = compute_node_id
        self.specs = specs
        self.pools = PciPools(specs=specs, sockets=sockets)
        self._lock = threading.RLock()
        self._devices: dict[str, PciDevice] = {}
        self._children: dict[str, set[str]] = {}
        self._rows: dict[str, Row] = {}
        self._sides: dict[str, str | None] = {}
        self._plans: dict[tuple, Plan] = {}
        self._busy: dict[str, Plan] = {}
        self._dirty: set[str] = set()
        self._stale: dict[str, dict[str, Any]] = {}
        self._gone: set[str] = set()
        self._unsaved: set[str] = set()
        self._removed: dict[str, PciDevice] = {}
        self._sync_plan: Plan | None = None

    @classmethod
    def from_devices(cls, specs: DeviceSpecs, devices: Iterable[PciDevice], compute_node_id: int | None,
                     sockets: Mapping[int, int | None] | None = None) -> PciLedger:
        """From the node's rows. Who holds a device is known; under which side, only after ``set_sides``."""
        ledger = cls(specs, compute_node_id, sockets)
        for device in devices:
            ledger._put(device.obj_clone())
        for address in ledger._devices:
            ledger._refresh([address])
        for device in ledger._devices.values():
            ledger._offer(device)
        return ledger

    # -- discovery -------------------------------------------------------------------------------------------
    def sync(self, discovered: Iterable[Mapping[str, Any]]) -> Changes:
        """Compare with what the host has now (dicts of pci.md §4); returns what is to be written, see
        ``saved``.

        New devices are offered once they are saved. A held device keeps its properties until it is freed; one
        that disappears while it is held stays until then: freed, its row says so, and goes at the next look.
        """
        with self._lock:
            found = {}
            for one in discovered:
                spec = self.specs.match(one)
                if spec is not None:
                    found[one['address']] = (one, spec)
            self.specs.tell(found.values())
            for address, (one, spec) in found.items():
                if address in self._removed:
                    self._put(self._removed.pop(address))
                    self._offer(self._devices[address])
                if address in self._devices:
                    self._update(self._devices[address], pci_device.values(one, spec.tags))
                else:
                    self._put(pci_device.build(one, spec.tags, self.compute_node_id, uuidutils.generate_uuid()))
            for address in [address for address in self._devices if address not in found]:
                self._lose(self._devices[address])
            self._refresh(list(self._devices))
            return self.unsaved()

    def unsaved(self) -> Changes:
        """All that the rows lack: of ``sync``, ``set_providers``, freed devices and statuses that follow."""
        with self._lock:
            if self._sync_plan is not None:
                self._end(self._sync_plan)
            plan = self._sync_plan = Plan('sync', None, None)
            self._fill(plan, self._dirty)
            created = [device for device in self._devices.values() if 'id' not in device]
            updated = [self._devices[address] for address in sorted(self._unsaved)
                       if 'id' in self._devices[address]]
            return Changes([device.obj_clone() for device in created],
                           [device.obj_clone() for device in updated], list(self._removed.values()), plan)

    def saved(self, changes: Changes, ids: Mapping[str, int] | None = None) -> None:
        """The changes are written; ``ids``: row ids of the created devices by address."""
        with self._lock:
            for written in changes.created:
                device = self._devices.get(written.address)
                if device is not None and 'id' not in device:
                    device.id = (ids or {})[written.address]
                    device.obj_reset_changes()
                    self._rows[device.address] = Row(written.status)
                    self._mark(device)
                    self._offer(device)
            for device in changes.updated:
                mine = self._devices.get(device.address)
                if mine is not None and mine.primitive_data() == device.primitive_data():
                    self._unsaved.discard(device.address)
                    mine.obj_reset_changes()
            for device in changes.removed:
                self._removed.pop(device.address, None)
            self.commit(changes.plan)

    def set_providers(self, providers: Mapping[str, str]) -> None:
        """Tie devices to their resource providers: {address of device or physical function: provider
        uuid}."""
        with self._lock:
            for device in self._devices.values():
                rp_uuid = providers.get(pci_device.pool_address(device))
                if rp_uuid is not None and device.extra_info.get('rp_uuid') != rp_uuid:
                    device.extra_info = {**device.extra_info, 'rp_uuid': rp_uuid}
                    self._unsaved.add(device.address)
            for address, rp_uuid in providers.items():
                self.pools.set_provider(address, rp_uuid)

    # -- plans -----------------------------------------------------------------------------------------------
    def choose(self, requests: Requests,
               numa_cells: Iterable[Any] | None = None) -> list[tuple[PciDevice, str]]:
        """Which free devices would serve the requests, as (device, request id); takes nothing.

        Exactly the devices of ``rp_uuids`` where the requests carry them. PciDeviceRequestFailed if there are
        too few.
        """
        with self._lock:
            return self.pools.copy().consume_requests(requests, numa_cells=numa_cells)

    def plan_claim(self, instance_uuid: str, requests: Requests, numa_cells: Iterable[Any] | None = None, *,
                   side: str = RUN, allocate: bool = False) -> Plan:
        """Reserve devices for all requests, or raise PciDeviceRequestFailed and reserve none.

        ``allocate``: straight to allocated instead of claimed. A claim that this server and side have already
        gives a plan that takes nothing more. PciClaimExists: they hold devices of other requests.
        """
        wanted, cells = as_list(requests), list(numa_cells or ())
        status = ALLOCATED if allocate else CLAIMED
        with self._lock:
            key = ('claim', instance_uuid, side)
            if key in self._plans:
                return self._plans[key]
            held = self._held(instance_uuid, side, {request.request_id for request in wanted})
            if held:
                self._check_held(instance_uuid, held, wanted)
                chosen = []
            else:
                chosen = self.choose(wanted, cells)
            plan = Plan('claim', instance_uuid, side)
            for device, request_id in chosen:
                self._check_relatives(device)
                plan.targets[device.address] = Row(status, instance_uuid, request_id)
                if cells and device.numa_node is None:
                    LOG.warning('Assigning a pci device without numa affinity to instance %s which has numa '
                                'topology', instance_uuid)
            for device in held:
                if allocate and device.status == CLAIMED:
                    plan.targets[device.address] = Row(ALLOCATED, instance_uuid, device.request_id)
            plan.devices = self._copies(plan, [*held, *(device for device, _ in chosen)])
            self._start(key, plan)
            for device, _ in chosen:
                self._sides[device.address] = side
                self._set(device, plan.targets[device.address])
            self._refresh(self._relatives_of(plan.targets))
            return plan

    def plan_allocate(self, instance_uuid: str, side: str | None = None) -> Plan:
        """Claimed devices of a server become allocated. ``side`` None: all of them."""
        with self._lock:
            return self._plan_change('allocate', instance_uuid, side, [
                device for device in self._owned(instance_uuid, side) if device.status == CLAIMED],
                lambda device: Row(ALLOCATED, instance_uuid, device.request_id))

    def plan_free(self, instance_uuid: str, *, side: str | None = None, keep_side: str | None = None,
                  addresses: Collection[str] | None = None) -> Plan:
        """Give a server's devices back: all of them, or those of ``side``, or all but ``keep_side``'s, of
        ``addresses``.

        Devices that aren't the server's are left alone; freeing twice changes nothing.
        """
        with self._lock:
            devices = [device for device in self._owned(instance_uuid, side)
                       if (keep_side is None or self._sides.get(device.address) != keep_side)
                       and (addresses is None or device.address in addresses)]
            return self._plan_change('free', instance_uuid, side, devices, lambda device: Row(
                REMOVED if device.address in self._gone else AVAILABLE))

    def commit(self, plan: Plan) -> None:
        """The plan's changes are written. A plan that has ended stays as it is."""
        with self._lock:
            if not plan.open:
                return
            self._end(plan)
            for address, row in plan.targets.items():
                self._rows[address] = row
                self._set(self._devices[address], row)
            for address, status in plan.relatives.items():
                if address in self._devices:
                    self._rows[address] = Row(status)
                    self._mark(self._devices[address])
            self._settle(plan)

    def abort(self, plan: Plan) -> None:
        """The plan's changes are not written and won't be. A plan that has ended stays as it is."""
        with self._lock:
            if not plan.open:
                return
            self._end(plan)
            for address in plan.targets:
                self._set(self._devices[address], self._rows[address])
            self._settle(plan)

    def _plan_change(self, kind: str, instance_uuid: str, side: str | None, devices: list[PciDevice],
                     target: Callable[[PciDevice], Row]) -> Plan:
        key = (kind, instance_uuid, side, *sorted(device.address for device in devices))
        if key in self._plans:
            return self._plans[key]
        plan = Plan(kind, instance_uuid, side, targets={device.address: target(device) for device in devices})
        plan.devices = self._copies(plan, devices)
        self._start(key, plan)
        return plan

    def _start(self, key: tuple, plan: Plan) -> None:
        """Write down the plan's changes. An empty plan need not be ended, so it is not kept."""
        for address in self._busy.keys() & plan.targets.keys():
            raise PciDeviceInvalidStatus(
                compute_node_id=self.compute_node_id, address=address, hopestatus='at rest',
                status=f'{self._devices[address].status} (in another {self._busy[address].kind})')
        if plan.targets:
            self._fill(plan, self._relatives_of(plan.targets) | self._dirty)
            self._plans[key] = plan

    def _fill(self, plan: Plan, relatives: Collection[str]) -> None:
        """The row changes of a plan: its targets, then the free relatives as they will be with all open plans
        done."""
        for address, row in plan.targets.items():
            self._busy[address] = plan
            self._add_change(plan, address, row, row.instance_uuid or plan.instance_uuid)
        for address in sorted(relatives):
            device = self._devices[address]
            if address in self._busy or device.status in OWNED or 'id' not in device:
                continue
            status = self._rest_status(device, self._predicted)
            if status != self._rows[address].status:
                plan.relatives[address] = status
                self._busy[address] = plan
                if status == AVAILABLE:
                    # While its row is being written, nobody can say from which status a claim would take it.
                    self.pools.remove_device(address, keep_pool=True)
                self._add_change(plan, address, Row(status), None)

    def _add_change(self, plan: Plan, address: str, row: Row, instance_uuid: str | None) -> None:
        plan.changes.append({
            'id': self._devices[address].id, 'address': address, 'from': self._rows[address].status,
            'to': row.status, 'instance_uuid': instance_uuid, 'request_id': row.request_id})

    def _end(self, plan: Plan) -> None:
        plan.open = False
        for address in (*plan.targets, *plan.relatives):
            if self._busy.get(address) is plan:
                del self._busy[address]
                if address in plan.relatives:
                    self._offer(self._devices[address])
        for key in [key for key, other in self._plans.items() if other is plan]:
            del self._plans[key]

    def _settle(self, plan: Plan) -> None:
        """After a plan's targets have their status: the freed ones take over what they missed or leave,
        relatives follow."""
        touched = {*plan.targets, *self._relatives_of(plan.targets)}
        for address in plan.targets:
            if self._devices[address].status not in OWNED:
                self._sides.pop(address, None)
                if address in self._stale:
                    self._update(self._devices[address], self._stale.pop(address))
                elif address in self._gone:
                    self._lose(self._devices[address])
        self._refresh(touched & self._devices.keys())

    # -- looking ---------------------------------------------------------------------------------------------
    def devices(self) -> list[PciDevice]:
        """Copies of all devices."""
        with self._lock:
            return [device.obj_clone() for device in self._devices.values()]

    def devices_of(self, instance_uuid: str, side: str | None = None) -> list[PciDevice]:
        """Copies of the devices that a server holds (claimed or allocated), by address. ``side`` None:
        all."""
        with self._lock:
            return [device.obj_clone() for device in self._owned(instance_uuid, side)]

    def owners(self) -> dict[str, list[str]]:
        """Addresses of the devices that each server holds: for finding what nobody gave back."""
        with self._lock:
            owners: dict[str, list[str]] = {}
            for device in self._devices.values():
                if device.status in OWNED:
                    owners.setdefault(device.instance_uuid, []).append(device.address)
            return owners

    def set_sides(self, instance_uuid: str, sides: Mapping[str, str]) -> None:
        """After a restart: under which side a server holds which address (from its migration context)."""
        with self._lock:
            for device in self._owned(instance_uuid, None):
                if device.address in sides:
                    self._sides[device.address] = sides[device.address]

    def pool_list(self, plan: Plan | None = None) -> PciDevicePoolList:
        """What ``compute_nodes.pci_stats`` is to say; with a plan: once that and all other open plans are
        done."""
        with self._lock:
            if plan is None:
                return self.pools.to_pool_list()
            pools = self.pools.copy()
            freed = {address for one in self._busy.values() for address, row in one.targets.items()
                     if row.status not in OWNED and address not in self._gone}
            for address in sorted(freed | self._relatives_of(freed)):
                device = self._devices[address]
                if device.status == AVAILABLE or address in self._gone or 'id' not in device:
                    continue
                owned_still = device.status in OWNED and address not in freed
                if not owned_still and self._rest_status(device, self._predicted) == AVAILABLE:
                    pools.add_device(device)
            return pools.to_pool_list()

    # -- families --------------------------------------------------------------------------------------------
    def _relatives(self, device: PciDevice) -> set[str]:
        """The physical function of a virtual one, or the functions below a physical one."""
        if is_child(device):
            return {device.parent_addr} & self._devices.keys()
        return self._children.get(device.address, set()) if device.dev_type == PF else set()

    def _relatives_of(self, addresses: Iterable[str]) -> set[str]:
        return {relative for address in addresses for relative in self._relatives(self._devices[address])}

    def _rest_status(self, device: PciDevice, status_of: Callable[[str], str]) -> str:
        """The status of a device that nobody holds: it follows from who holds its relatives."""
        statuses = {status_of(address) for address in self._relatives(device)}
        return UNAVAILABLE if ALLOCATED in statuses else UNCLAIMABLE if CLAIMED in statuses else AVAILABLE

    def _predicted(self, address: str) -> str:
        plan = self._busy.get(address)
        row = plan.targets.get(address) if plan is not None else None
        return row.status if row is not None else self._devices[address].status

    def _refresh(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            device = self._devices[address]
            if device.status not in OWNED:
                status = self._rest_status(device, lambda relative: self._devices[relative].status)
                self._set(device, Row(status))

    def _check_relatives(self, device: PciDevice) -> None:
        """The pools never offer such a device; a row written by somebody else might."""
        for address in self._relatives(device):
            relative = self._devices[address]
            if relative.status not in OWNED:
                continue
            if device.dev_type == PF:
                raise PciDeviceVFInvalidStatus(compute_node_id=self.compute_node_id, address=device.address)
            raise PciDevicePFInvalidStatus(compute_node_id=self.compute_node_id, address=address,
                                           vf_address=device.address, status=relative.status,
                                           hopestatus=AVAILABLE)

    # -- single devices --------------------------------------------------------------------------------------
    def _put(self, device: PciDevice) -> None:
        self._devices[device.address] = device
        if 'id' in device:
            self._rows[device.address] = Row(device.status, device.instance_uuid, device.request_id)
        if is_child(device) and device.parent_addr:
            self._children.setdefault(device.parent_addr, set()).add(device.address)

    def _drop(self, device: PciDevice) -> None:
        for known in (self._devices, self._rows, self._stale, self._sides):
            known.pop(device.address, None)  # type: ignore[attr-defined]
        for marks in (self._dirty, self._gone, self._unsaved, *self._children.values()):
            marks.discard(device.address)
        self.pools.remove_device(device.address)

    def _set(self, device: PciDevice, row: Row) -> None:
        """Change owner and status in memory, and whether the pools offer the device."""
        before = device.status
        if (before, device.instance_uuid, device.request_id) != row:
            device.status, device.instance_uuid, device.request_id = row
            device.obj_reset_changes(_OWNER_FIELDS)
        if before == AVAILABLE != row.status:
            self.pools.remove_device(device.address, keep_pool=row.status in OWNED)
        elif row.status == AVAILABLE != before:
            self._offer(device)
        self._mark(device)

    def _mark(self, device: PciDevice) -> None:
        row = self._rows.get(device.address)
        if row is not None and row.status != device.status and device.status not in OWNED:
            self._dirty.add(device.address)
        else:
            self._dirty.discard(device.address)

    def _offer(self, device: PciDevice) -> None:
        blocked = device.address in self._gone or device.address in self._busy
        if device.status == AVAILABLE and 'id' in device and not blocked:
            self.pools.add_device(device)

    def _update(self, device: PciDevice, values: dict[str, Any]) -> None:
        """Take over discovered properties; a held device takes them over when it is freed."""
        returned = device.address in self._gone
        self._gone.discard(device.address)
        info = dict(values['extra_info'])
        if 'rp_uuid' in device.extra_info:
            info['rp_uuid'] = device.extra_info['rp_uuid']
        changed = {name: value for name, value in {**values, 'extra_info': info}.items()
                   if getattr(device, name) != value}
        self._stale.pop(device.address, None)
        if changed and (device.status in OWNED or device.address in self._busy):
            self._stale[device.address] = values
        elif changed or returned:
            self._change(device, changed)

    def _change(self, device: PciDevice, changed: Mapping[str, Any]) -> None:
        self.pools.remove_device(device.address)
        for children in self._children.values():
            children.discard(device.address)
        for name, value in changed.items():
            setattr(device, name, value)
        if is_child(device) and device.parent_addr:
            self._children.setdefault(device.parent_addr, set()).add(device.address)
        if changed and 'id' in device:
            self._unsaved.add(device.address)
        self._offer(device)

    def _lose(self, device: PciDevice) -> None:
        if device.status not in OWNED and device.address not in self._busy:
            self._drop(device)
            if 'id' in device:
                self._removed[device.address] = device
            return
        if device.address not in self._gone:
            LOG.warning("Unable to remove device with status '%s' and ownership %s because of it being in use; "
                        '%s is removed when it is freed', device.status, device.instance_uuid, device.address)
        self._gone.add(device.address)
        self._stale.pop(device.address, None)

    # -- owners ----------------------------------------------------------------------------------------------
    def _owned(self, instance_uuid: str, side: str | None) -> list[PciDevice]:
        devices = [device for device in self._devices.values()
                   if device.instance_uuid == instance_uuid and device.status in OWNED
                   and (side is None or self._sides.get(device.address) == side)]
        return sorted(devices, key=lambda device: device.address)

    def _held(self, instance_uuid: str, side: str, request_ids: set[str]) -> list[PciDevice]:
        held = self._owned(instance_uuid, side)
        if held:
            return held
        held = [device for device in self._owned(instance_uuid, None)
                if self._sides.get(device.address) is None and device.request_id in request_ids]
        self._sides.update({device.address: side for device in held})
        return held

    @staticmethod
    def _check_held(instance_uuid: str, held: list[PciDevice], wanted: list[Any]) -> None:
        have = Counter(device.request_id for device in held)
        want = Counter({request.request_id: request.count for request in wanted})
        if have != want:
            raise PciClaimExists(instance_uuid=instance_uuid,
                                 addresses=', '.join(device.address for device in held))

    @staticmethod
    def _copies(plan: Plan, devices: Iterable[PciDevice]) -> list[PciDevice]:
        copies = []
        for device in devices:
            copy = device.obj_clone()
            row = plan.targets.get(device.address)
            if row is not None:
                copy.status, copy.instance_uuid, copy.request_id = row
            copy.obj_reset_changes()
            copies.append(copy)
        return copies
