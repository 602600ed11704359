"""Keep the compute node's records, the tracker and Placement equal to what the hypervisor reports.

    node = Node(host, placement, get_admin_context)
    node.start()           # load records and fill the tracker, before guests are started
    node.announce()        # the first update: writes the host's inventory and devices to the database and to Placement
    node.update()          # repeats the update every update_resources_interval seconds

``manager`` uses it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from oslo_log import log as logging

from kilonova import errors, objects
from kilonova.clients.placement import PlacementClient
from kilonova.compute import records
from kilonova.compute.device_inventory import DeviceInventory
from kilonova.compute.host import ComputeHost
from kilonova.compute.ops import move
from kilonova.compute.tracker import RUN, SERIAL, HostCapacity, HostNumaCells, claim_key
from kilonova.context import RequestContext
from kilonova.pci import kinds
from kilonova.pci import placement as pci_placement
from kilonova.pci.devices import NodeDevices
from kilonova.pci.pools import sockets_of
from kilonova.pci.request import Aliases, allocated_providers, as_list
from kilonova.virt.hardware import numa
from kilonova.virt.inventory import ratios

LOG = logging.getLogger(__name__)

# The devices that a server holds: a set of pairs (device's address, id of the PCI request that it was claimed for).
Held = frozenset[tuple[str, str | None]]


class Node:
    """The compute node of one host. ``placement`` is None for a compute without Placement, in tests."""

    def __init__(
        self,
        host: ComputeHost,
        placement: PlacementClient | None,
        ctxt: Callable[[], RequestContext],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._placement, self._ctxt, self._clock = host, placement, ctxt, clock
        self.kinds = kinds.from_conf(host.conf)
        # Parse the aliases only to find errors: a wrong alias must end the start, not fail a later move.
        Aliases.from_conf(host.conf)
        self._refreshed = clock()
        self._disabled: bool | None = None
        self._disabling = threading.Lock()
        # {server uuid: the devices that are known to be in the server's Placement allocations}
        self._allocated: dict[str, Held] = {}
        # Servers whose allocations must be compared with Placement again.
        self._doubted: set[str] = set()
        # Servers for which a warning about missing allocations has been logged.
        self._warned: set[str] = set()
        self.service: objects.Service
        host.tracker.reload = self._reload
        self.book = DeviceInventory(host, placement, ctxt)

    @property
    def record(self) -> objects.ComputeNode:
        """The compute node's record."""
        return self._host.tracker.node

    # -- start of the service ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Load or create the records of the host and fill the tracker, so that guests can be started.

        Placement is not used, because it may come back later than this host. Raises Unanswered if the conductor does
        not answer; the method can then be called again.
        """
        ctxt, host = self._ctxt(), self._host
        resources = host.driver.host.get_available_resource()
        for kind in self.kinds:
            kind.check(resources['pci_passthrough_devices'])
        # Read the node first: if the host was renamed, this raises an error before a service record is created.
        host.tracker.node = records.node(ctxt, host.name, resources, host.conf.my_ip)
        self.service = records.service(ctxt, host.name, host.notify)
        stats = self.record.stats if 'stats' in self.record else None
        host.tracker.serial = max(host.tracker.serial, int((stats or {}).get(SERIAL) or 0))
        host.tracker.cells = HostNumaCells(objects.NUMATopology.from_json(resources['numa_topology']))
        if 'service_id' not in self.record or self.record.service_id != self.service.id:
            self.record.service_id = self.service.id
        self._fill_ledger(ctxt)
        self._doubted = {device.instance_uuid for device in host.tracker.host_devices.held()}
        self._adopt(ctxt)

    def announce(self) -> None:
        """Write the host's inventory and devices to the database and to Placement.

        Raises Unanswered if a service does not answer; the method can then be called again.
        """
        self._report(self._ctxt(), self._host.driver.host.get_available_resource(), refresh=True)
        self.set_disabled(self.service.disabled)

    def set_disabled(self, disabled: bool) -> None:
        """Set or remove the trait on the node's Placement provider that marks the host as disabled for schedulers."""
        if self._placement is not None:
            with self._disabling:
                self._placement.set_host_disabled(self.record.uuid, disabled)
                self._disabled = disabled

    def _fill_ledger(self, ctxt: RequestContext) -> None:
        tracker = self._host.tracker
        tracker.load(
            NodeDevices.of(
                self.kinds, records.devices(ctxt, self.record.id), self.record.id, sockets_of(tracker.cells.topology)
            )
        )

    def _reload(self, ctxt: RequestContext) -> None:
        """Read the device rows again, because the tracker's copy of the rows may be out of date.

        The caller must hold ``Tracker.writing``.
        """
        LOG.info('Reading the PCI devices of node %s from the database again', self.record.hypervisor_hostname)
        self._fill_ledger(ctxt)

    def _adopt(self, ctxt: RequestContext) -> None:
        """Record in the tracker the resources of this host's servers, and of servers that move from or to this host."""
        host, tracker = self._host, self._host.tracker
        moves = {one.instance_uuid: one for one in records.moves(ctxt, host.name, tracker.nodename)}
        for instance in records.instances(ctxt, host.name):
            self._adopt_one(instance, moves.pop(instance.uuid, None))
        for uuid, migration in moves.items():
            try:
                moving = records.instance(ctxt, uuid)
            except errors.ServerUnreadable as error:
                LOG.error(
                    'The tracker does not count the resources of migration %s on this host, because the row of the '
                    'server cannot be read: %s',
                    migration.uuid,
                    error,
                    instance_uuid=uuid,
                )
                continue
            if moving is not None:
                self._adopt_one(moving, migration)

    def _adopt_one(self, instance: objects.Instance, migration: objects.Migration | None) -> None:
        tracker, name, from_volume = self._host.tracker, self._host.name, instance.is_from_volume
        finished = migration is not None and (
            migration.is_live_migration or ('old_flavor' in instance and instance.old_flavor is not None)
        )
        context = move.context_of(instance, migration) if migration is not None else None
        if migration is None or migration.dest_compute != name:
            tracker.adopt(
                instance.uuid,
                RUN,
                instance.flavor if migration is None else move.old_flavor(instance),
                topology=move.place_of(instance) if context is None else context.old_numa_topology,
                from_volume=from_volume,
            )
        elif move.same_host(migration):
            move.restore_claims(self._host, instance, migration, instance.flavor if finished else None)
            if not tracker.sides(instance.uuid):
                tracker.adopt(
                    instance.uuid, RUN, instance.flavor, topology=move.place_of(instance), from_volume=from_volume
                )
        else:
            # Until ``finish_resize`` records the new flavor, the amounts of the claim are unknown: the flavor is None.
            tracker.adopt(
                instance.uuid,
                claim_key(migration),
                instance.flavor if finished else None,
                topology=context.new_numa_topology if context is not None else None,
                from_volume=from_volume,
            )

    def recount(self, ctxt: RequestContext, instance_uuid: str) -> None:
        """Record a server's resources in the tracker again.

        Called when an operation that an earlier process began has ended.
        """
        host = self._host
        with host.tracker.writing(ctxt):
            host.tracker.forget(instance_uuid)
            moves = {one.instance_uuid: one for one in records.moves(ctxt, host.name, host.tracker.nodename)}
            instance = records.instance(ctxt, instance_uuid)
            if instance is not None and (instance.host == host.name or instance_uuid in moves):
                self._adopt_one(instance, moves.get(instance_uuid))

    # -- periodic update of the compute node ---------------------------------------------------------------------------
    def update(self) -> None:
        """Read the host's CPUs, disks and devices again, and update the database, the tracker and Placement."""
        host = self._host
        LOG.debug('Auditing locally available compute resources for %s (node: %s)', host.name, host.tracker.nodename)
        every = host.conf.compute.resource_provider_association_refresh
        refresh = bool(every) and self._clock() - self._refreshed >= every
        ctxt = self._ctxt()
        if refresh:
            self.follow()
        self._report(ctxt, host.driver.host.get_available_resource(), refresh=refresh)

    def follow(self) -> None:
        """Copy the disabled state of the service record to Placement, as the trait COMPUTE_STATUS_DISABLED of the node.

        Nothing is written if the state has not changed since the last write.
        """
        placement, ctxt = self._placement, self._ctxt()
        if placement is None:
            return
        # Read the service record while holding ``_disabling``, so that Placement never gets an older state last.
        with self._disabling:
            try:
                disabled = objects.Service.get_by_args(ctxt, self._host.name, records.BINARY).disabled
            except errors.ServiceNotFound:
                return
            if disabled != self._disabled:
                placement.set_host_disabled(self.record.uuid, disabled)
                self._disabled = disabled

    def _report(self, ctxt: RequestContext, resources: dict[str, Any], *, refresh: bool) -> None:
        tracker = self._host.tracker
        resources = self._tidied(resources)
        with tracker.writing(ctxt):
            # The rows are written before Placement offers the devices, because only a device with a row can be claimed.
            self.book.save(ctxt, tracker.host_devices.looked(resources['pci_passthrough_devices']))
        inventory = self.book.inventory()
        tracker.capacity = HostCapacity.of(inventory)
        self._save_record(resources, inventory)
        tracker.cells = HostNumaCells(
            objects.NUMATopology.from_json(resources['numa_topology']),
            numa.CellLimits(
                self.record.cpu_allocation_ratio,
                self.record.ram_allocation_ratio,
                self._host.conf.compute.packing_host_numa_cells_allocation_strategy,
            ),
        )
        providers, usage = self.book.report(ctxt, inventory, refresh)
        if self._placement is not None:
            try:
                self._heal(ctxt, self._placement, providers)
            except Exception:
                LOG.exception(
                    'Comparing the devices of servers with Placement allocations failed; the comparison is repeated at '
                    'the next periodic update'
                )
        if refresh:
            self._refreshed = self._clock()
        LOG.debug(
            'Final resource view: name=%s phys_ram=%sMB used_ram=%sMB phys_disk=%sGB used_disk=%sGB '
            'total_vcpus=%s used_vcpus=%s pci_stats=%s',
            tracker.nodename,
            self.record.memory_mb,
            tracker.used.memory_mb,
            self.record.local_gb,
            tracker.used.local_gb,
            self.record.vcpus,
            tracker.used.vcpus,
            usage['pci_stats'],
        )

    def _tidied(self, resources: dict[str, Any]) -> dict[str, Any]:
        """Remove unused mediated devices that prevent others from being created, and return the host's new resources.

        Part of each periodic update.
        """
        driver, devices = self._host.driver, self._host.tracker.host_devices
        held = {device.address for device in devices.held()}
        unneeded = [
            address for kind in self.kinds for address in kind.unneeded(resources['pci_passthrough_devices'], held)
        ]
        if not unneeded:
            return resources
        driver.devices.remove_mdevs(unneeded)
        return driver.host.get_available_resource()

    def _save_record(self, resources: dict[str, Any], inventory: dict[str, dict[str, Any]]) -> None:
        record = self.record
        kept = {'host_ip': self._host.conf.my_ip, 'hypervisor_hostname': record.hypervisor_hostname}
        record.update_from_virt_driver({**records.without_usage(resources), **kept})
        for name, ratio in ratios(self._host.conf, inventory).items():
            if name not in record or getattr(record, name) != ratio:
                setattr(record, name, ratio)
        if record.obj_what_changed():
            record.save()
            LOG.debug('Compute_service record updated for %s:%s', self._host.name, record.hypervisor_hostname)

    # -- repair of servers' allocations in Placement -------------------------------------------------------------------
    def _heal(self, ctxt: RequestContext, placement: PlacementClient, providers: dict[str, str]) -> None:
        """Add PCI devices that servers hold on this host to their Placement allocations, if the allocations lack them.

        The first call compares all servers that have devices. Later calls compare a server if its allocations lacked a
        device, if it could not be compared, or if the scheduler did not allocate its devices in Placement. After a
        failure the next update tries again.
        """
        view = self.book.view()
        held = pci_placement.in_use(view)
        self._allocated = {uuid: devices for uuid, devices in self._allocated.items() if held.get(uuid) == devices}
        self._doubted &= held.keys()
        self._warned &= held.keys()
        open_ = held.keys() - self._allocated.keys()
        if not open_:
            return
        try:
            lacking = self._lacking(ctxt, placement, open_, held, pci_placement.allocations(view, providers))
            still = self._at_rest(ctxt, lacking)
        except errors.KilonovaError as error:
            self._warn(open_ & self._doubted, held, error)
            return
        # Read the held devices again, after the allocations, because an operation may have changed them in between.
        # If an operation changes a server's allocations later, their generation changes, so that ``_add`` fails.
        now = pci_placement.in_use(self.book.view()) if still else {}
        for uuid in still:
            if now.get(uuid) != held[uuid]:
                continue
            try:
                self._add(placement, uuid, *lacking[uuid], view, providers)
            except errors.KilonovaError as error:
                self._warn([uuid], held, error)
            else:
                LOG.info(
                    'Added missing PCI devices %s to the Placement allocations of server %s',
                    _addresses(held[uuid]),
                    uuid,
                    instance_uuid=uuid,
                )
                self._is_right(uuid, held[uuid])

    def _lacking(
        self,
        ctxt: RequestContext,
        placement: PlacementClient,
        uuids: Collection[str],
        held: dict[str, Held],
        wanted: dict[str, dict[str, dict[str, int]]],
    ) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return the servers whose Placement allocations lack devices that the servers hold.

        The result is {server uuid: (Placement's answer with the server's allocations, missing amounts)}. ``held`` is
        {server uuid: devices that the server holds}. ``wanted`` is {server uuid: amounts of these devices}. Missing and
        wanted amounts have the form {provider uuid: {resource class: amount}}.
        """
        lacking = {}
        for uuid, instance in self._at_rest(ctxt, uuids).items():
            if uuid not in self._doubted and _chosen_by_placement(instance):
                self._allocated[uuid] = held[uuid]
                continue
            self._doubted.add(uuid)
            there = placement.get_allocations(uuid)
            more = pci_placement.lacking(there['allocations'], wanted[uuid])
            if not more:
                self._is_right(uuid, held[uuid])
            elif self.record.uuid in there['allocations']:
                lacking[uuid] = there, more
            else:
                self._warn([uuid], held, 'the server has no other allocation on this host')
        return lacking

    def _at_rest(self, ctxt: RequestContext, uuids: Collection[str]) -> dict[str, objects.Instance]:
        """Return {uuid: server} for those ``uuids`` that are on this host and have neither a move nor an operation."""
        host = self._host
        if not uuids:
            return {}
        busy = records.busy(ctxt, host.name)
        busy.update(one.instance_uuid for one in records.moves(ctxt, host.name, host.tracker.nodename))
        if busy.issuperset(uuids):
            return {}
        return {
            instance.uuid: instance
            for instance in records.instances(ctxt, host.name)
            if instance.uuid in uuids and instance.uuid not in busy and instance.task_state is None
        }

    def _add(
        self,
        placement: PlacementClient,
        uuid: str,
        there: dict[str, Any],
        more: dict[str, dict[str, int]],
        view: dict[str, pci_placement.DeviceProvider],
        providers: dict[str, str],
    ) -> None:
        """Add missing devices to a server's allocations.

        ``there`` is Placement's answer with the server's allocations. ``more`` are the missing amounts, as {provider:
        {resource class: amount}}. Raises PlacementConflict if there is no room, or if the allocations have changed
        since they were read.
        """
        devices = self._host.tracker.host_devices
        used_up = {
            provider.address: providers[provider.address]
            for provider in view.values()
            if devices.use_up([provider.address]) and providers[provider.address] in more
        }
        try:
            for provider_uuid in used_up.values():
                # A used one_time_use device is fully reserved in Placement, which would refuse its missing allocation.
                # Set the reserved amount of the used one_time_use device to 0 until its missing allocation is written.
                # When the allocation is written, ``use_up`` reserves the one_time_use device again.
                inventory, generation = placement.get_inventory(provider_uuid)
                placement.set_inventory(
                    provider_uuid, generation, {name: {**given, 'reserved': 0} for name, given in inventory.items()}
                )
            placement.claim(
                uuid,
                pci_placement.with_devices(there['allocations'], more),
                project_id=there['project_id'],
                user_id=there['user_id'],
                generation=there['consumer_generation'],
            )
        finally:
            self.book.use_up(used_up)

    def _is_right(self, uuid: str, devices: Held) -> None:
        """Record that a server's Placement allocations contain ``devices``, the PCI devices that it holds.

        The server is then not compared with Placement again until its devices change.
        """
        self._allocated[uuid] = devices
        self._doubted.discard(uuid)
        self._warned.discard(uuid)

    def _warn(self, uuids: Collection[str], held: dict[str, Held], why: object) -> None:
        """Log that the Placement allocations of these servers may lack devices: first as a warning, later at DEBUG.

        ``held`` is {server uuid: devices that the server holds}. ``why`` is the reason why missing devices were not
        added.
        """
        for uuid in sorted(uuids):
            LOG.log(
                logging.DEBUG if uuid in self._warned else logging.WARNING,
                'PCI devices %s of server %s may be missing in its Placement allocations, and were not added: %s',
                _addresses(held[uuid]),
                uuid,
                why,
                instance_uuid=uuid,
            )
        self._warned.update(uuids)


def _addresses(devices: Held) -> str:
    return ', '.join(sorted(address for address, _ in devices))


def _chosen_by_placement(instance: objects.Instance) -> bool:
    """Return whether the scheduler has allocated in Placement each device that this server asks for."""
    requests = as_list(instance.pci_requests if 'pci_requests' in instance else None)
    return bool(requests) and all(allocated_providers(request, None) for request in requests)
