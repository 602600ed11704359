"""Random clouds: hosts as their computes report them, requests, claims on hosts, and what must hold at any time.

    cloud = Cloud(seed, tmp_path, templates, placement)
    request = cloud.request()
    found = cloud.schedulers[0].select_destinations(CTXT, request.spec(uuids), uuids)
    cloud.boot(request, uuids, found); cloud.settle()       # the computes claim, group policies are looked at once more
    cloud.check()                                           # nothing was given twice

A host is a real ledger (``compute.tracker``) over real rows, its claim the conductor's (``db.queries.group_claims``),
Placement the real service. Placement's tables are filled directly: over REST a cloud would take a second.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from placement.db.sqlalchemy import models as placement_models

from kilonova import errors, objects
from kilonova.compute.tracker import RUN, HostCapacity, HostNumaCells, Tracker
from kilonova.conductor.flows import boot
from kilonova.context import RequestContext
from kilonova.db import engine
from kilonova.db.models.cell import ComputeNode, Instance, Operation, PciDevice, Service
from kilonova.db.queries import (
    aggregates,
    build_requests,
    claims,
    group_claims,
    instance_groups,
    instance_mappings,
    operations,
)
from kilonova.db.queries import cells as cell_queries
from kilonova.pci.devices import NodeDevices
from kilonova.pci.kinds import PciFunctions
from kilonova.pci.request import with_allocation
from kilonova.pci.spec import DeviceSpecs
from kilonova.scheduler.manager import SchedulerManager
from kilonova.scheduler.plugins import loading as plugins
from kilonova.virt.hardware import constraints, numa
from kilonova.virt.hardware.offer import Offer
from tests.fixtures.placement import Placement, app
from tests.unit.scheduler.builders import conf, node, spec, uuid

CTXT = RequestContext(user_id='alice', project_id='demo', overwrite=False)
# {alias: (product, resource class)}
GPUS = {'gpu': ('13f1', 'CUSTOM_PCI_10DE_13F1'), 'h100': ('2330', 'CUSTOM_PCI_10DE_2330')}
LICENSE, FAST = 'CUSTOM_LICENSE', 'CUSTOM_FAST'
ZONES = ('east', 'west')
X86, BOTH = '[["x86_64", "qemu", "hvm"]]', '[["x86_64", "qemu", "hvm"], ["aarch64", "qemu", "hvm"]]'
MOST_SERVERS = 6
FILTERS = (
    'ComputeFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'PciPassthroughFilter',
    'NUMATopologyFilter',
    'DifferentHostFilter',
    'SameHostFilter',
    'NumInstancesFilter',
)
LONG_AGO = dt.datetime(2020, 1, 1)
_DEVICE = [column.name for column in PciDevice.__table__.c]

_providers, _inventories, _allocations, _classes, _traits, _of_provider, _aggregates, _members = (
    model.__table__
    for model in (
        placement_models.ResourceProvider,
        placement_models.Inventory,
        placement_models.Allocation,
        placement_models.ResourceClass,
        placement_models.Trait,
        placement_models.ResourceProviderTrait,
        placement_models.PlacementAggregate,
        placement_models.ResourceProviderAggregate,
    )
)


class PlacementRows:
    """Placement's own tables. ``inventory``: {class: (total, reserved, ratio)}."""

    def __init__(self, placement: Placement) -> None:
        for name in (*(name for _, name in GPUS.values()), LICENSE):
            placement.client.ensure_resource_class(name)
        placement.client.ensure_traits([FAST])
        with self.begin() as connection:
            self.classes: dict[str, int] = dict(connection.execute(sa.select(_classes.c.name, _classes.c.id)).all())
            self.traits: dict[str, int] = dict(connection.execute(sa.select(_traits.c.name, _traits.c.id)).all())

    @contextmanager
    def begin(self) -> Iterator[Any]:
        with app().lock, app().engine.begin() as connection:
            yield connection

    @staticmethod
    def id_of(connection: Any, name: str) -> int | None:
        return connection.execute(sa.select(_providers.c.id).where(_providers.c.name == name)).scalar()

    def add(
        self,
        name: str,
        provider: str,
        inventory: dict[str, tuple[int, int, float]],
        traits: Sequence[str],
        parent: str | None = None,
    ) -> None:
        """A provider; it must not be there."""
        with self.begin() as connection:
            above = self.id_of(connection, parent) if parent else None
            key = connection.execute(
                _providers.insert().values(name=name, uuid=provider, generation=1, parent_provider_id=above)
            ).inserted_primary_key[0]
            connection.execute(_providers.update().where(_providers.c.id == key).values(root_provider_id=above or key))
            connection.execute(
                _of_provider.insert(), [{'resource_provider_id': key, 'trait_id': self.traits[one]} for one in traits]
            )
        for resource_class, amounts in inventory.items():
            self.set_inventory(name, resource_class, amounts)

    def drop(self, name: str) -> None:
        """A provider without allocations and children."""
        with self.begin() as connection:
            key = self.id_of(connection, name)
            for table in (_inventories, _of_provider, _members):
                connection.execute(table.delete().where(table.c.resource_provider_id == key))
            connection.execute(_providers.update().where(_providers.c.id == key).values(root_provider_id=None))
            connection.execute(_providers.delete().where(_providers.c.id == key))

    def inventory(self, name: str, resource_class: str) -> tuple[int, int, float] | None:
        with self.begin() as connection:
            row = connection.execute(
                sa.select(_inventories.c.total, _inventories.c.reserved, _inventories.c.allocation_ratio).where(
                    _inventories.c.resource_provider_id == self.id_of(connection, name),
                    _inventories.c.resource_class_id == self.classes[resource_class],
                )
            ).first()
        return tuple(row) if row is not None else None

    def set_inventory(self, name: str, resource_class: str, amounts: tuple[int, int, float] | None) -> None:
        """None: no such inventory any more."""
        with self.begin() as connection:
            key, of = self.id_of(connection, name), self.classes[resource_class]
            connection.execute(
                _inventories.delete().where(
                    _inventories.c.resource_provider_id == key, _inventories.c.resource_class_id == of
                )
            )
            if amounts is not None:
                total, reserved, ratio = amounts
                connection.execute(
                    _inventories.insert().values(
                        resource_provider_id=key,
                        resource_class_id=of,
                        total=total,
                        reserved=reserved,
                        min_unit=1,
                        max_unit=total,
                        step_size=1,
                        allocation_ratio=ratio,
                    )
                )

    def set_trait(self, name: str, trait: str, there: bool) -> bool:
        """Whether it was there."""
        with self.begin() as connection:
            criteria = (
                _of_provider.c.resource_provider_id == self.id_of(connection, name),
                _of_provider.c.trait_id == self.traits[trait],
            )
            before = connection.execute(_of_provider.delete().where(*criteria)).rowcount > 0
            if there:
                connection.execute(
                    _of_provider.insert().values(
                        resource_provider_id=self.id_of(connection, name), trait_id=self.traits[trait]
                    )
                )
        return before

    def set_member(self, name: str, aggregate: str, there: bool) -> bool:
        """The same of an aggregate."""
        with self.begin() as connection:
            find = sa.select(_aggregates.c.id).where(_aggregates.c.uuid == aggregate)
            key = (
                connection.execute(find).scalar()
                or connection.execute(_aggregates.insert().values(uuid=aggregate)).inserted_primary_key[0]
            )
            provider = self.id_of(connection, name)
            before = (
                connection.execute(
                    _members.delete().where(_members.c.resource_provider_id == provider, _members.c.aggregate_id == key)
                ).rowcount
                > 0
            )
            if there:
                connection.execute(_members.insert().values(resource_provider_id=provider, aggregate_id=key))
        return before

    def take_away(self, consumers: Sequence[str]) -> list[dict[str, Any]]:
        """Rows of these consumers' allocations, which are gone then; ``put_back`` takes them."""
        with self.begin() as connection:
            which = _allocations.c.consumer_id.in_(list(consumers))
            rows = [dict(row) for row in connection.execute(sa.select(_allocations).where(which)).mappings()]
            connection.execute(_allocations.delete().where(which))
        return rows

    def put_back(self, rows: list[dict[str, Any]]) -> None:
        with self.begin() as connection:
            if rows:
                connection.execute(_allocations.insert(), rows)

    def usage(self) -> list[tuple[str, str, float, int, int]]:
        """(provider, class, capacity, used, consumers) of each inventory; one statement."""
        i, a = _inventories.c, _allocations.c
        query = (
            sa.select(
                _providers.c.name,
                _classes.c.name,
                (i.total - i.reserved) * i.allocation_ratio,
                sa.func.coalesce(sa.func.sum(a.used), 0),
                sa.func.count(sa.distinct(a.consumer_id)),
            )
            .select_from(
                _inventories.join(_providers, _providers.c.id == i.resource_provider_id)
                .join(_classes, _classes.c.id == i.resource_class_id)
                .outerjoin(
                    _allocations,
                    sa.and_(
                        a.resource_provider_id == i.resource_provider_id, a.resource_class_id == i.resource_class_id
                    ),
                )
            )
            .group_by(_providers.c.name, _classes.c.name, i.total, i.reserved, i.allocation_ratio)
        )
        with self.begin() as connection:
            return [tuple(row) for row in connection.execute(query)]


@dataclass
class Host:
    """``gpus``: {address: alias}; ``known``: whether Placement has heard of it."""

    name: str
    cell: Any
    tracker: Tracker
    gpus: dict[str, str]
    inventory: dict[str, tuple[int, int, float]]
    service: dict[str, Any]
    supported: str
    traits: list[str]
    zone: str | None = None
    known: bool = True

    @property
    def fit_for_work(self) -> bool:
        return not self.service['disabled'] and self.service['last_seen_up'] is not LONG_AGO


@dataclass
class Request:
    """What somebody asks for. ``dropped``: names of conditions that don't count any more."""

    name: str
    amounts: dict[str, int]
    extra_specs: dict[str, str] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    near: str = 'legacy'
    number: int = 1
    zone: str | None = None
    group: str | None = None
    hints: dict[str, list[str]] = field(default_factory=dict)
    architecture: str | None = None
    host: str | None = None
    dropped: set[str] = field(default_factory=set)

    def spec(self, servers: Sequence[str], ignore: Sequence[str] = ()) -> objects.RequestSpec:
        """As the API makes it; a new one for each select."""
        made = spec(
            self.extra_specs,
            flavor_values=self.amounts,
            instance_uuid=servers[0],
            num_instances=len(servers),
            image={'properties': {'hw_architecture': self.architecture}} if self.architecture else None,
            availability_zone=self.zone,
            ignore_hosts=list(ignore) or None,
            scheduler_hints={name: value for name, value in self.hints.items() if name not in self.dropped},
            instance_group=objects.InstanceGroup(uuid=self.group) if self.group else None,
            requested_destination=objects.Destination(host=self.host, node=None) if self.host else None,
            pci_requests=objects.InstancePCIRequests(
                instance_uuid=servers[0],
                requests=[
                    objects.InstancePCIRequest(
                        count=count,
                        spec=[{'vendor_id': '10de', 'product_id': GPUS[alias][0]}],
                        alias_name=alias,
                        is_new=False,
                        request_id=uuid(f'{self.name} {alias}'),
                        requester_id=None,
                        numa_policy=self.near,
                    )
                    for alias, count in self.gpus.items()
                ],
            )
            if self.gpus
            else None,
        )
        made.numa_topology = constraints.of(made.flavor)
        return made

    @property
    def topology(self) -> objects.InstanceNUMATopology | None:
        return constraints.of(self.spec([uuid('any')]).flavor)

    def devices(self) -> Counter[str]:
        return Counter({GPUS[alias][1]: count for alias, count in self.gpus.items()})


@dataclass
class Server:
    """``choices``: its Selections; ``host`` once its compute has claimed."""

    uuid: str
    request: Request
    choices: list[Any]
    host: Host | None = None


class Cloud:
    """A handful of hosts in two cells, two or three schedulers over the same databases and Placement."""

    def __init__(self, seed: int, path: Path, templates: Path, placement: Placement) -> None:
        self.seed, self.random, self.placement = seed, random.Random(seed), placement
        placement.reset()
        path.mkdir()
        urls = {name: f'sqlite:///{path}/{name}.sqlite' for name in ('api', 'cell0', 'cell1', 'cell2')}
        for name in urls:
            shutil.copy(templates / f'{"api" if name == "api" else "cell"}.sqlite', path / f'{name}.sqlite')
        self.databases = engine.Databases(urls['api'], urls['cell1'])
        cell_queries.map_cell0(self.databases, urls['cell0'])
        for name in ('cell1', 'cell2'):
            cell_queries.create_cell(
                self.databases, transport_url=f'fake://{name}/', database_connection=urls[name], name=name
            )
        self.cells = cell_queries.CellDatabases(self.databases)
        self.rows = PlacementRows(placement)
        self.zones = {name: self._make_zone(name) for name in ZONES}
        databases = list(self.cells.enabled())
        self.hosts = {
            host.name: host
            for host in (
                self._make_host(number, databases[self.random.random() < 0.3])
                for number in range(1, self.random.randint(2, 8) + 1)
            )
        }
        self.groups = dict(self._make_group(number) for number in range(self.random.randint(1, 3)))
        self.conf = conf(
            filter_scheduler__pci_in_placement=True,
            filter_scheduler__enabled_filters=list(FILTERS),
            filter_scheduler__max_instances_per_host=self.random.choice((MOST_SERVERS, 50)),
            filter_scheduler__host_subset_size=self.random.choice((1, 1, 2)),
            service_down_time=86400,
            scheduler__decisions_keep=False,
        )
        self.filters, self.weighers = plugins.load_filters(self.conf), plugins.load_weighers(self.conf)
        self.schedulers = [self.scheduler() for _ in range(self.random.randint(2, 3))]
        self.waiting: list[Server] = []
        self.running: dict[str, Server] = {}
        self.late: Counter[str] = Counter()
        self._made = 0

    def scheduler(self) -> SchedulerManager:
        """One that has seen nothing yet."""
        return SchedulerManager(
            self.conf,
            self.databases,
            self.cells,
            self.placement.client,
            enabled_filters=self.filters,
            weighers=self.weighers,
        )

    def close(self) -> None:
        self.placement.before = self.placement.after = None
        for scheduler in self.schedulers:
            scheduler.stop()
        self.databases.dispose()

    # -- what there is -------------------------------------------------------------------------------------------------
    def _make_zone(self, name: str) -> dict[str, Any]:
        with self.databases.api().write() as connection:
            return aggregates.create(connection, name, {'availability_zone': name})

    def _make_group(self, number: int) -> tuple[str, dict[str, Any]]:
        policy = self.random.choice(
            ('anti-affinity', 'anti-affinity', 'affinity', 'soft-anti-affinity', 'soft-affinity')
        )
        rules = {'max_server_per_host': str(self.random.choice((1, 1, 2, 3)))} if policy == 'anti-affinity' else {}
        key = uuid(f'group {number}')
        instance_groups.create(
            self.databases.api(),
            {'uuid': key, 'name': f'group {number}', 'project_id': 'demo', 'user_id': 'alice'},
            policy,
            rules,
        )
        return key, {'id': number + 1, 'policy': policy, 'most': int(rules.get('max_server_per_host', 1))}

    def _make_host(self, number: int, cell: Any) -> Host:
        pick, name = self.random, f'host{number}'
        cpus = pick.choice((8, 16, 64))
        memory, disk = pick.choice((16384, 65536, 262144)), pick.choice((100, 400, 1000))
        topology = None
        if pick.random() < 0.3:
            numbers = frozenset(range(cpus))
            topology = numa.topology_of(
                numa.spread(2, 1, cpus // 4, 2, memory),
                Offer(
                    frozenset(one for one in numbers if one % 4 < 2), frozenset(one for one in numbers if one % 4 >= 2)
                ),
            )
        kinds = pick.choice((('gpu',), ('gpu',), ('gpu', 'h100')))
        gpus = {f'0000:{bus:02x}:00.0': pick.choice(kinds) for bus in range(pick.choice((0, 1, 2, 4, 8, 8)))}
        shared = cpus // 2 if topology is not None else cpus
        inventory = {
            'VCPU': (shared, 0, pick.choice((1.0, 2.0, 4.0))),
            'MEMORY_MB': (memory, pick.choice((0, 512)), pick.choice((1.0, 1.5))),
            'DISK_GB': (disk, pick.choice((0, 2)), 1.0),
            **({'PCPU': (shared, 0, 1.0)} if topology else {}),
            **({LICENSE: (2, 0, 1.0)} if pick.random() < 0.4 else {}),
        }
        ill = pick.random()
        host = Host(
            name,
            cell,
            Tracker(),
            gpus,
            inventory,
            {'disabled': ill < 0.07, 'last_seen_up': LONG_AGO if 0.05 < ill < 0.12 else engine.db_utcnow()},
            pick.choice((X86, X86, BOTH)),
            ['OWNER_NOVA', *([FAST] if pick.random() < 0.5 else [])],
            pick.choice((None, 'east', 'east', 'west')),
            not 0.12 < ill < 0.15,
        )
        if host.service['disabled'] and pick.random() < 0.5:
            host.traits.append('COMPUTE_STATUS_DISABLED')
        self._fill_ledger(host, number, topology)
        self._write_rows(host, number)
        if host.known:
            self.report(host)
        if host.zone is not None:
            with self.databases.api().write() as connection:
                aggregates.add_host(connection, self.zones[host.zone]['id'], name)
            if host.known and pick.random() < 0.9:
                self.rows.set_member(name, self.zones[host.zone]['uuid'], True)
        return host

    def _fill_ledger(self, host: Host, number: int, topology: objects.NUMATopology | None) -> None:
        tracker, inventory = host.tracker, host.inventory
        tracker.node = objects.ComputeNode(
            id=number,
            memory_mb=inventory['MEMORY_MB'][0],
            local_gb=inventory['DISK_GB'][0],
            hypervisor_hostname=host.name,
        )
        tracker.cells = HostNumaCells(topology, numa.CellLimits(inventory['VCPU'][2], inventory['MEMORY_MB'][2]))
        tracker.capacity = HostCapacity.of(
            {name: {'total': total, 'allocation_ratio': ratio} for name, (total, _, ratio) in inventory.items()}
        )
        # A device of a server that is gone but still there: Placement thinks it free.
        stuck = [self.random.random() < 0.04 for _ in host.gpus]
        tracker.load(
            NodeDevices.of(
                (PciFunctions(DeviceSpecs.parse([json.dumps({'vendor_id': '10de'})])),),
                [
                    objects.PciDevice(
                        id=100 * number + index,
                        uuid=uuid(f'{host.name}_{address} row'),
                        compute_node_id=number,
                        address=address,
                        vendor_id='10de',
                        product_id=GPUS[alias][0],
                        dev_type='type-PCI',
                        dev_id='d',
                        label='l',
                        parent_addr=None,
                        numa_node=index % 2,
                        extra_info={'rp_uuid': uuid(f'{host.name}_{address}')},
                        status='claimed' if stuck[index] else 'available',
                        request_id=None,
                        instance_uuid=uuid('gone') if stuck[index] else None,
                    )
                    for index, (address, alias) in enumerate(host.gpus.items())
                ],
                number,
            )
        )

    def _write_rows(self, host: Host, number: int) -> None:
        usage = {name: value for name, value in host.tracker.usage().items() if name != 'compute_node_id'}
        row = {
            **node(host.name),
            **usage,
            'id': number,
            'supported_instances': host.supported,
            'vcpus': host.inventory['VCPU'][0],
            'memory_mb': host.inventory['MEMORY_MB'][0],
            'local_gb': host.inventory['DISK_GB'][0],
            'cpu_allocation_ratio': host.inventory['VCPU'][2],
            'ram_allocation_ratio': host.inventory['MEMORY_MB'][2],
        }
        del row['service']
        devices = [
            {
                **{name: getattr(device, name) for name in _DEVICE if name in device},
                'extra_info': json.dumps(device.extra_info),
            }
            for device in host.tracker.host_devices.all()
        ]
        with host.cell.write() as connection:
            connection.execute(ComputeNode.__table__.insert(), row)
            connection.execute(
                Service.__table__.insert().values(
                    {
                        'uuid': uuid(f'service {host.name}'),
                        'host': host.name,
                        'binary': 'nova-compute',
                        'topic': 'compute',
                        **host.service,
                    }
                )
            )
            if devices:
                connection.execute(PciDevice.__table__.insert(), devices)

    def report(self, host: Host) -> None:
        """Tell Placement."""
        self.rows.add(host.name, uuid(host.name), host.inventory, host.traits)
        for address, alias in host.gpus.items():
            self.rows.add(
                f'{host.name}_{address}',
                uuid(f'{host.name}_{address}'),
                {GPUS[alias][1]: (1, 0, 1.0)},
                ['OWNER_NOVA', 'COMPUTE_MANAGED_PCI_DEVICE'],
                host.name,
            )

    # -- what is asked for ---------------------------------------------------------------------------------------------
    def new_servers(self, number: int) -> list[str]:
        self._made += number
        return [uuid(f'server {self._made - index}') for index in range(number)]

    def request(self, plain: bool = False) -> Request:
        """``plain``: without what ties a server to others or to a place, and small enough to be booted often."""
        pick = self.random
        made = Request(
            f'request {pick.random()}',
            {
                'vcpus': pick.choice((1, 2, 4, 8)),
                'memory_mb': pick.choice((512, 2048, 8192)),
                'root_gb': pick.choice((1, 5, 20)),
                'ephemeral_gb': pick.choice((0, 0, 10)),
                'swap': pick.choice((0, 512)),
            },
        )
        kind = pick.random()
        if kind < 0.55:
            made.gpus = {pick.choice(('gpu', 'gpu', 'h100')): pick.choice((1, 1, 1, 1, 1, 2, 2, 4, 8))}
            if pick.random() < 0.1:
                made.gpus = {'gpu': pick.choice((1, 2)), 'h100': 1}
            made.near = pick.choice(('legacy', 'preferred', 'required'))
        if pick.random() < 0.15:
            made.amounts['vcpus'] = pick.choice((2, 4))
            made.extra_specs = pick.choice(
                (
                    {'hw:cpu_policy': 'dedicated'},
                    {'hw:numa_nodes': '2'},
                    {'hw:numa_nodes': '1'},
                    {'hw:cpu_policy': 'dedicated', 'hw:numa_nodes': '2'},
                )
            )
        if plain:
            made.amounts |= {'vcpus': 4, 'memory_mb': 8192, 'root_gb': 30}
            return made
        if kind > 0.95:
            made.amounts |= pick.choice(
                ({'vcpus': 66}, {'memory_mb': 300000}, {'root_gb': 2000}, {'vcpus': 128, 'memory_mb': 400000})
            )
        if pick.random() < 0.08:
            made.extra_specs = {
                **made.extra_specs,
                **pick.choice(
                    ({f'trait:{FAST}': 'required'}, {f'resources:{LICENSE}': '1'}, {f'trait:{FAST}': 'forbidden'})
                ),
            }
        if pick.random() < 0.5:
            made.group = pick.choice(sorted(self.groups))
        if pick.random() < 0.12:
            made.zone = pick.choice(('east', 'east', 'west'))
        if pick.random() < 0.08 and self.running:
            made.hints = {pick.choice(('different_host', 'same_host')): [pick.choice(sorted(self.running))]}
        if pick.random() < 0.05:
            made.architecture = 'aarch64'
        if pick.random() < 0.05:
            made.host = pick.choice(sorted(self.hosts))
        if pick.random() < 0.15:
            made.number = pick.choice((2, 3))
        return made

    def join(self, request: Request, servers: Sequence[str]) -> None:
        """What the API writes of new servers."""
        with self.databases.api().write() as connection:
            rows = [{'instance_uuid': one, 'project_id': 'demo'} for one in servers]
            instance_mappings.create(connection, rows)
            build_requests.create(connection, rows)
            if request.group:
                instance_groups.add_members(connection, (self.groups[request.group]['id'], request.group), servers)

    def leave(self, servers: Sequence[str]) -> None:
        """Servers that there are no more."""
        with self.databases.api().write() as connection:
            instance_groups.remove_members(connection, servers)
            instance_mappings.destroy_all(connection, servers)
            build_requests.destroy_all(connection, servers)

    # -- on the hosts --------------------------------------------------------------------------------------------------
    def boot(self, request: Request, servers: Sequence[str], found: Sequence[Sequence[Any]]) -> None:
        """Servers that were given a host: their rows. Their computes will claim when ``settle`` lets them."""
        for one, choices in zip(servers, found, strict=True):
            cell = self.hosts[choices[0].service_host].cell
            with cell.write() as connection:
                connection.execute(
                    Instance.__table__.insert(),
                    {
                        'uuid': one,
                        'project_id': 'demo',
                        'user_id': 'alice',
                        'vm_state': 'building',
                        'task_state': 'scheduling',
                    },
                )
                operations.insert(
                    connection,
                    [
                        operations.OperationRow(
                            uuid=uuid(f'operation {one}'), kind='boot', instance_uuid=one, request_id='r', position=3
                        )
                    ],
                )
            with self.databases.api().write() as connection:
                instance_mappings.set_cell(connection, one, cell.cell.id)
                build_requests.destroy(connection, one)
            self.waiting.append(Server(one, request, list(choices)))

    def settle(self, chance: float = 1.0) -> None:
        """Some of the waiting servers, in any order, are claimed by their hosts, by alternates, or given up."""
        chosen = [server for server in self.waiting if self.random.random() < chance]
        self.random.shuffle(chosen)
        for server in chosen:
            self.waiting.remove(server)
            if any(self._claim(server, choice, index) for index, choice in enumerate(server.choices)):
                self.running[server.uuid] = server
            else:
                self._bury(server)

    def _claim(self, server: Server, choice: Any, attempt: int) -> bool:
        """What the flow does for one choice: an alternate is allocated first; then the host claims."""
        host = self.hosts[choice.service_host]
        try:
            chosen = boot.ChosenHost.all_of(server.choices)[attempt]
            boot.claim_chosen(
                SimpleNamespace(  # type: ignore[arg-type]
                    chosen=lambda: chosen,
                    instance_uuid=server.uuid,
                    env=SimpleNamespace(placement=self.placement.client),
                    ctxt=CTXT,
                    compare_now=lambda: None,
                )
            )
        except errors.HostRejected:
            self.late['alternates that were gone'] += 1
            return False
        try:
            self._take(server, host, json.loads(choice.allocation_request))
        except errors.HostRejected as error:
            self.late[type(error).__name__] += 1
            if not isinstance(error, errors.GroupPolicyViolated) and server.request.topology is None:
                # Where no NUMA cells are asked for Placement's claim decides alone.
                pytest.fail(f'{host.name} refuses {server.request}: {error}')
            self.placement.client.delete_allocations(server.uuid)
            return False
        server.host = host
        return True

    def _take(self, server: Server, host: Host, allocation: dict[str, Any]) -> None:
        made, tracker = server.request.spec([server.uuid]), host.tracker
        requests = with_allocation(made.pci_requests, allocation['mappings']) if made.pci_requests else None
        plan = tracker.plan(server.uuid, RUN, made.flavor, requests, made.numa_topology)
        payload = claims.ClaimWrite(
            key=claims.make_key(uuid(f'operation {server.uuid}'), 3, 'build', 1),
            instance_uuid=server.uuid,
            values={'host': host.name, 'node': host.name},
            expect={'host': None},
            devices=plan.changes,
            usage=tracker.numbered(tracker.usage(plan)),
        )
        try:
            if server.request.group:
                group_claims.claim(
                    self.databases.api(),
                    self.cells,
                    host.cell,
                    payload,
                    {'uuid': server.request.group, 'host': host.name},
                )
            else:
                claims.claim(host.cell, payload)
        except errors.KilonovaError:
            tracker.abort(plan)
            raise
        tracker.commit(plan)

    def _bury(self, server: Server) -> None:
        self._end(server.uuid, self.hosts[server.choices[0].service_host])
        self.leave([server.uuid])

    def _end(self, server: str, host: Host) -> None:
        with host.cell.write() as connection:
            table = Instance.__table__
            connection.execute(table.update().where(table.c.uuid == server).values(deleted=table.c.id))
            table = Operation.__table__
            connection.execute(table.delete().where(table.c.instance_uuid == server))

    def delete(self, server: Server) -> None:
        """As a delete ends: the host's rows, Placement, the API's."""
        del self.running[server.uuid]
        host = server.host
        assert host is not None
        plan = host.tracker.plan_free(server.uuid)
        claims.save(
            host.cell,
            claims.SaveWrite(
                instance_uuid=server.uuid, devices=plan.changes, usage=host.tracker.numbered(host.tracker.usage(plan))
            ),
        )
        host.tracker.commit(plan)
        self._end(server.uuid, host)
        self.placement.client.delete_allocations(server.uuid)
        self.leave([server.uuid])

    # -- what must hold ------------------------------------------------------------------------------------------------
    def check(self) -> None:
        """No class of any provider and no device is given twice; groups keep their policies."""
        for provider, name, capacity, used, consumers in self.rows.usage():
            assert used <= capacity, f'{provider}: {used} of {capacity} {name}'
            assert name not in dict(GPUS.values()).values() or consumers <= 1, f'{provider} has {consumers} servers'
        for key, group in self.groups.items():
            places = Counter(
                server.host.name
                for server in self.running.values()
                if server.request.group == key and server.host is not None
            )
            if group['policy'] == 'anti-affinity':
                assert max(places.values(), default=0) <= group['most'], f'{group}: {places}'
            elif group['policy'] == 'affinity':
                assert len(places) <= 1, f'{group}: {places}'

    def check_books(self) -> None:
        """Placement, the rows and the ledgers of the hosts say the same, and no CPU is pinned twice."""
        allocated = self.placement.allocations()
        assert set(allocated) == {*self.running, *(server.uuid for server in self.waiting)}
        owners: dict[str, set[str]] = {}
        for host in self.hosts.values():
            self._check_host(host, owners)
        for server in self.running.values():
            self._check_server(server, allocated[server.uuid], owners.get(server.uuid, set()))

    def _check_host(self, host: Host, owners: dict[str, set[str]]) -> None:
        nodes, devices, instances = ComputeNode.__table__.c, PciDevice.__table__.c, Instance.__table__.c
        with host.cell.read() as connection:
            row = connection.execute(sa.select(ComputeNode.__table__).where(nodes.host == host.name)).mappings().one()
            for address, owner in connection.execute(
                sa.select(devices.address, devices.instance_uuid).where(
                    devices.compute_node_id == row['id'], devices.status.in_(('claimed', 'allocated'))
                )
            ):
                owners.setdefault(owner, set()).add(f'{host.name}_{address}')
            here = set(
                connection.execute(
                    sa.select(instances.uuid).where(instances.host == host.name, instances.deleted == 0)
                ).scalars()
            )
        assert here == {server.uuid for server in self.running.values() if server.host is host}
        assert row['vcpus_used'] <= row['vcpus'] * row['cpu_allocation_ratio']
        assert row['memory_mb_used'] <= row['memory_mb'] * row['ram_allocation_ratio']
        assert row['local_gb_used'] <= row['local_gb']
        pins = [
            cpu
            for one in here
            if (placed := host.tracker.topology(one, RUN)) is not None
            for cell in placed.cells
            for cpu in numa.cpus_of(cell)
        ]
        assert len(pins) == len(set(pins)), f'{host.name} pins {pins}'

    @staticmethod
    def _check_server(server: Server, allocated: dict[str, dict[str, int]], devices: set[str]) -> None:
        given: Counter[str] = Counter()
        for amounts in allocated.values():
            given.update(amounts)
        wanted, request = server.request.amounts, server.request
        assert {name for name in allocated if '_' in name} == devices
        assert {name: given[name] for name in request.devices()} == request.devices()
        assert given['VCPU'] + given['PCPU'] == wanted['vcpus'] and given['MEMORY_MB'] == wanted['memory_mb']
        assert given['DISK_GB'] == wanted['root_gb'] + wanted['ephemeral_gb'] + (1 if wanted['swap'] else 0)
