"""Count free devices by pool, and find devices for requests.

A pool has the free devices of a host that have equal properties. The scheduler knows only the number of devices in each
pool, the host also knows the devices. Scheduler and host use this same code.

    pools = PciPools.from_pool_list(compute_node.pci_device_pools)        # scheduler
    if pools.support_requests(requests, provider_mapping=mapping, numa_cells=cells):
        pools.consume_requests(requests, provider_mapping=mapping, numa_cells=cells)

    pools = PciPools.from_devices([(device, kind.pool_keys(device)), …])  # host
    pools.consume_requests(requests)           # [(PciDevice, request_id), …], or raises PciDeviceRequestFailed

There is one pool for each physical function (with its virtual functions) and one for each other device. Two equal
devices are in two pools, and one request may take devices from several pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kilonova import errors
from kilonova.objects import (
    InstanceNUMACell,
    InstancePCIRequest,
    InstancePCIRequests,
    NUMACell,
    NUMATopology,
    PciDevice,
    PciDevicePool,
    PciDevicePoolList,
)
from kilonova.pci.device import AVAILABLE, CHILD_TYPES, MDEV, OWNED, PF, PORT_PROVIDERS, SWITCHDEV, VDPA, PoolKeys
from kilonova.pci.request import (
    DEFAULT_NUMA_POLICY,
    PLACEMENT_KEYS,
    allocated_providers,
    as_list,
    group_name,
    guarantors,
)

# Tag in a device_spec. Its devices are given only to Neutron ports, not to the aliases of flavors.
NETWORK = 'physical_network'
# Tag in a device_spec for devices of a SmartNIC (DPU). They are given only to ports with vnic_type remote-managed.
REMOTE_MANAGED = 'remote_managed'
_FIELDS = ('vendor_id', 'product_id', 'numa_node')
# A NUMA policy that only this module uses: the devices may be on any NUMA node of the host.
ANYWHERE = 'anywhere'

Requests = Iterable[InstancePCIRequest] | InstancePCIRequests | None
ProviderMapping = Mapping[str, Sequence[str]]
# The host's NUMA cells on which the guest's cells are placed: ids, or objects with ``id``.
GuestCells = Iterable[int | InstanceNUMACell | NUMACell]


class PciDeviceRequestFailed(errors.KilonovaError):
    """Too few free devices match the requests."""

    msg_fmt = 'PCI device request %(requests)s failed'


@dataclass(eq=False, slots=True)
class DevicePool:
    """Free devices with equal properties. ``devices`` is None in the scheduler, which knows only the ``count``."""

    keys: Mapping[str, Any]
    count: int
    devices: list[PciDevice] | None = None
    rp_uuid: str | None = None

    def add(self, device: PciDevice) -> None:
        """Add one free device."""
        self.count += 1
        if self.devices is not None:
            self.devices.append(device)

    def copy(self) -> DevicePool:
        """Return a copy of the pool. Devices that are taken from the copy stay in this pool.

        The copy shares ``keys``, which is never changed.
        """
        return DevicePool(self.keys, self.count, None if self.devices is None else list(self.devices), self.rp_uuid)

    def matches(self, wanted: Mapping[str, str | None]) -> bool:
        """Return whether the pool has each property that a request's spec ``wanted`` names, with the same value.

        Upper and lower case count as equal.
        """
        for name, value in wanted.items():
            has = self.keys.get(name)
            if name in PLACEMENT_KEYS or (has == value and name in self.keys):
                continue
            if not isinstance(has, str) or not isinstance(value, str) or has.lower() != value.lower():
                return False
        return True

    def guarantees(self, providers: set[str]) -> bool:
        """Return whether one of these QoS providers of Neutron belongs to the physical function of the pool's devices.

        The providers have minimum bandwidth or packet rate. The property PORT_PROVIDERS of the pool lists their uuids.
        """
        return not providers.isdisjoint(str(self.keys.get(PORT_PROVIDERS, '')).split(','))


class PciPools:
    """All pools of one host."""

    def __init__(self, pools: Iterable[DevicePool] = (), sockets: Mapping[int, int | None] | None = None) -> None:
        """Create the pools. ``sockets`` is a dict from host NUMA node to socket (see ``sockets_of``)."""
        self.pools = list(pools)
        self.sockets = sockets

    @classmethod
    def from_pool_list(
        cls, pool_list: PciDevicePoolList | None, sockets: Mapping[int, int | None] | None = None
    ) -> PciPools:
        """Return the scheduler's pools from the counts that a compute node's row stores."""
        pools = []
        for stored in pool_list or ():
            keys = dict(stored.tags)
            rp_uuid = keys.pop('rp_uuid', None)
            keys.update({name: getattr(stored, name) for name in _FIELDS})
            pools.append(DevicePool(keys, stored.count, None, rp_uuid))
        return cls(pools, sockets)

    @classmethod
    def from_devices(
        cls, devices: Iterable[tuple[PciDevice, PoolKeys]], sockets: Mapping[int, int | None] | None = None
    ) -> PciPools:
        """Return the host's pools from devices, each with the properties of its pool (``DeviceKind.pool_keys``).

        Only available devices count as free. If servers hold all devices of a pool, its count is 0.
        """
        pools: dict[frozenset[tuple[str, str | int | None]], DevicePool] = {}
        for device, keys in devices:
            if device.status != AVAILABLE and device.status not in OWNED:
                continue
            pool = pools.setdefault(frozenset(keys.items()), DevicePool(keys, 0, []))
            pool.rp_uuid = device.extra_info.get('rp_uuid') or pool.rp_uuid
            if device.status == AVAILABLE:
                pool.add(device)
        # Pools with the most properties come last, so that their devices are kept for requests for these properties.
        return cls(sorted(pools.values(), key=lambda pool: len(pool.keys)), sockets)

    def copy(self) -> PciPools:
        """Return a copy of the pools. Devices that are taken from the copy stay in these pools."""
        return PciPools([pool.copy() for pool in self.pools], self.sockets)

    @property
    def free(self) -> int:
        """The number of free devices in all pools."""
        return sum(pool.count for pool in self.pools)

    def to_pool_list(self) -> PciDevicePoolList:
        """Return the pools as the object that the column ``pci_stats`` of a row in compute_nodes stores."""
        pools = []
        for pool in self.pools:
            tags = {name: value for name, value in pool.keys.items() if name not in _FIELDS}
            if pool.rp_uuid:
                tags['rp_uuid'] = pool.rp_uuid
            fields = {name: pool.keys.get(name) for name in _FIELDS}
            pools.append(PciDevicePool(tags=tags, count=pool.count, **fields))
        return PciDevicePoolList(objects=pools)

    # -- taking devices for requests -------------------------------------------------------------------------
    def support_requests(
        self, requests: Requests, provider_mapping: ProviderMapping | None = None, numa_cells: GuestCells | None = None
    ) -> bool:
        """Return whether the pools have enough devices for all requests together. The pools are not changed.

        ``provider_mapping`` is a dict from a request group of the Placement query to its provider uuids. ``numa_cells``
        are the host's NUMA cells on which the guest's cells are placed.
        """
        wanted = as_list(requests)
        if not wanted:
            return True
        try:
            self.copy().take(wanted, provider_mapping, numa_cells)
        except PciDeviceRequestFailed:
            return False
        return True

    def consume_requests(
        self, requests: Requests, provider_mapping: ProviderMapping | None = None, numa_cells: GuestCells | None = None
    ) -> list[tuple[PciDevice, str]]:
        """Take devices for the requests out of the pools, and return them as pairs (device, request id).

        In the scheduler, which does not know the devices, the list is empty. ``provider_mapping`` is the allocation
        candidate's dict from a request group to its provider uuids. Without it, the providers in the
        requests' ``rp_uuids`` are used. ``numa_cells`` are the host's NUMA cells on which the guest's cells are placed,
        as ids or objects with ``id``. If they are empty or None, the guest has no NUMA topology and any device is
        accepted. Raises PciDeviceRequestFailed if there are too few devices; the pools are then unchanged.
        """
        trial = self.copy()
        taken = trial.take(as_list(requests), provider_mapping, numa_cells)
        self.pools = trial.pools
        return taken

    def providers(self, requests: Requests) -> dict[str, list[str]] | None:
        """Choose resource providers of free devices for the requests of the flavor's PCI aliases.

        Used if the scheduler chooses a host with its own data and does not query Placement. Return a dict in the form
        of Placement's mappings, {request group: [provider uuid]}, or None if too few devices are free.
        """
        trial = self.copy()
        mappings: dict[str, list[str]] = {}
        trial.pools = [pool for pool in trial.pools if pool.rp_uuid is not None]
        for request in as_list(requests):
            pools = trial._filter(request, numa_policy_of(request), Counter(), set(), set())  # noqa: SLF001 - a copy of one's own
            try:
                served = trial._serve(request, pools or [], Counter())  # noqa: SLF001 - the same
            except PciDeviceRequestFailed:
                return None
            chosen = [pool.rp_uuid or '' for pool, count, _ in served for _ in range(count)]
            mappings.update((group_name(request.request_id, index), [uuid]) for index, uuid in enumerate(chosen))
        return mappings

    def take(
        self, requests: list[InstancePCIRequest], mapping: ProviderMapping | None, numa_cells: GuestCells | None
    ) -> list[tuple[PciDevice, str]]:
        """Take devices for the requests out of these pools, and return them as pairs (device, request id).

        Call this method on a copy of the pools: if it raises PciDeviceRequestFailed, a part of the devices may be taken
        already.
        """
        cells = {cell if isinstance(cell, int) else cell.id for cell in numa_cells or ()}
        taken: list[tuple[PciDevice, str]] = []
        for request in requests:
            providers: Counter[str | None] = Counter(allocated_providers(request, mapping))
            pools = self._filter(request, numa_policy_of(request), providers, cells, guarantors(request, mapping))
            if pools is None:
                raise PciDeviceRequestFailed(requests=requests)
            for _, _, devices in self._serve(request, pools, providers):
                taken.extend((device, request.request_id) for device in devices)
        return taken

    def _serve(
        self, request: InstancePCIRequest, pools: list[DevicePool], providers: Counter[str | None]
    ) -> list[tuple[DevicePool, int, list[PciDevice]]]:
        """Take devices for one request out of ``pools``, and return (pool, number of devices taken, the devices).

        There is one such tuple for each pool, perhaps with the number 0. In the scheduler, which knows only numbers,
        the list of devices is empty. ``providers`` has the number of devices to take at each resource provider; if it
        is empty, any provider is accepted. Raises PciDeviceRequestFailed if there are too few devices.
        """
        taken = []
        missing, left = request.count, providers.copy()
        for pool in pools:
            # ``_take_from`` may have removed this pool from self.pools when it took devices of an earlier pool.
            if pool not in self.pools:
                continue
            share = min(left[pool.rp_uuid] if providers else missing, pool.count)
            missing -= share
            left[pool.rp_uuid] -= share
            taken.append((pool, share, self._take_from(pool, share)))
        if missing:
            raise PciDeviceRequestFailed(requests=[request])
        return taken

    def _take_from(self, pool: DevicePool, count: int) -> list[PciDevice]:
        if not count:
            return []
        pool.count -= count
        devices = []
        if pool.devices is not None:
            devices, pool.devices = pool.devices[:count], pool.devices[count:]
        # A physical function and its virtual functions can't be held at the same time.
        # After a physical function is taken, the pool of its virtual functions is removed from self.pools.
        # After a virtual function is taken, the pool of its physical function is removed from self.pools.
        kind = pool.keys.get('dev_type')
        gone = CHILD_TYPES if kind == PF else {PF} if kind in CHILD_TYPES else ()
        address = pool.keys.get('address')
        if gone and address is not None:
            self.pools = [
                other
                for other in self.pools
                if other.keys.get('dev_type') not in gone or other.keys.get('address') != address
            ]
        return devices

    def _filter(
        self,
        request: InstancePCIRequest,
        numa_policy: str,
        providers: Counter[str | None],
        cells: set[int],
        chosen: set[str],
    ) -> list[DevicePool] | None:
        """Return the pools that may serve the request, best first, or None if they have too few devices.

        ``providers`` is the number of devices that Placement allocated at each resource provider. ``cells`` are the
        host's NUMA cells on which the guest is placed. ``chosen`` are the QoS providers (minimum bandwidth or packet
        rate) that Placement allocated for the port. If it is not empty, a pool must list one of them.
        """
        specs, count = request.spec, request.count
        pools = [
            pool
            for pool in self.pools
            if any(pool.matches(one) for one in specs)  # 1: properties
            and not is_apart(pool.keys, specs)
        ]
        if chosen:
            pools = [pool for pool in pools if pool.guarantees(chosen)]
        if _total(pools) < count:
            return None
        # NUMA affinity is ignored for mediated devices: the allocation in Placement already fixes their parent card.
        if _asks(specs, 'dev_type', MDEV):  # 2: NUMA nodes
            numa_policy = ANYWHERE
        else:
            pools = [pool for pool in pools if pool.keys.get('dev_type') != MDEV]
        pools = self._filter_numa(pools, numa_policy, cells, count)
        if _total(pools) < count:
            return None
        if not _asks(specs, 'dev_type', PF):  # 3: functions
            pools = [pool for pool in pools if pool.keys.get('dev_type') != PF]
        if _total(pools) < count:
            return None
        if not _asks(specs, 'dev_type', VDPA):  # 4: vDPA
            pools = [pool for pool in pools if pool.keys.get('dev_type') != VDPA]
        if providers:  # 5: providers
            pools = [pool for pool in pools if pool.rp_uuid in providers]
        for answer in ('true', 'false'):  # 6: migration
            if specs and all(one.get('live_migratable') == answer for one in specs):
                pools = [pool for pool in pools if pool.keys.get('live_migratable') == answer]
        if _total(pools) < count or (providers and providers.total() != count):
            return None
        return pools

    def _filter_numa(self, pools: list[DevicePool], policy: str, cells: set[int], count: int) -> list[DevicePool]:
        if not cells or policy == ANYWHERE:
            return pools
        near = [pool for pool in pools if pool.keys.get('numa_node') in cells]
        if policy == 'required' or _total(near) >= count:
            return near
        if policy == 'socket':
            return self._same_socket(pools, cells)
        nearish = near + [pool for pool in pools if pool.keys.get('numa_node') is None]
        if policy == 'legacy' or _total(nearish) >= count:
            return nearish
        return nearish + [pool for pool in pools if pool not in nearish]

    def _same_socket(self, pools: list[DevicePool], cells: set[int]) -> list[DevicePool]:
        sockets = self.sockets
        if not sockets or None in sockets.values():
            return []
        wanted = {sockets[cell] for cell in cells if cell in sockets}
        return [
            pool
            for pool in pools
            if pool.keys.get('numa_node') in sockets and sockets[pool.keys['numa_node']] in wanted
        ]


def is_apart(keys: Mapping[str, object], specs: Collection[Mapping[str, object]]) -> bool:
    """Return True if a PCI request with these specs must not get devices of a pool with these properties.

    Remote managed devices are only for ports with vnic_type remote-managed. Devices with the tag physical_network are
    only for ports. A port without hardware offload does not get a virtual function in switchdev mode.
    """
    if keys.get(REMOTE_MANAGED) == 'true' and not _asks(specs, REMOTE_MANAGED, 'true'):
        return True
    if not any(NETWORK in one for one in specs):
        return NETWORK in keys
    # A virtual function in switchdev mode is connected to the network by the switch on its card.
    # Return True if the pool has switchdev functions, but the port has no hardware offload and is not remote-managed.
    return SWITCHDEV in keys and not _asks(specs, REMOTE_MANAGED, 'true') and not _asks(specs, SWITCHDEV, 'true')


def sockets_of(numa_topology: NUMATopology | None) -> dict[int, int | None]:
    """Return a dict from host NUMA node to CPU socket. The socket is None if the host does not report it."""
    if numa_topology is None:
        return {}
    return {cell.id: cell.socket if 'socket' in cell else None for cell in numa_topology.cells}


def numa_policy_of(request: InstancePCIRequest) -> str:
    """Return the request's NUMA policy: how near its devices must be to the guest's NUMA cells.

    The default is 'legacy', as in Nova.
    """
    return (request.numa_policy if 'numa_policy' in request else None) or DEFAULT_NUMA_POLICY


def _total(pools: Iterable[DevicePool]) -> int:
    return sum(pool.count for pool in pools)


def _asks(specs: Iterable[Mapping[str, object]], key: str, value: str) -> bool:
    return any(str(one.get(key)).lower() == value.lower() for one in specs)
