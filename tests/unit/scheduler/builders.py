"""Requests, hosts and candidates for tests of the scheduler."""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from oslo_config import cfg

from kilonova import objects
from kilonova.conf import base, base_api, compute, filter_scheduler, metrics, scheduler, workarounds
from kilonova.context import RequestContext
from kilonova.scheduler.explain.decisions import Trace
from kilonova.scheduler.hosts.aggregates import Aggregates
from kilonova.scheduler.hosts.arrays import HostArrays
from kilonova.scheduler.hosts.host_state import HostState
from kilonova.scheduler.hosts.snapshot import HostSnapshot
from kilonova.scheduler.hosts.table import Table
from kilonova.scheduler.placement.candidates import CandidateResponse, PlacementCandidates
from kilonova.scheduler.placement.query import CandidateQuery, Group
from kilonova.scheduler.select import Select, SelectSettings

GPU = 'CUSTOM_PCI_10DE_13F1'
CELL = str(uuids.uuid5(uuids.NAMESPACE_DNS, 'cell1'))


def uuid(name: str | None = None) -> str:
    """A uuid, the same one for the same name."""
    return str(uuids.uuid4() if name is None else uuids.uuid5(uuids.NAMESPACE_DNS, name))


def conf(**overrides: Any) -> cfg.ConfigOpts:
    """The options of the scheduler; ``section__option=value`` overrides."""
    made = cfg.ConfigOpts()
    for section in (base, base_api, compute, filter_scheduler, metrics, scheduler, workarounds):
        made.register_opts(section.OPTS, group=section.GROUP)
    made([], project='kilonova', default_config_files=[], default_config_dirs=[])
    for name, value in overrides.items():
        group, _, option = name.rpartition('__')
        made.set_override(option, value, group or None)
    return made


def flavor(extra_specs: dict[str, str] | None = None, **values: Any) -> objects.Flavor:
    given = {
        'id': 1,
        'name': 'tmp1',
        'flavorid': 'tmp1',
        'vcpus': 8,
        'memory_mb': 32768,
        'root_gb': 16,
        'ephemeral_gb': 0,
        'swap': 0,
        'disabled': False,
        'is_public': True,
        **values,
    }
    return objects.Flavor(extra_specs=extra_specs or {}, **given)


def pci_requests(*counts: int, **spec: str) -> objects.InstancePCIRequests:
    """One request for each count."""
    wanted = {'vendor_id': '10de', 'product_id': '13f1', **spec}
    return objects.InstancePCIRequests(
        instance_uuid=uuid(),
        requests=[
            objects.InstancePCIRequest(
                count=count,
                spec=[dict(wanted)],
                alias_name='gpu',
                is_new=False,
                request_id=uuid(f'request {number}'),
                requester_id=None,
                numa_policy='legacy',
            )
            for number, count in enumerate(counts)
        ],
    )


def spec(
    extra_specs: dict[str, str] | None = None,
    *,
    image: dict[str, Any] | None = None,
    gpus: tuple[int, ...] = (),
    flavor_values: dict[str, Any] | None = None,
    **values: Any,
) -> objects.RequestSpec:
    """A request of a server; ``gpus``: device counts of its PCI requests."""
    ctxt = RequestContext(user_id='alice', project_id='demo', overwrite=False)
    if gpus:
        values['pci_requests'] = pci_requests(*gpus)
    return objects.RequestSpec.from_components(
        ctxt,
        instance_uuid=values.pop('instance_uuid', uuid()),
        flavor=flavor(extra_specs, **(flavor_values or {})),
        image=image,
        **values,
    )


def pools(*addresses: str, providers: bool = True, host: str = 'host1') -> str:
    """pci_stats of a node with one GPU at each address, as its row holds it."""
    return objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id='10de',
                product_id='13f1',
                numa_node=0,
                count=1,
                tags={
                    'dev_type': 'type-PCI',
                    'address': address,
                    **({'rp_uuid': device(host, address)} if providers else {}),
                },
            )
            for address in addresses
        ]
    ).to_json()


def device(host: str, address: str) -> str:
    """The uuid of a device's provider."""
    return uuid(f'{host}_{address}')


def node(name: str = 'host1', **values: Any) -> dict[str, Any]:
    """A row as queries.compute_nodes.snapshot gives it."""
    service = {
        'id': 1,
        'uuid': uuid(),
        'host': name,
        'binary': 'nova-compute',
        'disabled': False,
        'disabled_reason': None,
        'forced_down': False,
        'last_seen_up': None,
        'version': 1,
        'up': True,
        **values.pop('service', {}),
    }
    return {
        'id': 1,
        'uuid': uuid(name),
        'host': name,
        'hypervisor_hostname': name,
        'vcpus': 64,
        'memory_mb': 262144,
        'local_gb': 1000,
        'vcpus_used': 0,
        'memory_mb_used': 0,
        'local_gb_used': 0,
        'hypervisor_type': 'QEMU',
        'hypervisor_version': 8002002,
        'free_ram_mb': None,
        'free_disk_gb': None,
        'current_workload': 0,
        'running_vms': 0,
        'cpu_info': '{}',
        'disk_available_least': None,
        'host_ip': '10.0.0.1',
        'supported_instances': '[["x86_64", "qemu", "hvm"]]',
        'metrics': None,
        'pci_stats': None,
        'stats': '{}',
        'numa_topology': None,
        'ram_allocation_ratio': 1.0,
        'cpu_allocation_ratio': 4.0,
        'disk_allocation_ratio': 1.0,
        'mapped': 1,
        'updated_at': None,
        'service': service,
        **values,
    }


def state(name: str = 'host1', *, candidates: list[dict[str, Any]] | None = None, **values: Any) -> HostState:
    """A host as filters see it, with one plain candidate unless told otherwise; ``values`` as of ``host``."""
    view = View(host(name, candidates=candidates, **values))
    found = view.state(view.place(name), arrays=HostArrays(view))
    assert found is not None
    found.allocation_candidates = [candidate(name)] if candidates is None else candidates
    return found


def candidate(host: str = 'host1', devices: dict[str, str] | None = None, **resources: int) -> dict[str, Any]:
    """An allocation request of a host; ``devices``: group → address."""
    root = uuid(host)
    allocations: dict[str, Any] = {root: {'resources': resources or {'VCPU': 8, 'MEMORY_MB': 32768, 'DISK_GB': 16}}}
    mappings = {'': [root]}
    for group, address in (devices or {}).items():
        allocations[device(host, address)] = {'resources': {GPU: 1}}
        mappings[group] = [device(host, address)]
    return {'allocations': allocations, 'mappings': mappings}


class View(HostSnapshot):
    """What a scheduler read of these hosts (``host(…)``), without databases."""

    def __init__(self, *hosts: Host) -> None:
        self.table = Table()
        self.cells: Any = SimpleNamespace(uuids=lambda: {one.cell for one in hosts}, usable=[], silent=[])
        self.servers: Any = _Servers({one.row['host']: one for one in hosts})
        self.aggregates = Aggregates(None, self.table.lock)  # type: ignore[arg-type]
        self.aggregates.put(
            [
                {
                    'id': number,
                    'uuid': uuid(f'aggregate {number}'),
                    'name': str(number),
                    'metadata': one.metadata,
                    'hosts': [one.row['host']],
                }
                for number, one in enumerate(hosts)
                if one.metadata
            ]
        )
        for number, one in enumerate(hosts, 1):
            row = {**one.row, 'id': number, 'deleted': 0}
            service = {**row.pop('service'), 'id': number, 'deleted': 0}
            self.table.services.put(one.cell, service)
            self.table.put(one.cell, row)
        for cell in {one.cell for one in hosts}:
            self.table.services.put_down(
                cell, {number for number, one in enumerate(hosts, 1) if not one.row['service']['up']}
            )
        self._hosts = hosts

    def refresh(self) -> list[str]:
        return []

    def place(self, name: str) -> int:
        """Where a host stands."""
        found = self.table.places.of(uuid(name))
        assert found is not None
        return found

    def answer(self, **vcpus: int) -> CandidateResponse:
        """Placement's: the hosts' candidates. ``vcpus``: capacities of hosts; of others, and of devices, it says
        nothing."""
        requests = [request for one in self._hosts for request in one.candidates]
        roots = {
            rp: one.row['uuid'] for one in self._hosts for request in one.candidates for rp in request['allocations']
        }
        capacity = {uuid(name): amount for name, amount in vcpus.items()}
        summaries = {
            rp: {
                'root_provider_uuid': root,
                'traits': [],
                'resources': {'VCPU': {'capacity': capacity[rp], 'used': 0}} if rp in capacity else {},
            }
            for rp, root in roots.items()
        }
        return CandidateResponse(
            {'allocation_requests': requests, 'provider_summaries': summaries},
            CandidateQuery(groups={'': Group(resources={})}),
            {},
            0.0,
        )


class Host(NamedTuple):
    """A node's row with its service, its cell, what Placement offers of it, the metadata of its aggregate, its servers'
    rows, and {server: properties of its image}."""

    row: dict[str, Any]
    cell: str
    candidates: list[dict[str, Any]]
    metadata: dict[str, str]
    servers: list[dict[str, Any]]
    images: dict[str, dict[str, str]]


class _Servers:
    def __init__(self, hosts: dict[str, Host]) -> None:
        self._hosts = hosts

    def on(self, hosts: Any = ()) -> Any:
        return self

    def hosts_of(self, uuids: Any) -> dict[str, tuple[str, str | None]]:
        return {
            row['uuid']: (one.row['host'], row['node'])
            for one in self._hosts.values()
            for row in one.servers
            if row['uuid'] in uuids
        }

    def __call__(self, host: str) -> list[dict[str, Any]]:
        return self._hosts[host].servers

    def image_properties(self, host: str) -> dict[str, dict[str, str]]:
        return self._hosts[host].images


def host(
    name: str = 'host1',
    *,
    candidates: list[dict[str, Any]] | None = None,
    cell: str = CELL,
    metadata: dict[str, str] | None = None,
    servers: list[dict[str, Any]] | None = None,
    images: dict[str, dict[str, str]] | None = None,
    stats: dict[str, Any] | None = None,
    **values: Any,
) -> Host:
    """For a View; with one plain candidate unless told otherwise."""
    return Host(
        node(name, stats=json.dumps(stats or {}), **values),
        cell,
        [candidate(name)] if candidates is None else candidates,
        metadata or {},
        servers or [],
        images or {},
    )


def looked_at(
    hosts: Sequence[Host], request: Any = None, *, filters: Sequence[Any] = (), weighers: Sequence[Any] = ()
) -> list[tuple[str, float]]:
    """[(host, weight)] of the hosts that pass, best first, as a select finds them."""
    view, request, trace = View(*hosts), request or spec(), Trace(100)
    offers = PlacementCandidates(view, request, view.answer())
    Select(view, request, filters, weighers, SelectSettings(trace=trace), offers).plan([uuid()])
    return list(zip(trace.survivors.get('host', ()), trace.survivors.get('weight', ()), strict=True))
